"""Programs that run inside a sandbox, with the sandbox's Python (3.8 or later). They import nothing of this package."""

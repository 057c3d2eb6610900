"""Task formats: each format reads a kind of task as a `Problem`."""

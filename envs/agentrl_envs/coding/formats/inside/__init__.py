"""Programs that run inside a sandbox, with its Python alone (3.8 or later). They import nothing from here."""

"""Sandboxes of Linux namespaces, created by the program bwrap. They need a system package, but no daemon."""

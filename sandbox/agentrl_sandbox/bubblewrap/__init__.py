"""Sandboxes made of Linux namespaces by the program bwrap: no daemon, one system package."""

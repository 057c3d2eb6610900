"""Sandboxes of Linux namespaces, made by the program bwrap: no daemon, one system package."""

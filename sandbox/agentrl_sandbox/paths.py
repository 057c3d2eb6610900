"""Paths inside a sandbox."""

import posixpath


def absolute(sandbox_path: str) -> str:
    """The path from the sandbox's root. Relative paths start at the root too, and `..` stops there as in a chroot."""
    return "/" + posixpath.normpath("/" + sandbox_path).lstrip("/")

"""Paths inside a sandbox."""

import posixpath


def absolute(sandbox_path: str) -> str:
    """The path from the sandbox's root, which is also where relative paths start; `..` stops there as in a chroot."""
    return "/" + posixpath.normpath("/" + sandbox_path).lstrip("/")

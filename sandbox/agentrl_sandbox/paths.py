"""Paths inside a sandbox."""

import posixpath


def absolute(sandbox_path: str) -> str:
    """The absolute path in the sandbox. A relative path starts at the root. `..` at the root stays at the root."""
    return "/" + posixpath.normpath("/" + sandbox_path).lstrip("/")

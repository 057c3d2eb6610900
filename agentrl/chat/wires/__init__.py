"""The vendors' APIs: each wire reads a request into a common form, and writes the reply in its vendor's format."""

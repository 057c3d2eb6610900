"""The vendors' APIs: each wire reads a request into one form, and writes the reply in its own."""

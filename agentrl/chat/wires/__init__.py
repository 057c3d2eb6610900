"""The vendors' API formats, called wires. Each wire reads its vendor's requests into a common form, and writes replies
in the vendor's format."""

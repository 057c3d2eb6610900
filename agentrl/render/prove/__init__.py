"""The proof that a template can be continued, and the conversations used to prove it."""

"""The proof that a template can be continued, and the conversations of the proof."""

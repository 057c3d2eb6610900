"""Encode a client's messages as tokens, and prove that no word is missing."""

"""A client's messages as tokens, and the proof that no word is missing."""

"""What a client says, as tokens, and the proof that no word of it is missing."""

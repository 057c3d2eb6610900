"""Read sampled turns: recognize markers by their tokens, read thoughts and calls, and make the Action of a turn."""

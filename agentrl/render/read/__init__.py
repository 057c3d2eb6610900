"""Reads sampled turns: markers by their tokens, thoughts, blocks of calls, and the Action of a turn."""

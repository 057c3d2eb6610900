"""Learns what a template does: it renders messages with known words, and finds these words in the result."""

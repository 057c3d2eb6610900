"""Learns the behaviour of a template: renders messages with known words, and searches the words in the result."""

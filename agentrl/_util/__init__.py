"""Small helpers for every room. They know nothing of episodes."""

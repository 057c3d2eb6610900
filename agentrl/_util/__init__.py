"""Small helpers for every room. No helper knows of episodes."""

"""Small parts that every room uses, and that know nothing of episodes."""

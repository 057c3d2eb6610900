"""A sandbox for tests that runs nothing."""

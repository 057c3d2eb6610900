"""A sandbox for tests that runs no programs."""

"""Coding tasks in sandboxes: an agent works in one, and its work is graded in another."""

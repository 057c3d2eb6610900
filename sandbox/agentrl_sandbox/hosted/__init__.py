"""Sandboxes of a hosted service, through a class with slime's protocol: slime's class for E2B, or your class."""

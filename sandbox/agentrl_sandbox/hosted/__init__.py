"""Sandboxes of a hosted service, through a class with slime's own protocol: E2B's class, or yours."""

"""The report card of RL environments: see `__main__`."""

from .env import MyEnv
from .players import explorer, gold, noop

__all__ = ["MyEnv", "explorer", "gold", "noop"]

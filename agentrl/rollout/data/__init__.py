"""Data: tasks from files or from their Env, and the streams that a run draws from."""

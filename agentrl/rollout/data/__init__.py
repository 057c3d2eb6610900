"""The data of a run: tasks from files or from their Env, and the streams of tasks that a run draws from."""

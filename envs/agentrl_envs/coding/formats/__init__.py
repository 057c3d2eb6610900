"""Task formats: each reads one kind of task as a `Problem`."""

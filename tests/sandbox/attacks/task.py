"""The task whose grade is attacked."""

from agentrl import Task

TASK = Task(
    prompt="",
    id="add",
    metadata={
        "format": "function",
        "prompt": 'def add(a, b):\n    """The sum of two numbers."""\n',
        "canonical_solution": "    return a + b\n",
        "test": "def check(candidate):\n    assert candidate(2, 3) == 5\n    assert candidate(-1, 1) == 0\n",
        "entry_point": "add",
    },
)

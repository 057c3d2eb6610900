"""What must be true of the weights in the end. It reads what the updates wrote into them, and knows no buffer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any


def faults(weights: Mapping[str, Any], prompts: int, group_size: int) -> list[str]:
    """What is wrong with the training that led to these weights, in words. Empty: nothing."""
    trained = Counter(str(task) for update in weights["updates"] for _, task, _ in update)
    wanted = {str(number) for number in range(prompts)}
    found = [f"task {task} is lost" for task in sorted(wanted - set(trained))]
    found += [f"task {task} was trained {times} times" for task, times in trained.items() if times > 1]
    found += [f"task {task} is not in the data" for task in sorted(set(trained) - wanted)]
    episodes = Counter[str]()
    for step, update in enumerate(weights["updates"], 1):
        past = set(weights["names"][:step])
        for _, task, played in update:
            if len(played) != group_size:
                found.append(f"task {task} was trained with {len(played)} episodes")
            episodes.update(episode for episode, _ in played)
            if strangers := {name for _, names in played for name in names} - past:
                found.append(f"task {task}: {len(strangers)} of the weights that played it never were")
    return found + [f"an episode was trained {times} times" for times in episodes.values() if times > 1]

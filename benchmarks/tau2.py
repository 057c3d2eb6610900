"""Every retail and airline task of tau2 through `agentrl_envs.tau2`, its gold calls against the suite's own scorer.

    python -m benchmarks.tau2 [retail] [airline]       # pip install inspect-evals==0.26.0; 10 to 25 minutes

For each task: the reward of the gold calls and of a player that does nothing, and whether the final database has the
hash that the suite computes for the expected one.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from agentrl import EnvFactory, Limits, Task, Trajectory
from agentrl.rollout.tasks import own_tasks
from agentrl.testing import rollout
from agentrl_envs.tau2 import Tau2, gold, noop

RESULTS = Path(__file__).parent / "results" / "tau2.json"


class Hashed(Tau2):
    """Notes the suite's hash of the whole database at the end."""

    def score(self, trajectory: Trajectory) -> Any:
        trajectory.info["hash"] = self.world.tools.db.get_hash()
        return super().score(trajectory)


async def measure(domain: str) -> dict[str, Any]:
    from inspect_evals.tau2.common.scorer import get_expected_db
    from inspect_evals.tau2.data_model.tasks import Action

    envs, began, counted = EnvFactory(f"{__file__}:Hashed", {"domain": domain}), time.monotonic(), Counter[str]()

    def expected(task: Task) -> str:
        actions = [Action(action_id="", **action) for action in task.metadata["actions"]]
        return str(get_expected_db(domain, actions).db.get_hash())  # type: ignore[arg-type]

    async with envs:
        for task in (*own_tasks(envs, "train"), *own_tasks(envs, "eval")):
            won = await rollout(envs.make(), task, gold(task), limits=Limits(turns=40))
            idle = await rollout(envs.make(), task, noop(task), limits=Limits(turns=3))
            counted["tasks"] += 1
            counted["gold scores 1"] += won.reward == 1
            counted["database as the suite expects it"] += won.info["hash"] == expected(task)
            counted["nothing scores 1"] += idle.reward == 1
            counted["nothing scores 1, and the suite expects no change"] += idle.reward == 1 and idle.info[
                "hash"
            ] == expected(task)
    return {**counted, "seconds": round(time.monotonic() - began)}


if __name__ == "__main__":
    found = {name: asyncio.run(measure(name)) for name in sys.argv[1:] or ("retail", "airline")}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(RESULTS.read_text())

"""slime's multi_agent example: solvers, rewriters and a selector are one model, each with its own reward."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from openai import AsyncOpenAI
from pydantic import BaseModel

from agentrl import AgentEnv, Endpoint, Reward, SessionOptions, Task, Trajectory
from agentrl.rewards import Grader, ModelOutput, deepscaler

REWRITE = """### Task: Solution Rewriting Based on Previous Solutions ###
You are being reactivated to revise your mathematical proof. You are provided with two documents:
1.  The problem you need to solve.
2.  Your {count} different "Previous Solutions".

Your sole task is to generate a new, correct version of your solution based on your previous discoveries.

### Problem

{problem}

### Candidates Solution
{solutions}"""
SELECT = """You will be given a challenging math problem followed by {count} solutions.
Compare them, and say why you reject the others. End your evaluation with exactly:
Judgment: IDX
where IDX is the index 1-{count} of the best solution

### Problem

{problem}

### Candidate Solutions
{solutions}"""


class MultiAgentConfig(BaseModel):
    parallel: int = 5
    """The number of solvers, and the number of rewriters."""
    correct_weight: float = 1.2
    """The factor of all rewards if the selected solution is right."""
    incorrect_weight: float = 0.8


class MultiAgent(AgentEnv):
    config: MultiAgentConfig
    session = SessionOptions(replies=64)
    grader: Grader = deepscaler  # slime's --rm-type

    async def run(self, task: Task, endpoint: Endpoint) -> int | None:
        """Play the episode. Returns the number of the rewriter whose solution was selected, from 1."""
        client = AsyncOpenAI(base_url=endpoint.openai, api_key=endpoint.key, timeout=3600)
        problem = str(task.prompt)

        async def ask(prompt: str, branch: str = "") -> str:
            headers = {"X-Agentrl-Branch": branch} if branch else {}  # without a name: the main line
            said = await client.chat.completions.create(
                model=endpoint.model, messages=[{"role": "user", "content": prompt}], extra_headers=headers
            )
            return said.choices[0].message.content or ""

        async def ask_all(role: str, prompt: str) -> list[str]:
            names = [f"{role}/{number + 1}" for number in range(self.config.parallel)]
            return await asyncio.gather(*(ask(prompt, name) for name in names))

        async with client:
            solved = [text for text in await ask_all("solver", problem) if text]
            if not solved:
                return None
            rewritten = await ask_all("rewriter", _filled(REWRITE, problem, solved))
            kept = [number for number, text in enumerate(rewritten, 1) if text]
            if not kept:
                return None
            judged = await ask(_filled(SELECT, problem, [rewritten[number - 1] for number in kept]))
        found = re.search(r"Judgment:\s*(\d+)", judged)
        chosen = int(found[1]) - 1 if found else -1
        return kept[chosen] if 0 <= chosen < len(kept) else None

    async def score(self, trajectory: Trajectory) -> Reward:
        """The reward of a solver or rewriter is the grade of its solution; of the selector, the grade of the selected
        solution."""
        named = [segment for segment in trajectory.segments if segment.branch]
        grades = {segment.branch: await self._grade(segment.said[-1].text) for segment in named}
        selected = grades.get(f"rewriter/{self.result}", 0.0)
        weight = self.config.correct_weight if selected == 1 else self.config.incorrect_weight
        rewards = {branch: weight * grade for branch, grade in grades.items()}
        return Reward(weight * selected, {"right": float(selected == 1)}, branches=rewards)

    async def _grade(self, text: str) -> float:
        grade = await self.grader.grade(ModelOutput.of_turns([text], label=self.task.label))
        return grade.value if isinstance(grade, Reward) else grade


def _filled(template: str, problem: str, solutions: Sequence[str]) -> str:
    listed = "\n".join(f"#### Solution {number}\n{text}\n\n---" for number, text in enumerate(solutions, 1))
    return template.format(count=len(solutions), problem=problem, solutions=listed)

"""tau2-bench's domains as an Env: dialogue, tool calls, and a reward by the final state of the database.

agentrl play examples/tau2/tau2.py:Tau2 --player examples/tau2/players.py:gold
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from tau2_suite import Domain, DomainName, Scenario, World, load_domain

from agentrl import Action, Env, Message, Reward, StepResult, Task, ToolCall, ToolSpec, Trajectory
from agentrl.chat import Speaker, SpeakerConfig, speaker
from agentrl.chat.simulation import SimulatedUser, UserConfig
from agentrl.errors import CallError, ConfigError
from agentrl.types import JSON

HERE = Path(__file__).resolve().parent
GREETING = "Hi! How can I help you today?"
_STOPS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
_SYSTEM = """<instructions>
You are a customer service agent that helps the user according to the <policy> provided below.
In each turn you can either:
- Send a message to the user.
- Make a tool call.
You cannot do both at the same time.

Try to be helpful and always follow the policy. Always make sure you generate valid JSON only.
</instructions>
{policy}"""


class Tau2Config(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    domain: DomainName = "retail"
    """The domain of tau2: a shop or an airline, with its tasks and rules."""
    user: UserConfig = UserConfig(speaker=SpeakerConfig(script=f"{HERE}/players.py:blunt"))
    """The customer. The default is a script that gives all facts at once: good for trying things out. For a benchmark,
    let an endpoint play the customer. The default `stop` is tau2's."""


class Tau2(Env):
    """tau2-bench: an agent serves a simulated customer of a shop or airline, by a policy, with tools over a database.

    The reward is 1 if the database is as the right calls leave it, and the customer got the required information.
    """

    config: Tau2Config
    shared: Speaker

    @classmethod
    def share(cls, config: Tau2Config) -> Speaker:
        _domain(config.domain)  # takes seconds; no episode should wait for it
        return speaker(config.user.speaker)

    @classmethod
    def tasks(cls, config: Tau2Config, split: Literal["train", "eval"], /) -> Iterable[Task]:
        """tau2's own splits: train, and test for eval."""
        domain = _domain(config.domain)
        for name in domain.splits["train" if split == "train" else "test"]:
            yield Task(
                prompt=domain.scenarios[name].instruction,
                id=f"{config.domain}-{name}",
                metadata={
                    "scenario": name,
                    "actions": list(domain.scenarios[name].actions),
                    "told": list(domain.scenarios[name].facts),
                },
            )

    async def reset(self, task: Task) -> Sequence[Message]:
        self.domain = _domain(self.config.domain)
        self.scenario = self._scenario(task)
        self.world, self.user = self.domain.world(), self._user()
        heard = await self.user.hear(GREETING)
        system = _SYSTEM.format(policy=self.domain.policy)
        return [{"role": "system", "content": system}, {"role": "user", "content": heard.text}]

    def tools(self) -> Sequence[ToolSpec]:
        return self.domain.specs

    async def step(self, action: Action) -> StepResult:
        if action.calls:
            return await self.run_tools(action)
        heard = await self.user.hear(action.content)
        return StepResult(heard.text, done=heard.ended, info=self.user.info())

    async def exec_tool(self, call: ToolCall) -> JSON:
        if call.name not in {spec["function"]["name"] for spec in self.domain.specs}:
            raise CallError(f"there is no tool {call.name}")
        return await self.world.call(call.name, call.arguments)

    def score(self, trajectory: Trajectory) -> Reward:
        reply_text = "\n".join(action.content for action in trajectory.actions).lower().replace(",", "")
        is_told = all(fact.lower() in reply_text for fact in self.scenario.facts)
        state = self.world.changes() == self.domain.expected(self.scenario)
        return Reward(float(is_told and state), {"state": float(state), "told": float(is_told)})

    def snapshot(self) -> dict[str, Any]:
        return {"changes": self.world.changes(), "user": self.user.snapshot()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.domain = _domain(self.config.domain)
        self.scenario = self._scenario(self.task)
        self.world, self.user = World(self.domain, state["changes"]), self._user()
        self.user.restore(state["user"])

    def _scenario(self, task: Task) -> Scenario:
        scenario = self.domain.scenarios.get(str(task.metadata.get("scenario", "")))
        if scenario is None:
            raise ConfigError(f"task {task.id}: metadata.scenario names no task of tau2's {self.config.domain}")
        return scenario

    def _user(self) -> SimulatedUser:
        rules = f"{self.domain.guidelines}\n<scenario>\n{{instruction}}\n</scenario>"
        config = self.config.user
        if "stop" not in config.model_fields_set:
            config = config.model_copy(update={"stop": _STOPS})
        return SimulatedUser(self.shared, self.scenario.instruction, config, rules)


@cache
def _domain(name: DomainName) -> Domain:
    return load_domain(name)

"""The Envs of the table of hosts, each with the replies of a scripted policy: README's, the examples', planted ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Any

from agentrl import Action, AgentEnv, Env, Message, Raw, StepResult, Task, TurnOptions, tool
from agentrl.hosts.turned import HostedEnv
from agentrl.models import load_tokenizer
from agentrl.models.vision import load_vision
from agentrl.render import load_renderer
from agentrl.render.base import Renderer
from agentrl.testing import call
from tests.doubles import tiny_vlm
from tests.hosts.envs import LONG, Breaks, BreaksAtReset, Masks, TwoTools, Weather
from tests.hosts.hosting import said
from tests.house import ROOT

EXAMPLES = ROOT / "examples"
LIMITS = {"turns": 6, "max_tokens_per_turn": 40, "tokens": 400, "context": 1000}


class Plain(Env):
    """Tasks with numbers, for Envs of this file."""

    @classmethod
    def tasks(cls, config: Any, split: str) -> Iterator[Task]:
        numbers = range(1, 201) if split == "train" else range(201, 221)
        return (Task(prompt=cls.question(number), label=str(2 * number), seed=number) for number in numbers)

    @staticmethod
    def question(number: int) -> Any:
        return f"What is {number} + {number}?"

    def score(self, trajectory):
        return float(trajectory.answer.strip() == self.task.label)


class Addition(Plain):
    """docs/coming-from-verifiers.md"""


class Echo(Plain):
    """docs/coming-from-trl.md"""

    heard = ""

    @tool
    async def echo(self, message: str) -> str:
        """Echo the message back.

        Args:
            message: The message to echo.
        """
        self.heard = message
        return message

    def score(self, trajectory):
        return float(self.heard == self.task.label)


class Guess(Plain):
    """docs/coming-from-tinker.md: rewards of turns."""

    score = Env.score

    def reset(self, task):
        self.secret = self.rng.randint(1, 5)
        return "Guess a number from 1 to 5."

    def step(self, action: Action) -> StepResult:
        if not action.content.isdigit():
            return StepResult("Write a number.", reward=-0.25)
        guess = int(action.content)
        if guess == self.secret:
            return StepResult("Yes.", reward=1.0, done=True)
        return StepResult("Higher." if guess < self.secret else "Lower.", reward=0.0)


class LongPages(Plain):
    """What the tool returns fills the budgets of tokens."""

    @tool
    async def page(self, number: int) -> str:
        """A page of the book."""
        return LONG * number


class Thinks(Plain):
    """A dialogue in which thoughts are dropped, so an episode has several sequences."""

    def step(self, action: Action) -> StepResult:
        return StepResult("Are you sure?", done=self.rng.random() < 0.3)


class Prose(Plain):
    """Text without a chat template, which stop strings end."""

    turn_options = TurnOptions(stop="\n")

    @staticmethod
    def question(number: int) -> Any:
        return Raw(f"{number} + {number} =")


class Stops(Plain):
    """A stop string ends each turn."""

    turn_options = TurnOptions(stop="!")

    def step(self, action: Action) -> StepResult:
        return StepResult("And?", done=action.content.endswith("!") or action.content.isdigit())


class Asks(AgentEnv):
    """An agent that asks an endpoint in OpenAI's form."""

    @classmethod
    def tasks(cls, config: Any, split: str) -> Iterator[Task]:
        return Plain.tasks(config, split)

    async def run(self, task: Task, endpoint: Any) -> str:
        import httpx

        messages: list[Message] = [{"role": "user", "content": str(task.prompt)}]
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {endpoint.key}"}, timeout=60) as client:
            for _ in range(2):
                body = {"model": endpoint.model, "messages": messages}
                reply = await client.post(f"{endpoint.openai}/chat/completions", json=body)
                reply.raise_for_status()
                messages += [reply.json()["choices"][0]["message"], {"role": "user", "content": "Are you sure?"}]
        return messages[-2]["content"] or ""

    def score(self, trajectory):
        return float((self.result or "").strip() == self.task.label)


class Two(Asks):
    """An agent whose two roles have conversations of their own."""

    async def run(self, task: Task, endpoint: Any) -> str:
        await super().run(task, endpoint)
        return await super().run(Task(prompt=f"Check this: {task.prompt}"), endpoint)


Reply = Callable[[str, Random], str | Message]


def numbers(text: str, rng: Random) -> str | Message:
    """Sums, right or wrong; and for each Env of this file a call or words."""
    number = int(re.findall(r"(\d+) \+", text)[-1]) if "+" in text else 2
    return rng.choice([str(2 * number)] * 3 + [str(rng.randint(1, 5)), LONG, "No idea!", ""])


def calling(*calls: Callable[[int, Random], Message]) -> Reply:
    """Also calls tools, in half of the turns."""

    def reply(text: str, rng: Random) -> str | Message:
        number = int(re.findall(r"(\d+) \+", text)[-1])
        wrong = [call("none"), '<tool_call>\n{"name": "echo", "arguments": \n</tool_call>']
        return (
            rng.choice([*(make(number, rng) for make in calls * 3), *wrong])
            if rng.random() < 0.5
            else numbers(text, rng)
        )

    return reply


def thinking(text: str, rng: Random) -> Message:
    return {"role": "assistant", "reasoning_content": "Let me see.", "content": numbers(text, rng) or "So."}


def searching(text: str, rng: Random) -> str | Message:
    places = re.findall(r"(?:is|that) ([A-Z]\w+)", text) or ["Minato"]
    names = re.findall(r"(?:in|of|is) ([A-Z]\w+)", text) or ["Japan"]
    if rng.random() < 0.6:
        return call("search", query=rng.choice([*places, *names]))
    return f"Answer: {rng.choice([*names, 'Tokyo'])}"


def serving(text: str, rng: Random) -> str | Message:
    email = re.findall(r"It is (\S+@[\w.]+\w)", text)
    return rng.choice(
        [
            "Gladly. What is your e-mail address?",
            call("find_customer", email=(email or ["nobody@shop.example"])[-1]),
            call("get_order", order=(re.findall(r"W\d+", text) or ["W1"])[-1]),
            call("cancel_order", order=(re.findall(r"W\d+", text) or ["W1"])[-1], reason="no longer needed"),
            call("cancel_order", order=7),
            "It is done.",
        ]
    )


def coding(text: str, rng: Random) -> str | Message:
    number = (re.findall(r"\d+", text) or ["1"])[0]
    if rng.random() < 0.4:
        return call(
            "code_interpreter", code=rng.choice([f"print({number})", "raise SystemExit(1)", "print('x' * 9000)"])
        )
    return f"Answer: \\boxed{{{rng.choice([number, '4', '12'])}}}"


def walking(text: str, rng: Random) -> str:
    way = (re.findall(r"It is (\w+) from here", text) or ["up"])[-1]
    return rng.choice([way] * 4 + ["north", "up", ""])


def naming(text: str, rng: Random) -> str:
    return rng.choice(["red", "green", "blue", "yellow", "white", "black", "a colour"])


def paging(text: str, rng: Random) -> str | Message:
    return rng.choice(
        [call("open_page", number=rng.randint(1, 3)), call("open_page", number=99), str(rng.randint(1, 99))]
    )


@dataclass(frozen=True)
class Case:
    """An Env of the table."""

    env: str | type[Env]
    reply: Reply
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keys of DoorConfig in addition to LIMITS."""
    sees: bool = False
    """Whether the Env needs a model that reads images."""

    @property
    def model(self) -> str:
        """The model's name or folder."""
        return str(tiny_vlm.folder(weights=True)) if self.sees else "tiny"

    def renderer(self) -> Renderer:
        return load_renderer(load_tokenizer(self.model), vision=load_vision(self.model))

    @property
    def limits(self) -> dict[str, Any]:
        return {**LIMITS, **self.settings.get("limits", {})}

    def all_settings(self, **more: Any) -> dict[str, Any]:
        """The keys of a door: those of the case, and `limits` in total."""
        return {**self.settings, **more, "limits": {**self.limits, **more.get("limits", {})}}

    def tasks(self, count: int) -> list[Task]:
        """`count` tasks for training, from the beginning again if there are fewer."""
        tasks = HostedEnv(self.env, **self.all_settings()).tasks()[:count]
        return list(islice((task for _ in range(count) for task in tasks), count))


CASES: Mapping[str, Case] = {
    "weather": Case(Weather, said),
    "wrong calls are masked": Case(Masks, said),
    "two tools": Case(TwoTools, said),
    "the world breaks": Case(Breaks, said),
    "the world breaks at reset": Case(BreaksAtReset, said),
    "answers that are too long": Case(Weather, said, {"limits": {"max_tokens_per_turn": 9}}),
    "tokens run out": Case(Weather, said, {"limits": {"tokens": 60}}),
    "long pages": Case(LongPages, calling(lambda number, rng: call("page", number=rng.randint(1, 9)))),
    "several sequences": Case(Thinks, thinking, {"thinking": "strip"}),
    "text without a template": Case(Prose, numbers),
    "stop strings": Case(Stops, numbers),
    "addition": Case(Addition, numbers),
    "echo": Case(Echo, calling(lambda number, rng: call("echo", message=str(number * rng.choice([1, 2]))))),
    "guess": Case(Guess, numbers),
    "an agent": Case(Asks, numbers),
    "an agent of two roles": Case(Two, numbers),
    "examples: fact_search": Case("fact_search", searching),
    "examples: customer_service": Case(
        f"{EXAMPLES}/customer_service/service.py:CustomerService",
        serving,
        {"limits": {"context": 4000, "tokens": 800, "turns": 12}},
    ),
    "examples: retool": Case(
        f"{EXAMPLES}/retool/retool.py:ReTool",
        coding,
        {"env_config": {"backend": "local"}, "data": f"{EXAMPLES}/retool/problems.jsonl"},
    ),
    "examples: a game of init": Case(
        f"{ROOT}/agentrl/init/templates/game/my_env/env.py:MyEnv", walking, {"episodes": 200}
    ),
    "examples: tictactoe (seats)": Case(f"{EXAMPLES}/tictactoe/env.py:TicTacToe", numbers),
    "examples: colours (images)": Case(f"{EXAMPLES}/colours/env.py:Colours", naming, sees=True),
    "examples: screenshots (images)": Case(
        f"{EXAMPLES}/screenshots/env.py:Pages", paging, {"limits": {"context": 8000, "tokens": 4000}}, sees=True
    ),
}

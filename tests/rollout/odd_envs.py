"""Envs that keep their state in odd places, as users write them, and what a perfect player must hear and earn.

All of this state came with the task. An Env that writes into its task means "this episode", so each episode begins with
the task as the data has it. An Env whose task refused to be written to would earn nothing here: these Envs play well
alone, and must play as well in a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType
from typing import Any

from agentrl import Env, StepResult, Task
from agentrl.testing import call


@dataclass(frozen=True, kw_only=True)
class Case:
    """An Env, its task, the turns of a perfect player, and all messages that are not the model's."""

    env: type[Env]
    task: Callable[[], Task]
    turns: Sequence[Any]
    heard: Sequence[str]
    reward: Callable[..., Any] | None = None
    plain: bool = True
    """The task holds only what JSON can hold. Any other may be refused by a ConfigError instead."""


CASES: dict[str, Case] = {}


def case(task: Callable[[], Task], turns: Sequence[Any], heard: Sequence[str], **more: Any):
    def keep(cls: type[Env]) -> type[Env]:
        CASES[cls.__name__] = Case(env=cls, task=task, turns=turns, heard=heard, **more)
        return cls

    return keep


def row(prompt: Any = "Go.", **more: Any) -> Task:
    return Task(prompt=prompt, id="row", seed=3, **more)


def spec(name: str) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": "Look.", "parameters": {"type": "object", "properties": {}}},
    }


def ends(text: str, done: bool) -> StepResult:
    return StepResult(text, done=done)


# Metadata, changed in every way that a dict allows


@case(lambda: row(metadata={"seen": []}), ["left", "right"], ["Go.", "1 seen", "2 seen"])
class Appends(Env):
    async def step(self, action):
        self.task.metadata["seen"].append(action.content)
        return ends(f"{len(self.task.metadata['seen'])} seen", action.content == "right")

    async def score(self, trajectory):
        return float(self.task.metadata["seen"] == ["left", "right"])


@case(lambda: row(), ["left", "right"], ["Go.", "step 1", "step 2"])
class SetsDefault(Env):
    async def step(self, action):
        path = self.task.metadata.setdefault("path", [])
        path.append(action.content)
        return ends(f"step {len(path)}", action.content == "right")

    async def score(self, trajectory):
        return float(trajectory.task.metadata["path"] == ["left", "right"])


@case(lambda: row(metadata={"board": {"a": {"owner": ""}}}), ["a"], ["Go.", "a is yours"])
class NestedDict(Env):
    async def step(self, action):
        cell = self.task.metadata["board"][action.content]
        won, cell["owner"] = not cell["owner"], "you"
        return StepResult("a is yours" if won else "a is taken", reward=float(won), done=True)


@case(lambda: row(metadata={"grid": [[0, 0], [0, 0]]}), ["0 1", "1 1"], ["Go.", "sum 1", "sum 2"])
class NestedList(Env):
    def step(self, action):
        y, x = map(int, action.content.split())
        self.task.metadata["grid"][y][x] += 1
        total = sum(map(sum, self.task.metadata["grid"]))
        return ends(f"sum {total}", action.content == "1 1")

    def score(self, trajectory):
        return float(self.task.metadata["grid"] == [[0, 1], [0, 1]])


@case(
    lambda: row(metadata={"questions": ["1 + 1?", "2 + 2?"], "answers": ["2", "4"]}), ["2", "4"], ["1 + 1?", "2 + 2?"]
)
class PopsInReset(Env):
    async def reset(self, task):
        self.right = 0
        return task.metadata["questions"].pop(0)

    async def step(self, action):
        self.right += action.content == self.task.metadata["answers"].pop(0)
        left = self.task.metadata["questions"]
        return ends(left.pop(0), False) if left else StepResult(done=True)

    async def score(self, trajectory):
        return self.right / 2


@case(lambda: row(metadata={"hint": "It is 7."}), ["7"], ["It is 7."])
class PopsWithDefault(Env):
    async def reset(self, task):
        return task.metadata.pop("hint", "Guess!")

    async def step(self, action):
        return StepResult(done=True, reward=float(action.content == "7"))


@case(lambda: row(metadata={"stock": 2}), ["buy", "buy"], ["Go.", "1 left", "0 left"])
class Updates(Env):
    async def step(self, action):
        left = self.task.metadata["stock"] - 1
        self.task.metadata.update(stock=left)
        return StepResult(f"{left} left", reward=0.5 if left >= 0 else 0.0, done=left <= 0)


@case(lambda: row(metadata={"secret": "owl"}), ["owl"], ["Say owl."])
class Deletes(Env):
    async def reset(self, task):
        self.secret = task.metadata["secret"]
        del task.metadata["secret"]
        return f"Say {self.secret}."

    async def score(self, trajectory):
        return float(trajectory.answer == self.secret)


@case(lambda: row(metadata={"cards": ["c", "a", "b"]}), ["a"], ["Least of c a b?"])
class SortsInScore(Env):
    async def reset(self, task):
        return f"Least of {' '.join(task.metadata['cards'])}?"

    async def score(self, trajectory):
        cards = trajectory.task.metadata["cards"]
        cards.sort()
        return float(trajectory.answer == cards[0])


@case(lambda: row(metadata={"deck": [1, 2, 3]}), ["draw"], ["Go.", "shuffled"])
class Shuffles(Env):
    """A shuffle in place by the episode's own random numbers: the same world for the whole group."""

    async def step(self, action):
        self.rng.shuffle(self.task.metadata["deck"])
        expected = [1, 2, 3]
        Random(3).shuffle(expected)
        won = self.task.metadata["deck"] == expected
        return StepResult("shuffled", reward=float(won), done=True)


@case(lambda: row(metadata={"used": {}}), ["go"], ["Go.", "first"])
class KeepsAClosure(Env):
    def reset(self, task):
        used = task.metadata["used"]

        def visit():
            used["count"] = used.get("count", 0) + 1
            return used["count"]

        self.visit = visit
        return task.prompt

    def step(self, action):
        count = self.visit()
        return StepResult("first" if count == 1 else "again", reward=float(count == 1), done=True)


@case(lambda: row(label=["x"], metadata={"turns": 0}), ["x"], ["Go.", "turn 1"])
class ForcesFrozen(Env):
    """A Task is frozen; some write into it all the same."""

    async def step(self, action):
        turns = self.task.metadata["turns"] + 1
        object.__setattr__(self.task, "metadata", {"turns": turns})
        return StepResult(f"turn {turns}", reward=float(turns == 1), done=True)


@case(lambda: row(metadata={"seen": []}), ["left"], ["Go.", "1 seen"])
class ReplacesItsTask(Env):
    """`dataclasses.replace` is shallow: the list is still that of the task."""

    async def reset(self, task):
        self.task = replace(task, metadata={**task.metadata, "begun": True})
        return task.prompt

    async def step(self, action):
        seen = self.task.metadata["seen"]
        seen.append(action.content)
        return StepResult(f"{len(seen)} seen", reward=float(seen == ["left"]), done=True)


@case(lambda: row(metadata={"seen": []}), ["go"], ["Go."])
class CleansUpInClose(Env):
    """`close` is called for an episode that failed, too."""

    async def step(self, action):
        return StepResult(done=True, reward=float("seen" in self.task.metadata))

    async def close(self):
        self.task.metadata.clear()


@case(lambda: row(metadata=MappingProxyType({"word": "a", "all": ["a", "b"]})), ["a"], ["Say a."])
class ReadsAView(Env):
    """A Mapping that is no dict, of plain JSON: what Task promises to take. `copy.deepcopy` refuses it."""

    async def reset(self, task):
        assert isinstance(task.metadata, Mapping)
        return f"Say {task.metadata['all'].pop(0)}."

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.metadata["word"])


# Tools, label and prompt of the task


@case(lambda: row(tools=(spec("look"),)), [call("look"), "bye"], ["Go.", "a door. Use it once."])
class ChangesItsTools(Env):
    async def tools(self):
        for one in self.task.tools:
            one["function"]["description"] += " Use it once."
        return self.task.tools

    async def exec_tool(self, call):
        return "a door." + self.task.tools[0]["function"]["description"].removeprefix("Look.")

    async def score(self, trajectory):
        return float(trajectory.tools[0]["function"]["description"] == "Look. Use it once.")


@case(lambda: row(tools=[spec("look"), spec("open")]), [call("look"), "bye"], ["Go.", "1 tools left"])
class UsesUpItsTools(Env):
    async def exec_tool(self, call):
        self.task.tools[:] = [one for one in self.task.tools if one["function"]["name"] != call.name]
        return f"{len(self.task.tools)} tools left"

    async def score(self, trajectory):
        return float([one["function"]["name"] for one in trajectory.tools] == ["look", "open"])


@case(lambda: row(label=["x", "y"]), ["y", "x"], ["Go.", "1 to find", "0 to find"])
class FindsTheLabel(Env):
    async def step(self, action):
        if found := action.content in self.task.label:
            self.task.label.remove(action.content)
        left = len(self.task.label)
        return StepResult(f"{left} to find", reward=0.5 * found, done=action.content == "x")


@case(lambda: row(label={"need": {"egg": 1, "milk": 1}}), ["egg", "milk"], ["Go.", "ok", "ok"])
class CountsTheLabel(Env):
    def step(self, action):
        need = self.task.label["need"]
        need[action.content] -= 1
        return ends("ok" if need[action.content] >= 0 else "enough of it", action.content == "milk")

    def score(self, trajectory):
        return float(set(trajectory.task.label["need"].values()) == {0})


def _messages() -> list[dict[str, Any]]:
    return [{"role": "user", "content": "Go."}]


@case(lambda: row(_messages()), ["ok"], ["Go.\nBe brief."])
class EditsThePrompt(Env):
    async def reset(self, task):
        task.prompt[0]["content"] += "\nBe brief."
        return task.prompt

    async def score(self, trajectory):
        return float(trajectory.messages[0]["content"].count("brief") == 1)


@case(lambda: row(_messages()), ["ok"], ["Policy.", "Go."])
class InsertsASystemPrompt(Env):
    async def reset(self, task):
        task.prompt.insert(0, {"role": "system", "content": "Policy."})
        return task.prompt

    async def score(self, trajectory):
        return float([one["role"] for one in trajectory.messages] == ["system", "user", "assistant"])


@case(lambda: row(_messages()), ["one", "two"], ["Go.", "turn 1", "turn 2"])
class KeepsTheTalkInThePrompt(Env):
    """The prompt is its history: what was said so far is appended to it."""

    async def step(self, action):
        talk = self.task.prompt
        talk += [{"role": "assistant", "content": action.content}]
        said = sum(one["role"] == "assistant" for one in talk)
        return StepResult(f"turn {said}", reward=0.5 if said <= 2 else 0.0, done=said >= 2)


# What the Env gave away and keeps changing: the transcript is what was read at that time


@case(lambda: row(), ["a", "b"], ["Go.", "turn 1", "turn 2"])
class OneReplyForAll(Env):
    async def reset(self, task):
        self.reply, self.turn = [{"role": "user", "content": ""}], 0
        return task.prompt

    async def step(self, action):
        self.turn += 1
        self.reply[0]["content"] = f"turn {self.turn}"
        return StepResult(self.reply, done=self.turn == 2, reward=0.5)


@case(lambda: row(metadata={"first": _messages()}), ["a"], ["Go.", "bye"])
class EditsItsFirstMessages(Env):
    async def reset(self, task):
        self.first = task.metadata["first"]
        return self.first

    async def step(self, action):
        self.first[0]["content"] = "Something else."
        self.first.append({"role": "user", "content": "more"})
        return StepResult("bye", done=True)

    async def score(self, trajectory):
        return float(trajectory.messages[0]["content"] == "Go.")


@case(lambda: row(metadata={"log": {"moves": []}}), ["a", "b"], ["Go.", "ok", "ok"])
class InfoByReference(Env):
    async def step(self, action):
        log = self.task.metadata["log"]
        log["moves"].append(action.content)
        return StepResult("ok", info=log, done=action.content == "b")

    async def score(self, trajectory):
        won = trajectory.info["moves"] == ["a", "b"]
        self.task.metadata["log"]["moves"].append("scored")
        return float(won and trajectory.info["moves"] == ["a", "b"])


@case(lambda: row(), ["a"], ["Go.", "ok"])
class WritesItsInfo(Env):
    async def step(self, action):
        return StepResult("ok", done=True, info={"notes": []})

    async def score(self, trajectory):
        trajectory.info["notes"].append("scored")
        trajectory.info.setdefault("times", []).append(1)
        return float(trajectory.info["notes"] == ["scored"] and trajectory.info["times"] == [1])


@case(lambda: row(_messages()), ["a"], ["read", "ok"])
class EditsTheTranscript(Env):
    """`score` writes into the messages of the trajectory, and so perhaps into the prompt of the task."""

    async def step(self, action):
        return StepResult("ok", done=True)

    async def score(self, trajectory):
        won = trajectory.messages[0]["content"] == "Go."
        trajectory.messages[0]["content"] = "read"
        return float(won)


@case(
    lambda: row(tools=(spec("take"),)),
    [call("take", things=["egg", "milk"]), "bye"],
    ["Go.", "took 2"],
)
class ConsumesTheCall(Env):
    """It empties the arguments that the model wrote. The record keeps what was said."""

    async def exec_tool(self, call):
        things, taken = call.arguments["things"], 0
        while things:
            things.pop()
            taken += 1
        return f"took {taken}"

    async def score(self, trajectory):
        said = next(one for one in trajectory.messages if one.get("tool_calls"))
        recorded = trajectory.actions[0].calls[0].arguments
        written = said["tool_calls"][0]["function"]["arguments"]
        return float(recorded == written == {"things": ["egg", "milk"]})


def pops_the_label(trajectory):
    return float(bool(trajectory.task.label) and trajectory.answer == trajectory.task.label.pop())


@case(lambda: row(label=["a"]), ["a"], ["Go."], reward=pops_the_label)
class ScoredByAFunction(Env):
    async def step(self, action):
        return StepResult(done=True)

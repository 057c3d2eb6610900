"""Opponents of the policy in an Env with seats: the policy itself, older weights, or a function.

All episodes of a group have the same opponent, so that these episodes can be compared. Against the policy itself every
seat is trained. Against another opponent the policy has a single seat, and the seats alternate from task to task.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from agentrl._util.loading import cause, load_object
from agentrl._util.seeds import nth_seed
from agentrl.engine.base import Engine, EngineWrapper
from agentrl.engine.table import ENGINES
from agentrl.errors import ConfigError
from agentrl.types import Generation, Message, SamplingParams, ToolSpec

if TYPE_CHECKING:
    from agentrl.render.base import Renderer

POLICY = "policy"
"""The name of the opponent that is the model in training, with the present weights."""


class Opponent(Protocol):
    """Plays the seats that the policy does not have."""

    @property
    def name(self) -> str: ...

    def engine(self, renderer: Renderer, seed: int) -> Engine | None:
        """The engine that plays in an episode. `seed` fixes the random numbers. None: the policy's engine."""
        ...


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy as its own opponent: it plays every seat, and every seat is trained."""

    name: str = POLICY

    def engine(self, renderer: Renderer, seed: int) -> Engine | None:
        return None


@dataclass(frozen=True, slots=True)
class FixedPlayer:
    """An opponent that is a function of the messages so far and of the tools. The function returns the next message,
    and may be async.

    If the function has a third parameter, it gets a `random.Random` with the episode's seed.
    """

    name: str
    play: Callable[..., Any]

    @classmethod
    def load(cls, name: str, key: str) -> FixedPlayer:
        """Load the function at a path. Raises ConfigError for other objects; its message begins with `key`."""
        play = load_object(name)
        if not callable(play) or not 2 <= len(inspect.signature(play).parameters) <= 3:
            raise ConfigError(f"{key} {name} must be a function of messages and tools, and perhaps of a Random")
        return cls(name, play)

    def engine(self, renderer: Renderer, seed: int) -> Engine:
        from agentrl.chat.client import ScriptedSpeaker
        from agentrl.chat.engine import ChatEngine

        extra = (Random(seed),) if len(inspect.signature(self.play).parameters) > 2 else ()

        async def say(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str | Message:
            try:
                answer = self.play(messages, tools, *extra)
                reply: str | Message = await answer if inspect.isawaitable(answer) else answer
            except Exception as exc:  # the player's boundary
                raise ConfigError(f"opponent {self.name} failed: {cause(exc)}") from exc
            return reply

        return ChatEngine(ScriptedSpeaker(say), renderer, by={"model": self.name})


@dataclass(frozen=True, slots=True)
class OlderWeights:
    """An opponent with other weights than the policy, on a separate engine."""

    name: str
    model: Engine

    def engine(self, renderer: Renderer, seed: int) -> Engine:
        return self.model


@dataclass(frozen=True, slots=True)
class Seating:
    """The opponent in a task's episodes, and the seats of policy and opponent."""

    opponent: Opponent
    trained: tuple[str, ...]
    """The seats that the policy plays."""
    others: tuple[str, ...]

    def players(self, renderer: Renderer, seed: int) -> dict[str, Engine]:
        """Seat -> engine, for the seats that the policy does not play in an episode."""
        engines = {
            seat: self.opponent.engine(renderer, nth_seed(seed, place)) for place, seat in enumerate(self.others)
        }
        return {seat: engine for seat, engine in engines.items() if engine is not None}


@dataclass(frozen=True, slots=True)
class Opponents:
    """The opponents of a run, which play in turn."""

    opponents: Sequence[Opponent] = (Policy(),)

    def seating(self, seats: Sequence[str], turn: int) -> Seating:
        """The seating of task number `turn`. Over the tasks, each opponent meets the policy in each seat equally
        often."""
        round_, place = divmod(turn, len(self.opponents))
        opponent = self.opponents[place]
        if isinstance(opponent, Policy):
            return Seating(opponent, tuple(seats), ())
        policy_seat = seats[round_ % len(seats)]
        return Seating(opponent, (policy_seat,), tuple(seat for seat in seats if seat != policy_seat))


@dataclass(frozen=True, slots=True, eq=False)
class _UncachedEngine(EngineWrapper):
    """An engine that computes each request alone and from its first token, so that tokens do not depend on timing."""

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, *, session_id: str = "", rid: str = ""
    ) -> Generation:
        return await self.engine.generate(input_ids, sampling_params, rid=rid)


def open_opponents(
    names: Sequence[str], stack: AsyncExitStack, vocabulary: Mapping[str, int], *, device: str, dtype: str
) -> Opponents:
    """Open opponents by name: policy, `file.py:function`, or a folder with weights. `stack` closes their engines.

    Raises ConfigError for any other name, and for a model whose vocabulary is not the policy's.
    """
    opponents: list[Opponent] = []
    for name in names:
        if name == POLICY:
            opponents.append(Policy())
        elif Path(name).is_dir():
            opponents.append(OlderWeights(name, _engine_of(name, stack, vocabulary, device, dtype)))
        else:
            opponents.append(_fixed(name))
    return Opponents(tuple(opponents))


def open_fixed(names: Sequence[str]) -> Opponents:
    """Open opponents without models: policy or `file.py:function`. Raises ConfigError for any other name."""
    if folder := next((name for name in names if Path(name).is_dir()), None):
        raise ConfigError(f"opponents: {folder} holds weights, and only functions can play here; name file.py:function")
    return Opponents(tuple(Policy() if name == POLICY else _fixed(name) for name in names))


def _fixed(name: str) -> FixedPlayer:
    if ":" not in name:
        raise ConfigError(f"opponents: {name} is neither policy nor a folder with weights, nor file.py:function")
    return FixedPlayer.load(name, "opponents:")


def _engine_of(name: str, stack: AsyncExitStack, vocabulary: Mapping[str, int], device: str, dtype: str) -> Engine:
    from agentrl.models import load_model, load_tokenizer

    tokenizer = load_tokenizer(name, chat_template="")
    if tokenizer.get_vocab() != vocabulary:
        raise ConfigError(f"opponents: {name} has another vocabulary than the policy: name weights of the same model")
    local_engine = load_object(ENGINES["local"])
    engine = local_engine(load_model(name, device=device, dtype=dtype), tokenizer, max_batch=1)
    stack.push_async_callback(engine.close)
    return _UncachedEngine(engine)

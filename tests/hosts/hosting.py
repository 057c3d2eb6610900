"""A host that is agentrl itself: what its episodes look like from outside."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from agentrl import EpisodeOptions, run_episode
from agentrl.engine import ScriptedEngine
from agentrl.engine.base import EngineWrapper
from agentrl.hosts.equality import HostEpisode, HostRow, HostTurn
from agentrl.testing import call
from tests.hosts.envs import LONG, WEATHER


class RecordedEngine(ScriptedEngine):
    """Keeps each turn as a host would."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.turns: list[HostTurn] = []

    async def generate(self, input_ids, sampling_params, **request):
        said = await super().generate(input_ids, sampling_params, **request)
        self.turns.append(HostTurn([*input_ids], said.tokens, said.log_probs, said.finish_reason))
        return said


@dataclass(frozen=True, slots=True, eq=False)
class KeptTurns(EngineWrapper):
    """Keeps the turns of each session."""

    sessions: dict[str, list[HostTurn]] = field(default_factory=dict)

    async def generate(self, input_ids, sampling_params, **request):
        said = await self.engine.generate(input_ids, sampling_params, **request)
        turn = HostTurn([*input_ids], [*said.tokens], [*said.log_probs], said.finish_reason)
        self.sessions.setdefault(request["session_id"], []).append(turn)
        return said

    def of(self, name: str) -> list[HostTurn]:
        """The turns of an episode. The conversations of an agent have the same name with a number."""
        mine = re.compile(re.escape(name) + r"(\.\d+)?")
        return [turn for session, turns in self.sessions.items() if mine.fullmatch(session) for turn in turns]


class Policy(ScriptedEngine):
    """A scripted policy. `reply` gives the next turn for the text so far and random numbers, whose seed is that of the
    request."""

    def __init__(self, renderer, reply=None) -> None:
        super().__init__([], renderer)
        self.reply = reply or said

    async def generate(self, input_ids, sampling_params, *, session_id="", rid="", images=()):
        rng = Random(f"{sampling_params.get('sampling_seed')} {len(input_ids)}")
        once = ScriptedEngine([self.reply(self._renderer.decode(input_ids), rng)], self._renderer)
        return await once.generate(input_ids, sampling_params)


def spoken(reply=None, seed=0):
    """The policy as a function of messages."""

    def of_messages(messages, tools):
        text = "\n".join(message.get("content") or "" for message in messages)
        return (reply or said)(text, Random(f"{seed} {text}"))

    return of_messages


def said(text: str, rng: Random):
    """The next turn in the Envs of these tests: right and wrong calls, answers of many kinds."""
    place = re.findall(r"Weather in the (\w+)\?", text)[-1]
    read = re.findall(r"It is (\w+) there", text)
    if rng.random() < (0.8 if read else 0.2):
        return rng.choice([*read[-1:] * 4, rng.choice(WEATHER), LONG, ""])
    calls = [
        *[call("lookup", place=place)] * 6,
        call("lookup", place="moon"),
        call("lookup", town=place),
        call("weather", place=place),
        call("number", place=place),
        call("by_number", number=3),
        '<tool_call>\n{"name": "lookup", "arguments": \n</tool_call>',
    ]
    return rng.choice(calls)


async def played(env, task, script: Sequence, renderer, options: EpisodeOptions) -> HostEpisode:
    engine = RecordedEngine(script, renderer)
    trajectory = await run_episode(env, task, engine=engine, renderer=renderer, options=options)
    valid = trajectory.is_valid
    rows = [
        HostRow(
            segment.tokens,
            [0] * segment.prompt_length + (segment.loss_mask if valid else [0] * segment.response_length),
            [0.0] * segment.prompt_length + segment.log_probs,
        )
        for segment in trajectory.segments
    ]
    return HostEpisode(task, engine.turns, rows, trajectory.reward if valid else None, trajectory.stop)

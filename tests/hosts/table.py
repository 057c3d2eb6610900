"""The table of Envs and hosts: is an episode in the host the same episode as in agentrl?

    .ci/hosts.sh FOLDER                      # installs the hosts
    python -m tests.hosts.table FOLDER       # 200 scripted episodes of each Env in each host; an hour on two cores
    python -m tests.hosts.table FOLDER --host trl --env weather --episodes 40

Each episode of a host is played again by `run_episode`. A difference, or a refusal, must have a name in NAMES: the part
of an episode that the host cannot hold. The command fails for a difference without a name.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from inspect import isasyncgen
from itertools import chain, permutations
from pathlib import Path
from typing import Any

from agentrl import EnvFactory, run_episode
from agentrl.chat.client import ScriptedSpeaker
from agentrl.chat.engine import ChatEngine
from agentrl.errors import BugError, ConfigError, TemplateError
from agentrl.hosts.equality import differences
from agentrl.hosts.turned import HostedEnv
from agentrl.models import load_tokenizer
from agentrl.render import load_renderer
from tests.hosts.cases import CASES, Case
from tests.hosts.hosting import spoken

IN_TOKENS = ("train", "trl", "tinker", "verl")
IN_MESSAGES = ("verifiers", "openenv")
HOSTS = (*IN_TOKENS, *IN_MESSAGES)
NAMES: Sequence[tuple[str, str, str, str]] = (
    ("train", "", "has seats", "seats play in train, and the replay has one policy"),
    ("", "", "has seats", "seats"),
    ("", "", "images", "images"),
    ("", "", "thinking: strip|several sequences", "several sequences"),
    ("tinker", "", "has stop strings", "stop strings"),
    ("openenv", "", "begins another conversation", "several conversations"),
    ("openenv|verifiers", "text without a template", "^conversation: ", "text without a template"),
    (
        "openenv|verifiers",
        "",
        "^conversation: differs at the last message after (max_tokens|turn_max_tokens|context_full)",
        "limits in tokens",
    ),
    ("verl", "", "^failure: the host has the reward 0", "a failure counts as 0"),
)
"""Patterns of hosts, of Envs, and of differences or refusals; then the name of the part that the host cannot hold."""
COLUMNS: Mapping[str, frozenset[str]] = {
    "reward": frozenset({"reward", "prompt", "turns"}),
    "ids": frozenset({"ids", "prompt", "turns", "rows"}),
    "mask": frozenset({"ids", "prompt", "turns", "rows", "mask"}),
    "log-probs": frozenset({"ids", "prompt", "turns", "rows", "mask", "log_probs"}),
    "failures": frozenset({"failure"}),
}
"""Column -> the differences with which an episode does not count in the column."""


@dataclass
class Line:
    """A line of the table: the episodes of an Env in a host."""

    host: str
    env: str
    episodes: int = 0
    turns: int = 0
    failed: int = 0
    """How many episodes failed in agentrl."""
    rewarded: int = 0
    """How many episodes have a reward that is not 0."""
    equal: dict[str, int] = field(default_factory=dict)
    """Column -> how many episodes are equal."""
    refused: str = ""
    named: dict[str, int] = field(default_factory=dict)
    unnamed: list[str] = field(default_factory=list)

    def count(self, differing: Sequence[str], columns: Sequence[str]) -> None:
        """Count an episode with the differences of these texts, each `name: detail`."""
        self.episodes += 1
        names = {text.partition(":")[0] for text in differing}
        for column in columns:
            self.equal[column] = self.equal.get(column, 0) + (not names & COLUMNS.get(column, {column}))
        for text in differing:
            self.note(text)

    def note(self, text: str) -> None:
        if (name := name_of(self, text)) is None:
            self.unnamed.append(text)
        else:
            self.named[name] = self.named.get(name, 0) + 1


def name_of(line: Line, text: str) -> str | None:
    """The name of a difference or refusal. None if there is no name."""
    hits = (
        name
        for host, env, pattern, name in NAMES
        if re.search(host, line.host) and re.search(env, line.env) and re.search(pattern, text)
    )
    return next(hits, None)


async def line_of(host: str, name: str, episodes: int) -> Line:
    """Play an Env in a host, and compare each episode."""
    case, line = CASES[name], Line(host, name)
    compare = in_tokens if host in IN_TOKENS else in_messages
    try:
        await compare(line, case, episodes)
    except (ConfigError, TemplateError, BugError, RuntimeError) as error:
        line.refused = str(error).splitlines()[0]
        line.note(line.refused)
    return line


async def in_tokens(line: Line, case: Case, episodes: int) -> None:
    renderer = case.renderer()
    hosted = HostedEnv(case.env, **case.all_settings())
    played = import_module(f"tests.hosts.playing.{line.host}").episodes(case, episodes, renderer)
    options = hosted.config.options()
    async with EnvFactory(case.env, hosted.config.env_config) as envs:
        async for episode in _each(played):
            if line.host in ("trl", "verl") and not episode.turns:  # the host has a row, with no token of the episode
                assert not any(episode.rows[0].loss_mask)
                episode = replace(episode, rows=None)
            found = await differences(episode, envs.make(), renderer, options=options)
            line.turns += len(episode.turns)
            line.failed += episode.reward is None
            line.rewarded += bool(episode.reward)
            line.count([*map(str, found)], [*COLUMNS])


async def in_messages(line: Line, case: Case, episodes: int) -> None:
    renderer = load_renderer(load_tokenizer("tiny"))
    hosted = HostedEnv(case.env, **case.all_settings())
    tasks, options = hosted.by_id, hosted.config.options()
    module = import_module(f"tests.hosts.playing.{line.host}")
    async with EnvFactory(case.env, hosted.config.env_config) as envs:
        async for task_id, seed, conversations, reward, failure in module.conversations(case, episodes):
            engine = ChatEngine(ScriptedSpeaker(spoken(case.reply, seed)), renderer)
            ours = await run_episode(envs.make(), tasks[task_id], engine=engine, renderer=renderer, options=options)
            words = [module.plain(message) for message in ours.messages[: len(ours.messages) - ours.unread]]
            line.turns += ours.turn_count
            line.failed += not ours.is_valid
            line.rewarded += bool(ours.reward)
            differing = _of_messages(ours, words, conversations, reward, failure)
            line.count(differing, ["reward", "conversation", "failures"])


def _of_messages(ours: Any, words: Any, conversations: Any, reward: float | None, failure: str) -> list[str]:
    if not ours.is_valid:
        cause = ours.failure.error.partition(": ")[2] if ours.failure else str(ours.stop)
        return (
            []
            if reward is None and cause in failure
            else [f"failure: the host has {reward} {failure!r:.200}, not {cause}"]
        )
    if reward is None:
        return [f"failure: the host failed: {failure!r:.300}"]
    texts = []
    orders = ([*chain(*order)] for order in permutations(conversations))  # agentrl's main conversation is the last
    if words not in orders:
        messages = [*chain(*conversations)]
        place = next((i for i, (a, b) in enumerate(zip(messages, words, strict=False)) if a != b), -1)
        which = f"the last message after {ours.stop}" if place == len(words) - 1 else f"message {place}"
        texts.append(f"conversation: differs at {which}: {messages[-2:]!r:.300} and {words[-2:]!r:.300}")
    if reward != (ours.reward or 0.0):
        texts.append(f"reward: the host has {reward}, and agentrl {ours.reward}")
    return texts


async def _each(played: Any) -> AsyncIterator[Any]:
    """The items of an async generator, or of a coroutine's list."""
    if isasyncgen(played):
        async for item in played:
            yield item
        return
    for item in await played:
        yield item


def shown(lines: Sequence[Line]) -> str:
    """The table as text."""
    rows = [
        "| Env | host | episodes | turns | failed | reward equal | ids | mask | log-probs 1e-5 | conversation "
        "| failures apart | named differences |",
        "|" + "---|" * 12,
    ]
    for line in lines:
        cells = [line.env, line.host, line.episodes, line.turns, line.failed]
        cells += [
            line.equal.get(column, "") if line.episodes else ""
            for column in ("reward", "ids", "mask", "log-probs", "conversation", "failures")
        ]
        names = [f"{name} ({'refused' if line.refused else count})" for name, count in line.named.items()]
        cells.append("; ".join(names + [f"WITHOUT A NAME: {text:.200}" for text in line.unnamed[:2]]))
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


def play(host: str, envs: Sequence[str], episodes: int) -> None:
    """Play a host in this process, and print each line as JSON."""
    logging.disable(logging.ERROR)
    for name in envs:
        line = asyncio.run(line_of(host, name, episodes))
        print("LINE", json.dumps(asdict(line)), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of .ci/hosts.sh")
    parser.add_argument("--host", choices=HOSTS, action="append")
    parser.add_argument("--env", choices=CASES, action="append")
    parser.add_argument("--episodes", type=int, default=200, help="a multiple of 40, or less than 40")
    parser.add_argument("--play", action="store_true", help="the host is installed beside this interpreter")
    args = parser.parse_args()
    hosts, envs, lines = args.host or HOSTS, args.env or [*CASES], list[Line]()
    if args.play:
        play(hosts[0], envs, args.episodes)
        return 0
    for host in hosts:
        python = sys.executable if host == "train" else str(args.folder / host / "bin" / "python")
        command = [python, "-m", "tests.hosts.table", str(args.folder), "--play", "--host", host]
        command += [word for name in envs for word in ("--env", name)] + ["--episodes", str(args.episodes)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            for text in running.stdout:
                if text.startswith("LINE "):
                    lines.append(Line(**json.loads(text[5:])))
                    print(f"{host}: {lines[-1].env}", file=sys.stderr, flush=True)
        if running.returncode:
            raise SystemExit(f"{host} ended with {running.returncode}")
    print(shown(lines))
    total = Counter[str]()
    for line in lines:
        total.update(episodes=line.episodes, turns=line.turns, failed=line.failed, unnamed=len(line.unnamed))
    print(dict(total))
    return 1 if total["unnamed"] else 0


if __name__ == "__main__":
    sys.exit(main())

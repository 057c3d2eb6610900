"""All checks of an Env, in order. Each play is watched for leaks and for blocking the event loop."""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil

from agentrl._util.findings import Report
from agentrl.check.blocking import Watchdog, sleeping_calls
from agentrl.check.cancelling import StuckError, cancellation
from agentrl.check.constants import constants
from agentrl.check.fresh import fresh_process
from agentrl.check.fuzzing import explored, fuzzing
from agentrl.check.interleaving import interleaved
from agentrl.check.leaks import LeakTracker, sandboxes_held
from agentrl.check.lifecycle import lifecycle
from agentrl.check.own_tasks import own_tasks
from agentrl.check.places import AuthorCode
from agentrl.check.players import failed, players
from agentrl.check.playing import EnvUnderTest, PlayedEpisode, Player, by, play, recording, saying
from agentrl.check.prompts import ResetReads, for_labels, prompts, watched
from agentrl.check.repeating import repeat
from agentrl.check.resuming import resuming
from agentrl.check.schemas import schemas
from agentrl.check.scoring import scoring
from agentrl.check.warned import WarningCollector
from agentrl.engine.scripted import Turn
from agentrl.env.env import Env
from agentrl.env.factory import EnvFactory
from agentrl.errors import ConfigError, did_you_mean
from agentrl.render.base import Renderer
from agentrl.types import JSON, Limits, Task

CHECKS = (
    "tasks",
    "lifecycle",
    "schemas",
    "prompt",
    "players",
    "state",
    "determinism",
    "leaks",
    "cancellation",
    "resuming",
    "reward",
    "robustness",
    "sizes",
    "blocking",
)
_TURNS = 12
_SHARE_OF_EPISODE = 20
"""An Env whose episodes take more than 1/20 of the time is checked with a single task and a single script."""
_SHARE_OF_OTHERS = 0.25
"""The share of `seconds` for the first observations of further tasks."""


@dataclass(frozen=True, kw_only=True)
class CheckInputs:
    """The Env and the settings of a check."""

    env: str | type[Env]
    tasks: Sequence[Task]
    renderer: Renderer
    config: Mapping[str, JSON] = field(default_factory=dict)
    gold: Player | None = None
    noop: Player | None = None
    limits: Limits = field(default_factory=lambda: Limits(close_s=10.0))
    only: Sequence[str] = ()
    """Names from CHECKS, to be run alone; all checks if empty."""
    process: bool = True
    """Whether to play in a separate process, too."""
    seconds: float = 20.0
    """Seconds for all cancelled plays of a script. Other time limits are multiples of these seconds."""
    others: Sequence[Task] = ()
    """Further tasks. Only their first prompt is read."""
    of: str = ""
    """The tasks from which `tasks` were chosen, in words, such as "6 held-out and 18 training tasks"."""
    begins: Callable[[str], object] = lambda name: None
    """A function that is called with the name of a check when the check begins."""


async def check(inputs: CheckInputs) -> Report:
    """Check an Env. Raises ConfigError if the Env cannot be made, InfraError if `share` raises InfraError."""
    for name in inputs.only:
        if name not in CHECKS:
            raise ConfigError(f"only: there is no check {name!r}{did_you_mean(name, CHECKS, '; the checks are {}')}")
    envs = EnvFactory(inputs.env, inputs.config)
    report, author = Report(), AuthorCode(envs.cls)
    path = inputs.env if isinstance(inputs.env, str) else ""
    limits = replace(inputs.limits, turns=min(inputs.limits.turns, _TURNS))
    subject = EnvUnderTest(path, envs, inputs.tasks, inputs.renderer, limits, author, report, inputs.gold, inputs.noop)
    subject.patience_s = inputs.seconds
    ledger = LeakTracker(author, sandboxes=lambda: sandboxes_held(envs.shared))
    with (
        _quiet(),
        WarningCollector(subject) as warned,
        Watchdog(author, lambda: subject.plays) as dog,
        ledger.watching(),
    ):
        opened, began = ledger.look(), time.monotonic()
        inputs.begins("share")
        async with envs:
            subject.share_s = time.monotonic() - began
            suite = _Suite(subject, ledger, inputs)
            await suite.run()
            replayed = subject.plays
            if dog.suspects():
                await suite.replay()
        leaks = await ledger.leaks(opened)
        await ledger.clear(leaks)
        warned.report()
    dog.report(report, replayed)
    report.sort()
    return report


class _Suite:
    """An Env under check, with the watchers for leaks and blocking."""

    def __init__(self, subject: EnvUnderTest, ledger: LeakTracker, inputs: CheckInputs) -> None:
        self.subject, self.ledger, self.inputs = subject, ledger, inputs
        self._scripts: list[list[Turn]] = []

    async def replay(self) -> None:
        """Replay the scripts to confirm lines that seem to block, as a busy machine makes any line slow."""
        self.inputs.begins("blocking, again")
        for script in self._scripts:
            await play(self.subject, self.subject.tasks[0], saying(script))

    async def run(self) -> None:
        subject, tasks = self.subject, self.subject.tasks
        if self._wants("tasks"):
            self.inputs.begins("tasks")
            own_tasks(subject)
        first = await self._first_plays()
        if first is None:
            return
        tools = first[0].trajectory.tools
        if self._wants("schemas"):
            schemas(subject, tools)
        if self._wants("blocking"):
            sleeping_calls(subject.author, subject.report)
            subject.report.checked["blocking"] = "in every play"
        if subject.slow:
            needs = ceil(subject.seconds * _SHARE_OF_EPISODE) + 1
            subject.report.skip(
                "a part of each",
                f"one task and one script only: an episode takes {subject.seconds:.1f} s, and may take "
                f"{self._slow_s:g} s; `--seconds {needs}` checks all",
            )
        if self._wants("players"):
            self.inputs.begins("players")
            await (self._play_seats() if subject.cls.seats else self._judge_players())
        task, plain = tasks[0], explored(first[0].trajectory)
        scripts = [[*turns] for turns in (subject.scripts.get(task.id), plain) if turns]
        self._scripts = scripts = scripts[:1] if subject.slow else scripts
        await self._of_scripts(task, scripts)
        if self._wants("robustness", "sizes") and not subject.is_agent:
            self.inputs.begins("robustness")
            subject.report.checked["robustness"] = await fuzzing(subject, task, tools)
        elif subject.is_agent:
            subject.report.skip("robustness", "an agent takes its turns by itself; its tools are its own")
        if self._wants("cancellation"):  # the last one, as it may leave a lock that is never released
            self.inputs.begins("cancellation")
            await self._cancelled(task, scripts)

    async def _judge_players(self) -> None:
        subject = self.subject
        await players(subject, subject.tasks[:1] if subject.slow else subject.tasks, self.inputs.of)
        if not subject.slow:
            self.inputs.begins("constant answers")
            await constants(subject, self.inputs.others, self.inputs.seconds)

    async def _play_seats(self) -> None:
        """Store the gold player's turns. The reward is not judged, as the seats play against each other."""
        subject, turns, task = self.subject, list[Turn](), self.subject.tasks[0]
        subject.report.skip("players", "the player has every seat, so that one of them may have to lose")
        if subject.gold is not None:
            await play(subject, task, recording(by(subject.gold), turns))
            subject.scripts[task.id] = turns

    async def _first_plays(self) -> list[PlayedEpisode] | None:
        """Play each task once. None if no task can be played."""
        subject, plays, reads = self.subject, list[PlayedEpisode](), ResetReads()
        self.inputs.begins("prompt")
        for task in subject.tasks:
            plays.append(await play(subject, watched(task), saying(()), turns=2, prepare=reads.attach))
            subject.seconds = min(subject.seconds or 1e9, plays[-1].seconds)
        subject.slow = subject.seconds > self._slow_s
        broken = [episode for episode in plays if failed(subject, episode)]
        if len(broken) == len(plays):
            subject.report.skip("everything else", "no task can be played")
            return None
        if self._wants("prompt"):
            whole = [episode for episode in plays if episode not in broken]
            prompts(subject, whole, reads, await self._other_prompts())
            subject.report.checked["prompt"] = f"{len(plays)} tasks"
        return [episode for episode in plays if episode not in broken]

    async def _other_prompts(self) -> list[PlayedEpisode]:
        """Play further tasks only up to the first observation, for a share of the time. Broken tasks are left out."""
        subject, plays = self.subject, list[PlayedEpisode]()
        until = time.monotonic() + self.inputs.seconds * _SHARE_OF_OTHERS
        for task in for_labels(self.inputs.others):
            if time.monotonic() > until:
                break
            played = await play(subject, task, saying(()), turns=1)
            plays += [played] if played.failure is None else []
        return plays

    async def _of_scripts(self, task: Task, scripts: Sequence[Sequence[Turn]]) -> None:
        subject, speak = self.subject, saying(scripts[0])
        for script in scripts:
            if self._wants("state", "determinism", "leaks", "blocking"):
                self.inputs.begins("state, determinism and leaks")
                await repeat(subject, self.ledger, script, task)
                for name in ("state", "determinism", "leaks"):
                    subject.report.checked[name] = "plays of one script, compared"
        if self._wants("lifecycle"):
            self.inputs.begins("lifecycle")
            await lifecycle(subject, task, speak)
        if self._wants("reward"):
            self.inputs.begins("reward")
            await scoring(subject, task, speak)
        for script in scripts if self._wants("state") else ():
            self.inputs.begins("state: episodes side by side")
            await self._beside(task, script)
        for script in scripts:
            if self._wants("resuming"):
                self.inputs.begins("resuming")
                subject.report.checked["resuming"] = await resuming(subject, task, script)
        if self._wants("determinism", "resuming") and self.inputs.process:
            self.inputs.begins("determinism in a separate process")
            await fresh_process(subject, task, scripts[-1], self.inputs.config)

    async def _beside(self, task: Task, script: Sequence[Turn]) -> None:
        """Play two tasks at the same time, or a single task twice."""
        subject, other = self.subject, self.subject.tasks[-1]
        by_gold = script == subject.scripts.get(task.id)
        speaks = [saying(script), saying(subject.scripts.get(other.id, script) if by_gold else script)]
        if subject.is_agent:
            subject.report.skip(
                "state", "an agent sends its requests at any time, so episodes cannot be played in turns"
            )
        elif reason := await interleaved(subject, [task, other], speaks):
            subject.report.skip("state", f"episodes side by side: {reason}")

    async def _cancelled(self, task: Task, scripts: Sequence[Sequence[Turn]]) -> None:
        tried, waits, began = 0, 0, time.monotonic()
        for script in scripts:
            try:
                done, of = await cancellation(self.subject, self.ledger, task, saying(script))
            except StuckError:
                break
            tried, waits = tried + done, waits + of
        took = time.monotonic() - began
        self.subject.report.checked["cancellation"] = f"cancelled at {tried} waits"
        if tried < waits:
            self.subject.report.skip(
                "cancellation",
                f"{waits - tried} of {waits} waits: a script has {self.inputs.seconds:g} s for them; "
                f"`--seconds {ceil(took * waits / max(1, tried)) + 1}` gives it more",
            )

    @property
    def _slow_s(self) -> float:
        return self.inputs.seconds / _SHARE_OF_EPISODE

    def _wants(self, *names: str) -> bool:
        return not self.inputs.only or any(name in self.inputs.only for name in names)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log: an Env's mistakes are reported as findings."""
    logger = logging.getLogger("agentrl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    depth = sys.get_coroutine_origin_tracking_depth()
    sys.set_coroutine_origin_tracking_depth(10)
    gc.collect()
    unfrozen = gc.get_freeze_count() == 0
    gc.freeze()  # so that collecting garbage after each play is cheap
    try:
        yield
    finally:
        if unfrozen:
            gc.unfreeze()
        sys.set_coroutine_origin_tracking_depth(depth)
        logger.setLevel(level)

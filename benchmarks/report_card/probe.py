"""Play an environment by its suite's API, without agentrl's loop, and look for defects.

The players: random moves, no move at all, a refusal, a constant answer, the right answers, and texts that no game
expects.
"""

from __future__ import annotations

import random
import re
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1
from math import isfinite
from random import Random
from statistics import mean
from typing import Any, TypeAlias

from agentrl_envs.adapters.games import Game
from benchmarks.report_card.environment import Environment

Tell: TypeAlias = Callable[[str], object]
Speak: TypeAlias = Callable[[str], str | None]
"""A player: reads an observation, and returns its turn, or None to stop."""
STEP_S = 30
"""Seconds of a processor that a single call of an environment may take."""
FIRST = 2
"""The first call of a kind may take this many times longer: a suite may compile, or load data."""
STAGE_S = 2.0
"""Seconds of a processor after which a stage takes no further turn."""
NEARLY = 0.66
"""A constant answer that earns this share of the right answers' reward is reported."""
IDLE = 0.05
"""Doing nothing, or refusing, that earns this share is reported."""
FEW = 16
"""Of fewer questions than these, a constant answer may be right for most by chance."""
NOOP, REFUSAL = "I do nothing.", "I cannot help with that."
GENERAL = ("0", "1", "Yes", "No", "True", "False", "A", "[]", "[0]", "{}", " ")
RUBBISH = (
    *("", " ", "\n", "[]", "[ ]", "[[]]", "[x]", "[-1]", "[0]", "[99999]", "[1.5]", "[1 2 3 4 5 6 7 8 9]", "[a b c]"),
    *("{}", '{"action": null}', "null", "\\boxed{}", "\\boxed{x}", "\\boxed{-1}", "<answer></answer>", "é 漢字 \u202e"),
    *("\x00", "1" * 5000, "[" * 500, "x " * 20_000, "[1] [2] [3]", "1/0", "∞", "[٣]", "²", "[²]"),
)
_WITHIN = ("", "x", "-1", "999", "²", "1.5", " ", "a a a")


class HangError(BaseException):
    """A call took too long. No `except Exception` of an environment stops it."""


class PlayerError(BaseException):
    """The suite's random player raised, so the connection is wrong, not the environment."""


@dataclass(slots=True)
class Played:
    """An episode: the player's texts, and the environment's answers to them."""

    seed: int
    texts: list[str] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    done: bool = False
    cut: bool = False
    """Whether the time of the stage ended the episode."""

    @property
    def reward(self) -> float:
        return float(sum(self.rewards))


class Probe:
    """All checks of an environment. `findings` maps the kind of a defect to a sentence."""

    def __init__(self, environment: Environment, tell: Tell, turns: Iterable[tuple[int, Sequence[str]]] = ()) -> None:
        """Play these turns of seeds first, or else random ones."""
        self.environment, self._tell, self._turns = environment, tell, dict(turns)
        self.findings: dict[str, str] = {}
        self.figures: dict[str, Any] = {}
        self._golds: dict[int, Sequence[str]] = {}
        self.first: list[Played] = []
        self._opened: Game | None = None
        self._called = set[str]()
        """The kinds of calls that the environment has answered."""
        self._said: str | None = None
        """The last text of a player. None before the first: the environment cannot be opened."""

    def run(self) -> None:
        """Raises whatever the environment raises if it cannot be played at all."""
        self._play_first()
        if not self.first:  # the first call of all takes too long
            return
        self.figures["digest"] = digest(self.first)
        self.figures["random"] = round(mean(played.reward for played in self.first), 4)
        for name, stage in (
            ("repeated", self._repeated),
            ("together", self._together),
            ("right answers", self._right),
            ("constant", self._constant),
            ("rubbish", self._rubbish),
        ):
            with self._stage(name):
                stage()

    def digest(self) -> str:
        """A digest of the first random episodes. Raises whatever the environment raises."""
        self._play_first()
        return digest(self.first)

    def _play_first(self) -> None:
        with self._stage("random"):
            for seed in self._turns or self._seeds(4):
                try:
                    speak = saying(self._turns[seed]) if self._turns else self._random(seed)
                    self.first.append(self._play(seed, speak))
                except Exception as exc:
                    if self._said is None:
                        raise
                    self._raised(exc, self._said)
                if self._is_late():
                    break
            if not self.first:
                self.first.append(self._play(1, saying([NOOP])))

    def _seeds(self, most: int = 1 << 30) -> range:
        return range(1, 1 + min(most, self.environment.seeds))

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self._tell(name)
        self._until = time.process_time() + STAGE_S
        try:
            yield
        except HangError:
            self._find("hang", f"a call takes more than {STEP_S} s ({name})")

    def _is_late(self) -> bool:
        return time.process_time() > self._until

    def _find(self, kind: str, sentence: str) -> None:
        self.findings.setdefault(kind, " ".join(sentence.split())[:300])

    def _random(self, seed: int) -> Speak:
        rng = Random(f"player {seed}")

        def speak(heard: str) -> str:
            try:
                return str(untouched(lambda: self.environment.move(heard, rng)))
            except Exception as exc:
                raise PlayerError(f"the random player raises {where(exc)}") from exc

        return speak

    def _play(self, seed: int, speak: Speak, game: Game | None = None) -> Played:
        game, played = game or self._open(), Played(seed)
        observed = self._timed("begin", lambda: game.begin(seed))
        played.answers.append(observed)
        while not played.done and len(played.texts) < self.environment.turns and not played.cut:
            if (text := speak(observed)) is None:
                break
            played.texts.append(text)
            observed = self._answer(game, played)
            played.cut = self._is_late()
        timed(game.close)
        return played

    def _open(self) -> Game:
        return self._timed("open", self.environment.open)

    def _timed(self, kind: str, call: Callable[[], Any]) -> Any:
        result = timed(call, 1 if kind in self._called else FIRST)
        self._called.add(kind)
        return result

    def _answer(self, game: Game, played: Played) -> str:
        text = self._said = played.texts[-1]
        turn = self._timed("answer", lambda: game.answer(text))
        self._number(turn.reward, text)
        played.answers.append(turn.text)
        played.rewards.append(0.0 if isinstance(turn.reward, str) else float(turn.reward or 0.0))
        played.done = turn.done
        if turn.done:
            self._in_range(played)
        return turn.text

    def _number(self, reward: Any, text: str) -> None:
        if isinstance(reward, str) or not hasattr(reward, "__float__"):
            self._find("reward", f"the reward is {reward!r:.60}, not a number, after {text!r:.60}")
        elif not isfinite(float(reward)):
            self._find("reward", f"the reward is {reward!r} after {text!r:.60}")

    def _in_range(self, played: Played) -> None:
        """Report an episode's reward outside the suite's range."""
        environment = self.environment
        if not environment.least - 1e-6 <= played.reward <= environment.most + 1e-6:
            bounds = f"{environment.least:g} to {environment.most:g}"
            self._find("range", f"the reward {played.reward:g} after {played.texts[-1]!r:.60} is not in {bounds}")

    def _repeated(self) -> None:
        """The same seed and turns, in a new game, with other global random numbers; then in the same game again."""
        if any(self._drifts(first, [1234 + first.seed]) for first in self.first[:2]) or self._is_late():
            return
        game = self._open()
        first = self.first[0]
        self._play(first.seed, saying(first.texts), game)
        reset = self._play(first.seed, saying(first.texts), game)
        if differ(first, reset) and not self._drifts(first):
            self._find("reset", f"a second reset of the same game gives another episode: {shown(first, reset)}")

    def _drifts(self, first: Played, seeds: Iterable[int] = range(8)) -> bool:
        """Report an episode that differs in a new game, alone, with other global random numbers."""
        for seed in seeds:
            with global_seed(seed):
                again = self._play(first.seed, saying(first.texts))
            if differ(first, again):
                self._find("not deterministic", f"seed {first.seed} and the same turns differ: {shown(first, again)}")
                return True
        return False

    def _together(self) -> None:
        """Two games whose turns alternate."""
        if len(self.first) < 2 or "not deterministic" in self.findings or self.environment.turns == 1:
            return
        alone = self.first[:2]
        for separate in (False, True):
            both = self._alternated(alone, separate)
            differing = [(a, b) for a, b in zip(alone, both, strict=True) if differ(a, b)]
            if not differing:
                return
            kind = "shared state" if separate else "global random"
            self.findings.pop("global random", None)
            if any(self._drifts(first) for first, _ in differing):
                return
            self._find(kind, f"two games at once change each other: {shown(*differing[0])}")

    def _alternated(self, alone: Sequence[Played], separate: bool) -> list[Played]:
        games, both = [self._open() for _ in alone], [Played(played.seed) for played in alone]
        states: list[Any] = [None for _ in alone]

        def take(place: int, call: Callable[[], Any]) -> Any:
            if not separate:
                return timed(call)
            with global_states(states, place):
                return timed(call)

        for place, game in enumerate(games):
            both[place].answers.append(take(place, lambda game=game, place=place: game.begin(both[place].seed)))
        for turn in range(max(len(played.texts) for played in alone)):
            for place, game in enumerate(games):
                if turn < len(alone[place].texts) and not both[place].done:
                    both[place].texts.append(alone[place].texts[turn])
                    take(place, lambda game=game, place=place: self._answer(game, both[place]))
        return both

    def _right(self) -> None:
        gold = self.environment.gold
        if gold is None:
            return
        rewards, unpaid = list[float](), list[str]()
        for seed in self._seeds():
            if self._is_late():
                break
            texts = untouched(lambda seed=seed: gold(seed))
            if not texts:
                continue
            self._golds[seed] = texts
            try:
                reward = self._play(seed, saying(texts), self._question()).reward
            except Exception as exc:  # noqa: BLE001 - any code may run in there
                self._find("right answer raises", f"{texts[-1]!r:.80} raises {where(exc)}")
                continue
            rewards.append(reward)
            if reward < self.environment.most - 1e-6:
                unpaid.append(f"{texts[-1]!r:.60} earns {reward:g} (seed {seed})")
        if rewards:
            self.figures |= {"gold": round(mean(rewards), 4), "gold_n": len(rewards), "unpaid": len(unpaid)}
        if unpaid:
            self._find(
                "right answer unpaid",
                f"{len(unpaid)} of {len(rewards)} right answers are not paid in full: {unpaid[0]}",
            )

    def _constant(self) -> None:
        """The mean reward of each player that never reads."""
        environment = self.environment
        if environment.reads_text and self._is_alone():
            for name, text in (("noop", NOOP), ("refusal", REFUSAL)):
                self.figures[name] = self._mean_of(text)
        best, earned = "", float("-inf")
        is_known = "gold" in self.figures or isfinite(min(environment.solved, environment.most))
        for text in self._candidates() if is_known else ():
            reward = self._mean_of(text)
            if reward is not None and reward > earned:
                best, earned = text, reward
        if best or earned > float("-inf"):
            self.figures["constant"] = [best[:80], earned]
        self._judge(best, earned)

    def _is_alone(self) -> bool:
        """Whether the game has one player. A player of all seats wins if another seat loses."""
        game = self._open()
        timed(lambda: game.begin(1))
        return int(getattr(game, "players", 1)) == 1

    def _question(self) -> Game | None:
        """The same game for each play of a question: many data sets are slow to open."""
        if self._opened is None and self.environment.turns == 1:
            self._opened = self._open()
        return self._opened

    def _candidates(self) -> list[str]:
        answers = Counter(texts[-1] for texts in self._golds.values())
        common = [text for text, _ in answers.most_common(3)]
        few = [" ".join(answers)] if 1 < len(answers) <= 4 else []
        others = [*answers][3:9]
        general = GENERAL if self._golds else ()
        return [*dict.fromkeys((*self.environment.constants, *common, *few, *others, *general))]

    def _mean_of(self, text: str, seeds: Iterable[int] = ()) -> float | None:
        rewards = []
        for seed in seeds or self._golds or self._seeds():
            if self._is_late():
                break
            try:
                rewards.append(self._play(seed, lambda heard: text, self._question()).reward)
            except Exception as exc:  # noqa: BLE001 - any code may run in there
                self._raised(exc, text)
                rewards.append(0.0)
        return round(mean(rewards), 4) if rewards else None

    def _judge(self, best: str, earned: float) -> None:
        figures, environment = self.figures, self.environment
        gold = figures.get("gold", min(environment.solved, environment.most))
        for name in ("noop", "refusal"):
            reward = figures.get(name)
            if reward is not None and reward > 0 and (not isfinite(gold) or reward >= IDLE * gold):
                self._find("idle paid", f"{NOOP if name == 'noop' else REFUSAL!r} earns {reward:g} on average")
        if isfinite(gold) and gold > 0 and earned >= NEARLY * gold and self._stays(best, NEARLY * gold):
            self._find(
                "constant paid",
                f"the constant answer {best!r:.60} earns {earned:g} on average, the right answers {gold:g}",
            )

    def _stays(self, text: str, least: float) -> bool:
        """Whether a constant answer is paid for further seeds, too: the best of many may be right by chance."""
        if 0 < self.figures.get("gold_n", 0) < FEW:
            return False
        self._until = time.process_time() + STAGE_S
        fresh = self._mean_of(text, range(1001, 1065))
        return fresh is None or fresh >= least

    def _rubbish(self) -> None:
        """Texts that no game expects, at the first turn and in the middle."""
        if not self.environment.reads_text:
            return
        for text in self._texts():
            for before in (0, 2):
                if self._is_late():
                    return
                turns = [*self.first[0].texts[:before], text, text]
                if len(turns) - 1 > self.environment.turns and before:
                    continue
                try:
                    self._play(1, saying(turns))
                except HangError:
                    self._find("hang", f"the text {text!r:.60} takes more than {STEP_S} s")
                    return
                except Exception as exc:  # noqa: BLE001 - any code may run in there
                    self._raised(exc, text)

    def _raised(self, exc: Exception, text: str) -> None:
        self._find(f"crash {type(exc).__name__}", f"the text {text!r:.60} raises {where(exc)}")

    def _texts(self) -> list[str]:
        forms = [*dict.fromkeys(re.findall(r"\[[^\[\]\n]{1,24}\]", str(self.first[0].answers[0])))][:3]
        filled = [f"[{within}]" for within in _WITHIN]
        words = [re.sub(r"\d+|(?<=\s)\w+(?=\])", within, form) for form in forms for within in _WITHIN if within]
        return [*dict.fromkeys((*RUBBISH, *filled, *words))]


def where(exc: BaseException) -> str:
    """The exception without the folders of this machine, and the line that raised the exception."""
    last = traceback.extract_tb(exc.__traceback__)[-1]
    place = "/".join(last.filename.split("/")[-3:])
    message = re.sub(r"/\S*/(?:site-packages|lib/python[\d.]+)/", "", str(exc))
    return f"{type(exc).__name__}: {message[:100]} ({place}:{last.lineno})"


def digest(episodes: Sequence[Played]) -> str:
    """A short text that differs if the episodes differ. "" if the time of an episode was over."""
    if any(played.cut for played in episodes):
        return ""
    return sha1(repr([(played.answers, played.rewards) for played in episodes]).encode()).hexdigest()[:12]


def differ(first: Played, second: Played) -> bool:
    """Whether two plays of the same turns differ, up to the end of the shorter of them if its time was over."""
    if first.cut or second.cut:
        turns = min(len(first.answers), len(second.answers))
        return first.answers[:turns] != second.answers[:turns]
    return (first.answers, repr(first.rewards), first.done) != (second.answers, repr(second.rewards), second.done)


def shown(first: Played, second: Played) -> str:
    for turn, (one, other) in enumerate(zip(first.answers, second.answers, strict=False)):
        if one != other:
            one, other = str(one), str(other)
            at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
            return f"turn {turn}: {one[max(0, at - 10) : at + 40]!r} and {other[max(0, at - 10) : at + 40]!r}"
    return f"rewards {first.rewards[-3:]} and {second.rewards[-3:]}"


def saying(texts: Iterable[str]) -> Speak:
    """A player that takes these turns, then stops."""
    rest = iter(texts)
    return lambda heard: next(rest, None)


def timed(call: Callable[[], Any], times: int = 1) -> Any:
    """Call with a limit of some times STEP_S. Raises HangError."""

    def ring(*_: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, times * STEP_S)  # the time of a processor: a busy machine makes nothing hang
    try:
        return call()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def _states() -> tuple[Any, Any]:
    numpy = sys.modules.get("numpy")
    return random.getstate(), numpy.random.get_state() if numpy else None


def _restore(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    if states[1] is not None:
        sys.modules["numpy"].random.set_state(states[1])


def untouched(call: Callable[[], Any]) -> Any:
    """Call, and restore the global random states afterwards."""
    states = _states()
    try:
        return call()
    finally:
        _restore(states)


@contextmanager
def global_seed(seed: int) -> Iterator[None]:
    states = _states()
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    try:
        yield
    finally:
        _restore(states)


@contextmanager
def global_states(states: list[Any], place: int) -> Iterator[None]:
    """The global random states of a game of its own."""
    if states[place] is not None:
        _restore(states[place])
    try:
        yield
    finally:
        states[place] = _states()

"""A language model that ranks the episodes of a group: a reward for tasks that no program can check."""

from __future__ import annotations

import hashlib
import logging
import math
import random
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from statistics import fmean
from typing import Any, TypeAlias

from agentrl._util.content import content
from agentrl.chat.client import AsksMessages, ChatModel, PrefersAnswers
from agentrl.errors import ConfigError, RequestError
from agentrl.rewards.combine import GroupGrader
from agentrl.rewards.grader import Grade
from agentrl.rewards.ranking import (
    attempt_text,
    judge_prompt,
    kendall_tau,
    pair_prompt,
    plain,
    read_ranking,
    task_text,
)
from agentrl.trajectory.model_output import ModelOutput
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, Reward

log = logging.getLogger("agentrl")

_TRIES = 2
_KEPT = 4096
"""The most verdicts in the cache."""
_Wins: TypeAlias = Mapping[tuple[str, str], float]
"""(text A, text B) -> the probability that A is better, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The judge's verdict on the different texts of a group."""

    wins: _Wins | None
    """The results of the comparisons. None if the judge gave no usable response."""
    tokens: float = 0.0
    agreement: float | None = None
    """Kendall's tau of two verdicts on the same texts in different orders. None if there was only a single verdict."""
    unusable: float = 0.0
    """The share of the judge's responses that were not usable, if the judge compared pairs."""


class RelativeJudge(GroupGrader):
    """Rewards from 0 (worst) to 1 (best) by a model that ranks the episodes of a group, as in ART's RULER.

    The prompt holds the task, the label if the task has a label, and the episodes in random order. Equal episodes
    appear once and earn the same reward. Without `base_url` and `model`, the model in training is the judge. After a
    response without a ranking the judge is asked a second time, with the episodes in a different order. If the second
    response has no ranking, all episodes of the group get 0.5, so the group teaches nothing. Verdicts are cached by the
    content of the prompt.

    With `pairs`, the judge compares every two different episodes in both orders, and the log-odds of the two possible
    answers are read (pairwise ranking prompting, arXiv 2306.17563). The mean over both orders cancels a preference for
    a position. The reward is the mean probability to win. This mode is for small models. No text is sampled, but a
    group of n episodes needs n * (n - 1) prompts.

    Parts of the reward: `judge_tokens` (the episode's share), `judge_unusable` (the share of questions without a usable
    response), and `judge_agreement` in groups that were judged twice (Kendall's tau of both rankings). `Env.score` is
    still called: its value is the part `score`, and the reward of held-out episodes.
    """

    relative = True
    """Whether rewards of different groups cannot be compared. If so, held-out episodes are scored by `Env.score`."""

    def __init__(
        self,
        *,
        rubric: str = "Which attempt does best what the task asks? What counts is what it does, not what it claims.",
        base_url: str | None = None,
        model: str | None = None,
        pairs: bool = False,
        twice: float = 0.1,
        characters: int = 6000,
        key: str = "OPENAI_API_KEY",
        seconds: float = 120.0,
        concurrency: int = 32,
        retries: int = 3,
        options: Mapping[str, JSON] | None = None,
    ) -> None:
        """`twice` is the share of groups that are ranked in two orders; the rewards of such a group are the mean of
        both rankings. Pairs are always compared in both orders.

        `characters` bounds the text of an episode. `options` are added to the request: {"temperature": 0} by default.
        The API key is read from the environment variable `key`. Raises ConfigError.
        """
        if (base_url is None) != (model is None):
            raise ConfigError("RelativeJudge: give base_url and model, or neither: then the model in training judges")
        self.rubric, self.pairs, self.twice, self.characters = rubric, pairs, twice, characters
        self._settings: dict[str, Any] = {
            "key": key,
            "seconds": seconds,
            "concurrency": concurrency,
            "retries": retries,
            "options": {"temperature": 0, **(options or {})},
        }
        self.model: AsksMessages | PrefersAnswers | None = self._at(base_url, model) if base_url and model else None
        self._verdicts: OrderedDict[str, _Verdict] = OrderedDict()

    async def of_group(self, trajectories: Sequence[Trajectory], policy: Any = None) -> list[Grade]:
        return await self._graded([ModelOutput.of(trajectory) for trajectory in trajectories], self.model or policy)

    async def grade_group(self, group: Sequence[ModelOutput]) -> list[Grade]:
        return await self._graded(group, self.model)

    def __call__(self, *arguments: Any, **kwargs: Any) -> Awaitable[JSON]:
        if self.model is None and len(arguments) == 2 and getattr(arguments[0], "sglang_router_ip", None):
            self.model = self._at(
                f"http://{arguments[0].sglang_router_ip}:{arguments[0].sglang_router_port}/v1", "default"
            )
        return super().__call__(*arguments, **kwargs)

    def _at(self, base_url: str, model: str) -> ChatModel:
        return ChatModel(base_url=base_url, model=model, **self._settings)

    async def _graded(self, group: Sequence[ModelOutput], judge: Any) -> list[Grade]:
        if judge is None:
            raise ConfigError("RelativeJudge has no model to ask; give it base_url and model")
        texts = [attempt_text(output, self.characters) for output in group]
        attempts = _Attempts(self.rubric, group[0], sorted(set(texts)))
        verdict = await self._verdict(attempts, judge)
        parts = {"judge_tokens": verdict.tokens / len(group), "judge_unusable": verdict.unusable}
        if verdict.agreement is not None:
            parts["judge_agreement"] = verdict.agreement
        return [Reward(reward, parts) for reward in _mean_wins(texts, verdict.wins)]

    async def _verdict(self, attempts: _Attempts, judge: Any) -> _Verdict:
        """The verdict on the texts. A cached verdict has no cost in tokens."""
        if len(attempts.texts) < 2:
            return _Verdict({})
        if (cached := self._verdicts.get(attempts.key)) is not None:
            return _Verdict(cached.wins)
        verdict = await (self._compare(attempts, judge) if self.pairs else self._rank(attempts, judge))
        if verdict.wins is None:
            log.warning("the judge ranked no episode of a group: all of them get the reward 0.5")
        elif not verdict.unusable:
            self._verdicts[attempts.key] = verdict
            while len(self._verdicts) > _KEPT:
                self._verdicts.popitem(last=False)
        return verdict

    async def _rank(self, attempts: _Attempts, judge: AsksMessages) -> _Verdict:
        """Ask the judge for rankings, each time with the texts in a new order, until enough rankings are usable."""
        needed = 1 + (random.Random(f"{attempts.key}/twice").random() < self.twice)
        rankings, tokens = list[_Wins](), 0.0
        for attempt in range(_TRIES * needed):
            rewards, cost = await self._rank_once(attempts, f"{attempts.key}/{attempt}", judge)
            tokens += cost
            rankings += [] if rewards is None else [_wins_by(rewards)]
            if len(rankings) == needed:
                break
        if not rankings:
            return _Verdict(None, tokens, unusable=1.0)
        agreement = _agreement(attempts.texts, rankings[0], rankings[-1]) if len(rankings) > 1 else None
        return _Verdict({pair: fmean(wins[pair] for wins in rankings) for pair in rankings[0]}, tokens, agreement)

    async def _rank_once(
        self, attempts: _Attempts, seed: str, judge: AsksMessages
    ) -> tuple[Mapping[str, float] | None, float]:
        """Ask the judge for a ranking. Returns text -> reward, or None for a response without a ranking, and the number
        of tokens."""
        order = random.Random(f"{seed}/order").sample(attempts.texts, len(attempts.texts))
        names = [f"E{number}" for number in range(1, len(order) + 1)]
        example = random.Random(f"{seed}/example").sample(names, len(names))
        prompt = judge_prompt(order, names, example=example, **attempts.around(seed))
        try:
            answer = await judge.ask([{"role": "user", "content": prompt}])
        except RequestError as exc:  # refused, or longer than its context
            log.warning("the judge refuses to rank a group: %s", exc)
            return None, 0.0
        if answer.flaw:
            log.warning("the judge ranks no group: its answer %s", answer.flaw)
        rewards = read_ranking(answer.answer, names)
        return rewards and {text: rewards[name] for text, name in zip(order, names, strict=True)}, _cost(answer.usage)

    async def _compare(self, attempts: _Attempts, judge: PrefersAnswers) -> _Verdict:
        """Let the judge compare every two texts in both orders. A pair without two usable responses is a draw."""
        orders = list(permutations(attempts.texts, 2))
        prompts = [pair_prompt(pair, **attempts.around(attempts.key)) for pair in orders]
        preferences = await judge.prefer([[{"role": "user", "content": prompt}] for prompt in prompts], "A", "B")
        if refusals := [preference.refusal for preference in preferences if preference.refusal]:
            log.warning("the judge refuses %d of %d comparisons: %s", len(refusals), len(preferences), refusals[0])
        tokens = sum(_cost(preference.usage) for preference in preferences)
        answers = zip(orders, (preference.log_odds for preference in preferences), strict=True)
        return _verdict_of(attempts, {pair: log_odds for pair, log_odds in answers if log_odds is not None}, tokens)


@dataclass(frozen=True, slots=True)
class _Attempts:
    """The different texts of a group's episodes, and the other content of the judge's prompts."""

    rubric: str
    output: ModelOutput
    """The output of any episode of the group. The prompt and the label describe the task."""
    texts: Sequence[str]
    """The different texts, in alphabetical order."""

    @property
    def key(self) -> str:
        parts = [self.rubric, self.output.prompt, self.output.label, list(self.texts)]
        return hashlib.sha256(content(parts).encode()).hexdigest()

    def around(self, seed: str) -> Mapping[str, str]:
        """The arguments of a prompt besides the texts. `seed` determines the mark that ends quotations."""
        return {
            "mark": hashlib.sha256(f"{seed}/mark".encode()).hexdigest()[:8],
            "rubric": self.rubric,
            "task": task_text(self.output.prompt),
            "reference": "" if self.output.label is None else plain(str(self.output.label)),
        }


def _verdict_of(attempts: _Attempts, odds: _Wins, tokens: float) -> _Verdict:
    """The verdict of comparisons of pairs. `odds` has the usable responses: (text A, text B) -> log-odds that A is
    better."""
    rng = random.Random(f"{attempts.key}/order")
    pairs = [pair if rng.random() < 0.5 else pair[::-1] for pair in combinations(attempts.texts, 2)]
    usable = [(a, b) for a, b in pairs if (a, b) in odds and (b, a) in odds]
    if not usable:
        return _Verdict(None, tokens, unusable=1.0)
    first = {(a, b): odds[a, b] for a, b in usable}
    second = {(a, b): -odds[b, a] for a, b in usable}
    both = {pair: (first[pair] + second[pair]) / 2 for pair in usable}
    agreement = _agreement(attempts.texts, _wins_of(first), _wins_of(second))
    return _Verdict(_wins_of(both), tokens, agreement, 1 - len(odds) / (2 * len(pairs)))


def _cost(usage: Mapping[str, float]) -> float:
    return sum(usage.get(name, 0) for name in ("prompt_tokens", "completion_tokens"))


def _wins_of(log_odds: _Wins) -> _Wins:
    """The probability to win of each text of a pair, from the log-odds of the first text."""
    sure = {pair: 1 / (1 + math.exp(-value)) for pair, value in log_odds.items()}
    return {**sure, **{(b, a): 1 - value for (a, b), value in sure.items()}}


def _wins_by(rewards: Mapping[str, float]) -> _Wins:
    """The results of a ranking: 1 for the better text of a pair, 0 for the worse, 0.5 for equal texts."""
    return {
        (a, b): ((rewards[a] > rewards[b]) - (rewards[a] < rewards[b]) + 1) / 2 for a, b in permutations(rewards, 2)
    }


def _agreement(texts: Sequence[str], first: _Wins, second: _Wins) -> float:
    return kendall_tau(_mean_wins(texts, first), _mean_wins(texts, second))


def _mean_wins(texts: Sequence[str], wins: _Wins | None) -> list[float]:
    """The reward of each episode: its mean probability to win against the other episodes. Episodes may share a text."""
    if wins is None or len(texts) < 2:
        return [0.5] * len(texts)
    counts = Counter(texts)
    earned = {
        text: (sum(count * wins.get((text, other), 0.5) for other, count in counts.items()) - 0.5) / (len(texts) - 1)
        for text in counts
    }
    return [earned[text] for text in texts]

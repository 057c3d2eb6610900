"""A language model that ranks the episodes of a group: a reward for tasks that no program can check."""

from __future__ import annotations

import hashlib
import logging
import random
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl._util.content import content
from agentrl.chat.client import AsksMessages, ChatModel
from agentrl.errors import ConfigError, RequestError
from agentrl.rewards.combine import GroupGrader
from agentrl.rewards.grader import Grade
from agentrl.rewards.ranking import attempt_text, judge_prompt, kendall_tau, plain, read_ranking, task_text
from agentrl.trajectory.model_output import ModelOutput
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, Reward

log = logging.getLogger("agentrl")

_TRIES = 2
_KEPT = 4096
"""Rankings that are kept."""


@dataclass(frozen=True, slots=True)
class _Ranking:
    """What a judge made of different texts: their rewards, or None if no answer could be used."""

    rewards: Mapping[str, float] | None
    tokens: float = 0.0
    agreement: float | None = None
    """Kendall's tau of two rankings of the same texts in different orders, if there were two."""


class RelativeJudge(GroupGrader):
    """Rewards from 0 (worst) to 1 (best) by a model that ranks the episodes of a group, as in ART's RULER.

    One prompt holds the task, its label if there is one, and the episodes in a random order. Equal episodes are shown
    once and earn the same. Without `base_url` and `model`, the model in training is the judge. An answer that holds no
    ranking is asked for once more, in another order; if that fails too, all episodes of the group get 0.5, so the group
    teaches nothing. Rankings are kept by the content of what was shown.

    Parts of the reward: `judge_tokens` (the episode's share), `judge_unusable` (1: there was no ranking), and in groups
    that were ranked twice `judge_agreement` (Kendall's tau of both). `Env.score` is still called: it is the part
    `score`, and the reward of held-out episodes.
    """

    relative = True
    """Scores of different groups cannot be compared, so held-out episodes are scored by `Env.score`."""

    def __init__(
        self,
        *,
        rubric: str = "Which attempt does best what the task asks? What counts is what it does, not what it claims.",
        base_url: str | None = None,
        model: str | None = None,
        twice: float = 0.1,
        characters: int = 6000,
        key: str = "OPENAI_API_KEY",
        seconds: float = 120.0,
        concurrency: int = 32,
        retries: int = 3,
        options: Mapping[str, JSON] | None = None,
    ) -> None:
        """`twice` is the share of groups that are ranked in two orders; their rewards are the mean of both.

        `characters` bounds the text of an episode. `options` are added to the request: {"temperature": 0} by default.
        The API key is read from the environment variable `key`. Raises ConfigError.
        """
        if (base_url is None) != (model is None):
            raise ConfigError("RelativeJudge: give base_url and model, or neither: then the model in training judges")
        self.rubric, self.twice, self.characters = rubric, twice, characters
        self._settings: dict[str, Any] = {
            "key": key,
            "seconds": seconds,
            "concurrency": concurrency,
            "retries": retries,
            "options": {"temperature": 0, **(options or {})},
        }
        self.model: AsksMessages | None = self._at(base_url, model) if base_url and model else None
        self._kept: OrderedDict[str, _Ranking] = OrderedDict()

    async def of_group(self, trajectories: Sequence[Trajectory], policy: AsksMessages | None = None) -> list[Grade]:
        return await self._graded([ModelOutput.of(one) for one in trajectories], self.model or policy)

    async def grade_group(self, group: Sequence[ModelOutput]) -> list[Grade]:
        return await self._graded(group, self.model)

    def __call__(self, *given: Any, **kwargs: Any) -> Awaitable[JSON]:
        if self.model is None and len(given) == 2 and getattr(given[0], "sglang_router_ip", None):
            self.model = self._at(f"http://{given[0].sglang_router_ip}:{given[0].sglang_router_port}/v1", "default")
        return super().__call__(*given, **kwargs)

    def _at(self, base_url: str, model: str) -> ChatModel:
        return ChatModel(base_url=base_url, model=model, **self._settings)

    async def _graded(self, group: Sequence[ModelOutput], judge: AsksMessages | None) -> list[Grade]:
        if judge is None:
            raise ConfigError("RelativeJudge has no model to ask; give it base_url and model")
        texts = [attempt_text(one, self.characters) for one in group]
        shown = sorted(set(texts))
        key = hashlib.sha256(content([self.rubric, group[0].prompt, group[0].label, shown]).encode()).hexdigest()
        ranking = await self._ranked(key, shown, group[0], judge)
        parts = {"judge_tokens": ranking.tokens / len(group), "judge_unusable": float(ranking.rewards is None)}
        if ranking.agreement is not None:
            parts["judge_agreement"] = ranking.agreement
        rewards = _spread(texts, ranking.rewards)
        return [Reward(reward, parts) for reward in rewards]

    async def _ranked(self, key: str, shown: Sequence[str], one: ModelOutput, judge: AsksMessages) -> _Ranking:
        """The ranking of different texts. One that was kept has cost nothing."""
        if len(shown) < 2:
            return _Ranking(dict.fromkeys(shown, 0.5))
        if (kept := self._kept.get(key)) is not None:
            return _Ranking(kept.rewards)
        ranking = await self._ask(key, shown, one, judge)
        if ranking.rewards is not None:
            self._kept[key] = ranking
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return ranking

    async def _ask(self, key: str, shown: Sequence[str], one: ModelOutput, judge: AsksMessages) -> _Ranking:
        """Ask until as many rankings are there as are needed, each time in another order."""
        needed = 1 + (random.Random(f"{key}/twice").random() < self.twice)
        found, tokens = list[Mapping[str, float]](), 0.0
        for attempt in range(_TRIES * needed):
            rewards, cost = await self._ask_once(f"{key}/{attempt}", shown, one, judge)
            tokens += cost
            found += [rewards] if rewards is not None else []
            if len(found) == needed:
                break
        if not found:
            log.warning("the judge ranked no episode of a group: all of them get the reward 0.5")
            return _Ranking(None, tokens)
        mean = {text: sum(rewards[text] for rewards in found) / len(found) for text in shown}
        first, last = ([rewards[text] for text in shown] for rewards in (found[0], found[-1]))
        return _Ranking(mean, tokens, kendall_tau(first, last) if len(found) > 1 else None)

    async def _ask_once(
        self, seed: str, shown: Sequence[str], one: ModelOutput, judge: AsksMessages
    ) -> tuple[Mapping[str, float] | None, float]:
        """The reward of each text, or None for an answer without a ranking, and the tokens that it cost."""
        mark = hashlib.sha256(f"{seed}/mark".encode()).hexdigest()[:16]
        order = random.Random(f"{seed}/order").sample(list(shown), len(shown))
        names = [f"E{number}" for number in range(1, len(shown) + 1)]
        reference = "" if one.label is None else plain(str(one.label))
        prompt = judge_prompt(
            order,
            names,
            mark=mark,
            rubric=self.rubric,
            task=task_text(one.prompt),
            reference=reference,
            example=random.Random(f"{seed}/example").sample(names, len(names)),
        )
        try:
            answer = await judge.ask([{"role": "user", "content": prompt}])
        except RequestError as exc:  # refused, or longer than its context
            log.warning("the judge refuses to rank a group: %s", exc)
            return None, 0.0
        rewards = read_ranking(answer.message["content"], names)
        cost = sum(answer.usage.get(name, 0) for name in ("prompt_tokens", "completion_tokens"))
        return rewards and {text: rewards[name] for text, name in zip(order, names, strict=True)}, cost


def _spread(texts: Sequence[str], rewards: Mapping[str, float] | None) -> list[float]:
    """The reward of each episode, of which several may have one text: its rank among all of them, from 0 to 1."""
    if rewards is None or len(texts) < 2:
        return [0.5] * len(texts)
    at = Counter(rewards[text] for text in texts)
    below = {reward: sum(count for other, count in at.items() if other < reward) for reward in at}
    return [(below[rewards[text]] + (at[rewards[text]] - 1) / 2) / (len(texts) - 1) for text in texts]

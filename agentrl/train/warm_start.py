"""The supervised warm start: imitate recorded episodes or chat, so that RL can find a reward."""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from torch.optim import Optimizer

from agentrl._util.config_errors import check_file
from agentrl.env.env import Env
from agentrl.env.factory import load_env
from agentrl.errors import ConfigError, LedgerError
from agentrl.monitor.canaries import learned_by_heart
from agentrl.render.base import Renderer
from agentrl.rollout.data.chat_rows import ChatReader, SkippedError, is_chat, other_format
from agentrl.rollout.data.data_files import read_rows
from agentrl.train.batch import Row
from agentrl.train.config import OptimizerName, TrainConfig, WarmStartConfig
from agentrl.train.learner import Learner, Update
from agentrl.train.optimizers import make_adam, make_muon
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import JSON, RenderedImage

_WARMUP_STEPS = 30
_FINAL_SHARE = 0.05
_MUON_FACTOR = 5.0
_ROUTER = re.compile(r"(^|\.)((\w+_)?router|router_gate|gate|shared_expert_gate|wg)$")
"""The names of modules that choose experts, in transformers' models. The name `gate_proj` does not match."""
_SHOWN = 20
"""The most skipped rows to print. A file in the run folder has all skipped rows."""
_PAUSE = 100
_SAY_EVERY_S = 10.0
_SHARE, _MOST, _LEAST = 0.05, 32, 8
"""The number of held-out demonstrations. _SHARE: as a share of all demonstrations. _MOST: the largest number. _LEAST:
the smallest number; with fewer, none is held out."""
_PASSES = 1.5
"""The number of times that a warm start must read the demonstrations before memorising is possible."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """An episode to imitate: the token ids, and a mask that is 1 at the tokens to learn."""

    tokens: Sequence[int]
    mask: Sequence[int]
    media: Sequence[RenderedImage] = ()
    unpredicted: frozenset[int] = frozenset()
    """The indices of tokens that stand for media. Such a token has no log-prob."""


@dataclass(slots=True)
class Demonstrations:
    """The content of a file of demonstrations."""

    rows: list[Demonstration] = field(default_factory=list)
    apart: list[Demonstration] = field(default_factory=list)
    """Held-out demonstrations, which show whether the other demonstrations are memorised."""
    skipped: list[str] = field(default_factory=list)
    """A line for each skipped row of chat: `file:line: reason: detail`."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Reason -> the number of rows that were skipped for this reason."""
    chats: int = 0
    """The number of rows of chat to learn from."""
    episodes: int = 0
    """The number of recorded episodes to learn from."""
    unrewarded: int = 0
    """The number of recorded episodes to learn from whose reward is 0 or less."""
    turns: list[int] = field(default_factory=list)
    """The number of turns of each episode and of each chat."""
    longest: list[int] = field(default_factory=list)
    """The number of tokens of the longest turn of each episode and of each chat."""
    shortened: list[str] = field(default_factory=list)
    """A line for each row whose last turns do not fit into the context and are left out: `file:line: how many
    turns`."""
    remarks: dict[str, list[str]] = field(default_factory=dict)
    """Possible mistake -> `file:line` of each learned row that has the mistake."""
    seconds: float = 0.0

    def count_turns(self, trajectory: Trajectory) -> None:
        turns = trajectory.turns
        self.turns.append(len(turns) - trajectory.summaries)
        self.longest.append(max((turn.sampled_tokens for turn in turns), default=0))

    def report(self) -> list[str]:
        """Lines for the user about the file: skipped rows, and rows that are imitated although they may be wrong."""
        lines = []
        if self.unrewarded:
            lines.append(
                f"demonstrations: {self.unrewarded:,} of {self.episodes:,} episodes have a reward of 0 or less, and "
                "are imitated, too; to leave them out, record with agentrl play --min-reward 1"
            )
        return lines + self._chat_report() if self.chats else lines

    def _chat_report(self) -> list[str]:
        rate = (self.chats + len(self.skipped)) / max(self.seconds, 1e-9)
        lines = [f"chat: {self.chats:,} rows to learn from, {len(self.skipped):,} skipped ({rate:,.0f} rows/s)"]
        if self.shortened:
            lines.append(
                f"chat: {len(self.shortened):,} rows end early: their last turns are beyond the context; "
                f"the first is {self.shortened[0]}"
            )
        for remark, places in self.remarks.items():
            lines.append(f"chat: {len(places):,} rows have {remark}; the first is {places[0]}")
        lines += [f"skipped {count:,}: {reason}" for reason, count in self.reasons.most_common()]
        lines += self.skipped[:_SHOWN]
        return lines

    def listed(self) -> list[str]:
        """A line for each row that is skipped, cut short or has a possible mistake: `file:line: why`."""
        odd = [f"{place}: learned, though it has {why}" for why, places in self.remarks.items() for place in places]
        return [*self.skipped, *self.shortened, *odd]


async def read_demonstrations(config: TrainConfig, model: Any, renderer: Renderer, console: Console) -> Demonstrations:
    """The demonstrations of a run, and a report of skipped rows. `model` is the model's configuration.

    Raises ConfigError (`file:line: what and remedy`).
    """
    assert config.warm_start is not None
    holds = getattr(model, "max_position_embeddings", None) or 1 << 30
    longest = min(holds, config.options().limits.context or holds, config.engine_config.get("max_context") or holds)
    chats = ChatReader(renderer=renderer, context=longest, thinking=config.thinking)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    demonstrations = await load_demonstrations(config.warm_start.demonstrations, model.vocab_size, chats, say)
    for line in demonstrations.report():
        say(line)
    if config.steps:
        for warning in (beyond_the_limit(demonstrations.turns, config), too_long(demonstrations.longest, config)):
            if warning:
                say(warning)
    return demonstrations


def beyond_the_limit(turns: Sequence[int], config: TrainConfig) -> str:
    """A warning about demonstrations of more turns than an episode may have; empty if there are none."""
    limit = config.options().limits.turns
    most = limit + (load_env(config.env).last_turn is not Env.last_turn)  # which may allow one more, to answer
    longer = sum(count > most for count in turns)
    if not longer:
        return ""
    return (
        f"{longer:,} of {len(turns):,} demonstrations have more turns than limits.turns={limit}: the model will not be "
        "able to finish what it imitates; raise it"
    )


def too_long(longest: Sequence[int], config: TrainConfig) -> str:
    """A warning about demonstrations with a turn of more tokens than a turn may have; empty if there are none.
    `longest` has the number of tokens of the longest turn of each demonstration."""
    limit = config.options().limits.max_tokens_per_turn
    longer = sum(count > limit for count in longest)
    if not longer:
        return ""
    return (
        f"{longer:,} of {len(longest):,} demonstrations have a longer turn than limits.max_tokens_per_turn={limit}, "
        f"the longest has {max(longest)} tokens: the model's turn will be cut before its end; raise the limit"
    )


async def load_demonstrations(
    path: Path, vocabulary: int, chats: ChatReader, say: Callable[[str], None] = lambda line: None
) -> Demonstrations:
    """Read trajectories and rows of chat, one a line, or the rows of a Parquet file.

    `say` gets the progress from time to time. Raises ConfigError (`file:line: what and remedy`) for a file that is
    malformed, or holds nothing to learn.
    """
    check_file(path, "record some with agentrl play --out", "file of demonstrations")
    demonstrations, began, reported = Demonstrations(), time.monotonic(), time.monotonic()
    for number, row in read_rows(path, "record some with agentrl play --out, or give chat as JSONL"):
        _add(demonstrations, row, f"{path}:{number}", chats, vocabulary)
        if number % _PAUSE == 0:
            await asyncio.sleep(0)  # lets Ctrl-C in
            if (now := time.monotonic()) - reported >= _SAY_EVERY_S:
                reported = now
                say(f"reading {path.name}: {number:,} rows, {number / (now - began):,.0f} rows/s")
    demonstrations.seconds = time.monotonic() - began
    if not demonstrations.rows:
        raise ConfigError(_nothing(path, demonstrations))
    return demonstrations


def _add(demonstrations: Demonstrations, row: JSON, where: str, chats: ChatReader, vocabulary: int) -> None:
    """Add the demonstrations of a line of the file. Raises ConfigError unless the line is a trajectory or chat."""
    if not is_chat(row):
        episode = _trajectory(row, where)
        demonstrations.rows += _learned(episode, where, vocabulary, chats.renderer)
        demonstrations.count_turns(episode)
        demonstrations.episodes += 1
        demonstrations.unrewarded += episode.reward is not None and episode.reward <= 0
        return
    try:
        chat = chats.read(row)
    except SkippedError as exc:
        demonstrations.skipped.append(f"{where}: {exc}")
        demonstrations.reasons[exc.reason] += 1
        return
    except ConfigError as exc:
        raise ConfigError(f"{where}: {exc}") from exc
    demonstrations.chats += 1
    if chat.left_out:
        demonstrations.shortened.append(f"{where}: its last {chat.left_out} turns are beyond the context, and left out")
    for remark in chat.remarks:
        demonstrations.remarks.setdefault(remark, []).append(where)
    demonstrations.count_turns(chat.trajectory)
    demonstrations.rows += _learned(chat.trajectory, where, vocabulary, chats.renderer)


def _trajectory(row: JSON, where: str) -> Trajectory:
    if remedy := other_format(row):
        raise ConfigError(f"{where}: not a readable chat; {remedy}")
    try:
        return Trajectory.from_json(row)
    except (ValueError, KeyError, TypeError, AttributeError, LedgerError) as exc:
        reason = f"{type(exc).__name__}: {exc}"
        raise ConfigError(
            f'{where}: neither chat (it has no "messages") nor a trajectory ({reason}); record it again'
        ) from exc


def _learned(trajectory: Trajectory, where: str, vocabulary: int, renderer: Renderer) -> Iterator[Demonstration]:
    """The segments with tokens to learn. Raises ConfigError for a token or an image that the model does not support,
    and for a turn with a token that stands for media."""
    forbidden = frozenset(renderer.vision.forbidden if renderer.vision else ())
    highest = max((token for segment in trajectory.segments for token in segment.ids), default=0)
    if highest >= vocabulary:
        raise ConfigError(
            f"{where}: token {highest} is beyond the model's {vocabulary}; record it with this model's tokenizer"
        )
    for segment in trajectory.segments:
        if not segment.ledger.trained:
            continue
        if segment.media and renderer.vision is None:
            raise ConfigError(f"{where}: it shows images, which the model does not read; leave it out")
        mask = bytes(segment.prompt_length) + bytes(segment.loss_mask)
        media = frozenset(place for place, token in enumerate(segment.ids) if token in forbidden) if forbidden else ()
        if any(mask[place] for place in media):
            raise ConfigError(f"{where}: a turn holds a token that stands for an image; leave it out")
        yield Demonstration(segment.ids, mask, segment.media, frozenset(media))


def _nothing(path: Path, demonstrations: Demonstrations) -> str:
    skipped = demonstrations.skipped
    if not skipped:
        return f"{path}: no demonstration with a token to imitate; record some"
    reasons = "; ".join(f"{count:,} of them: {reason}" for reason, count in demonstrations.reasons.most_common(3))
    return f"{path}: all {len(skipped):,} rows were skipped ({reasons}); the first is {skipped[0]}"


def demonstration_batches(
    demonstrations: Sequence[Demonstration], config: WarmStartConfig, seed: int
) -> Iterator[list[Row]]:
    """Yield `config.steps` batches of rows. The order of the demonstrations differs in each epoch."""
    shuffler = random.Random(f"{seed}/warm_start")
    order: list[int] = []
    for _ in range(config.steps):
        while len(order) < config.batch_size:
            epoch = list(range(len(demonstrations)))
            shuffler.shuffle(epoch)
            order += epoch
        batch, order = order[: config.batch_size], order[config.batch_size :]
        yield weighted_rows([demonstrations[i] for i in batch], config.context_weight)


def weighted_rows(batch: Sequence[Demonstration], context_weight: float) -> list[Row]:
    """Rows whose loss is the mean over the tokens to imitate, plus `context_weight` times the mean over all other
    tokens."""
    player = sum(sum(d.mask) for d in batch)
    others = sum(len(d.tokens) - 1 - len(d.unpredicted) for d in batch) - player
    rows = []
    for d in batch:
        positions = [i for i in range(1, len(d.tokens)) if (d.mask[i] or context_weight) and i not in d.unpredicted]
        weights = [1 / player if d.mask[i] else context_weight / others for i in positions]
        rows.append(Row(d.tokens, positions, weights, media=d.media))
    return rows


def make_optimizers(
    model: Any, masters: Sequence[Tensor], config: WarmStartConfig, adam: OptimizerName = "adamw"
) -> list[Optimizer]:
    """Optimizers of `masters`, the float32 copies of the model's trained parameters (see Learner).

    Raises ConfigError if Muon or bitsandbytes is wanted and missing.
    """
    rate = config.learning_rate
    if config.optimizer == "adamw":
        return [make_adam(adam, masters, rate)]
    outer = _outer(model)
    inner = [p.ndim == 2 and id(p) not in outer for p in model.parameters()]
    hidden = list(compress(masters, inner))
    rest = [master for master, is_inner in zip(masters, inner, strict=True) if not is_inner]
    return [make_muon(hidden, _MUON_FACTOR * rate), make_adam(adam, rest, rate)]


def _outer(model: Any) -> set[int]:
    """The ids (`id()`) of parameters that Muon must not train: embeddings, the head, and the routers of experts."""
    heads = [head for head in (model.get_input_embeddings(), model.get_output_embeddings()) if head is not None]
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding) or _ROUTER.search(name):
            heads.append(module)
    return {id(parameter) for head in heads for parameter in head.parameters()}


def warm_start_schedule(step: int, steps: int) -> float:
    """The learning rate at a step, as a share of the highest. The first step is 1. The learning rate rises linearly
    over 30 steps, or over a third of a short warm start. Then it falls along a cosine to a twentieth."""
    rise = max(1, min(_WARMUP_STEPS, steps // 3))
    cosine = 0.5 * (1 + math.cos(math.pi * (step - 1) / steps))
    return min(1.0, step / rise) * (_FINAL_SHARE + (1 - _FINAL_SHARE) * cosine)


def keep_apart(
    demonstrations: Sequence[Demonstration], config: WarmStartConfig, seed: int
) -> tuple[list[Demonstration], list[Demonstration]]:
    """The demonstrations to learn, in order, and a few held-out demonstrations. Demonstrations of the same prompt are
    in the same list."""
    few = min(_MOST, int(_SHARE * len(demonstrations)))
    if few < _LEAST or passes(len(demonstrations), config) < _PASSES:
        return list(demonstrations), []
    prompts = [tuple(d.tokens[: d.mask.index(1)]) for d in demonstrations]
    in_order = sorted(set(prompts))
    random.Random(f"{seed}/kept apart").shuffle(in_order)
    apart: set[tuple[int, ...]] = set()
    while in_order and sum(prompt in apart for prompt in prompts) < few:
        apart.add(in_order.pop())
    sides: tuple[list[Demonstration], list[Demonstration]] = ([], [])
    for prompt, demonstration in zip(prompts, demonstrations, strict=True):
        sides[prompt in apart].append(demonstration)
    # With few prompts, what is kept apart could be most of the file.
    return sides if len(sides[1]) <= 2 * few else (list(demonstrations), [])


def passes(demonstrations: int, config: WarmStartConfig) -> float:
    """How many times the warm start reads each demonstration."""
    return config.steps * config.batch_size / max(demonstrations, 1)


def warnings_by_heart(learner: Learner, demonstrations: Demonstrations, config: TrainConfig) -> Iterator[str]:
    """A warning if the learned demonstrations have a far lower loss than the same number of held-out demonstrations."""
    if not demonstrations.apart or config.warm_start is None:
        return
    learned = random.Random(f"{config.seed}/learned").sample(
        demonstrations.rows, min(len(demonstrations.apart), len(demonstrations.rows))
    )
    if warning := learned_by_heart(_losses(learner, learned), _losses(learner, demonstrations.apart)):
        read = passes(len(demonstrations.rows), config.warm_start)
        yield (
            f"{warning}; it was read {read:.1f} times: take fewer warm_start.steps or more demonstrations, and train "
            "on tasks that they do not show"
        )


def _losses(learner: Learner, demonstrations: Sequence[Demonstration]) -> list[float]:
    """For each demonstration, the mean loss of the imitated tokens, in no order."""
    rows = [replace(row, log_probs=[0.0] * len(row.positions)) for row in weighted_rows(demonstrations, 0.0)]
    return [-fmean(row.log_probs) for row in learner.apply_tis(rows, 1.0, Update(0.0))]

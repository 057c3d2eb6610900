"""On-policy distillation: a teacher scores the tokens that the student sampled.

The advantage of each sampled token is weight * (log p_teacher - log p_student): the reverse KL, estimated on this token
and negated (thinkingmachines.ai/blog/on-policy-distillation; slime's --use-opd). Both probabilities are at the
rollout's temperature.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch

from agentrl._util.concurrency import gather
from agentrl.engine.base import RETRY_S
from agentrl.engine.sglang.connections import Address, Connections
from agentrl.engine.sglang.scoring import score, texts_of
from agentrl.errors import ConfigError, EngineError, Failure, one_line
from agentrl.image import Image
from agentrl.models import load_model, load_tokenizer
from agentrl.models.vision import Vision, vision_of
from agentrl.train.batch import Row, episode_rows, micro_batches
from agentrl.train.config import TeacherConfig, TrainConfig
from agentrl.train.images import RowImages
from agentrl.train.log_probs import vocabulary
from agentrl.train.run_folder import weights_of
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import StopReason

Place: TypeAlias = tuple[int, int]
"""The place of a token in an episode: (number of the segment, index in the segment)."""
Scores: TypeAlias = Mapping[Place, float]
"""Place of a trained token in an episode -> the teacher's log-prob."""

_START_S = 10.0
"""Seconds during which the first request to a silent server is repeated."""
_COMPARED = 200
"""The number of tokens whose texts are compared with the server's texts."""
_OTHERWISE = 0.05
"""The share of the compared tokens that may differ. Servers use transformers' tokenizer for an architecture, which may
have other texts for special tokens. A different vocabulary differs nearly everywhere."""


class Teacher:
    """Turns a teacher's log-probs into advantages. Subclasses get the log-probs, in `ask` or in `read`."""

    def __init__(self, config: TeacherConfig) -> None:
        self._weight = config.weight
        self.scores: WeakKeyDictionary[Trajectory, Scores] = WeakKeyDictionary()

    async def ask(self, trajectories: Sequence[Trajectory]) -> None:
        """Called after the rollout: get the log-probs from a server. An episode without log-probs counts as failed by
        the environment."""

    def read(self, trajectories: Sequence[Trajectory]) -> None:
        """Called before the update, while no engine needs the device: compute the log-probs in this process."""

    def teach(self, trajectory: Trajectory, rows: Sequence[Row]) -> list[Row]:
        """The rows of an episode, with the teacher's advantages added to their weights."""
        return [
            replace(row, weights=[weight + self._weight * gap for weight, gap in zip(row.weights, gaps, strict=True)])
            for row, gaps in zip(rows, self._gaps(trajectory, rows), strict=True)
        ]

    def metrics(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """The metric `teacher_kl`: an estimate of the reverse KL, the mean of log p_student - log p_teacher over
        trained tokens."""
        gaps = chain.from_iterable(self._gaps(trajectory, rows_of(trajectory)) for trajectory in trajectories)
        apart = list(chain.from_iterable(gaps))
        return {"teacher_kl": -sum(apart) / max(len(apart), 1)}

    def _gaps(self, trajectory: Trajectory, rows: Sequence[Row]) -> list[list[float]]:
        """For each row, log p_teacher - log p_student of the trained tokens. The scored tokens may be more than the
        trained."""
        scores = self.scores[trajectory] if rows else {}
        return [
            [scores[place] - student for place, student in zip(places, row.log_probs, strict=True)]
            for row, places in zip(rows, _places(trajectory, rows), strict=True)
        ]

    async def close(self) -> None:
        pass


def rows_of(trajectory: Trajectory) -> list[Row]:
    """The rows of an episode's trained tokens, with advantages of 0."""
    return episode_rows(trajectory, [0.0] * len(trajectory.turns))


def _places(trajectory: Trajectory, rows: Sequence[Row]) -> list[list[Place]]:
    """For each row, the places of the row's tokens in the episode. Segments without a trained token have no row."""
    trained = [
        number for number, segment in enumerate(trajectory.segments) if any(span.trained for span in segment.spans)
    ]
    return [[(number, position) for position in row.positions] for number, row in zip(trained, rows, strict=True)]


async def open_teacher(
    config: TrainConfig, tokenizer: Any, device: torch.device, vision: Vision | None = None
) -> Teacher | None:
    """The teacher of a run, or None. `vision` is the student's image side.

    Raises ConfigError if the teacher is missing, has other tokens than the student, or reads images in other tokens.
    """
    teacher = config.teacher
    if teacher is None:
        return None
    if not teacher.is_served:
        model = _load(teacher.model, config, tokenizer, device)
        images = None if vision is None else _images_of(teacher.model, model, vision)
        return LoadedTeacher(model, config, teacher, images)
    server = ServedTeacher(teacher, config.concurrency)
    try:
        await server.check(tokenizer)
        if vision is not None:
            await server.check_images(vision)
    except BaseException:
        await server.close()
        raise
    return server


class LoadedTeacher(Teacher):
    """A model in this process."""

    def __init__(
        self, model: Any, config: TrainConfig, teacher: TeacherConfig, images: RowImages | None = None
    ) -> None:
        super().__init__(teacher)
        self._model, self._temperature, self._images = model, config.temperature, images
        self._micro_batch_tokens = config.micro_batch_tokens

    @torch.no_grad()
    def read(self, trajectories: Sequence[Trajectory]) -> None:
        rows_by_trajectory = {trajectory: rows_of(trajectory) for trajectory in trajectories}
        rows = sorted(
            chain.from_iterable(rows_by_trajectory.values()), key=lambda row: row.length
        )  # as micro_batches does
        batches = micro_batches(rows, self._micro_batch_tokens, self._model.device, images=self._images)
        values = (batch.model_log_probs(self._model, self._temperature).tolist() for batch in batches)
        log_probs_in_order = chain.from_iterable(values)
        of_row = {id(row): list(islice(log_probs_in_order, len(row.positions))) for row in rows}
        for trajectory, own_rows in rows_by_trajectory.items():
            places = chain.from_iterable(_places(trajectory, own_rows))
            log_probs = chain.from_iterable(of_row[id(row)] for row in own_rows)
            self.scores[trajectory] = dict(zip(places, log_probs, strict=True))


class ServedTeacher(Teacher):
    """A model at an SGLang server."""

    def __init__(self, teacher: TeacherConfig, concurrency: int) -> None:
        super().__init__(teacher)
        address = Address.read(teacher.model.rstrip("/").removesuffix("/generate"))
        self._name, self._url = address.url, f"{address.url}/generate"
        self._connections = Connections(address, limit=concurrency)
        self._slots = asyncio.Semaphore(concurrency)

    async def check(self, tokenizer: Any) -> None:
        """Raises ConfigError if the server does not answer, or has other tokens than `tokenizer`."""
        tokens = _some_tokens(tokenizer)
        try:
            theirs = await texts_of(self._connections, self._url, tokens, retry_s=_START_S)
        except (EngineError, TimeoutError) as exc:
            raise ConfigError(
                f"teacher {self._name} cannot score: {one_line(exc)}; is an SGLang server there, of a model with the "
                "student's tokenizer?"
            ) from exc
        ours = [tokenizer.decode([token]) for token in tokens]
        wrong = [i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0].strip() != pair[1].strip()]
        if len(wrong) > _OTHERWISE * len(tokens):
            first, count = wrong[0], f"{len(wrong)} of {len(tokens)} tokens differ"
            raise _other_tokens(
                self._name, f"{count}, such as {tokens[first]}, here {ours[first]!r}, there {theirs[first]!r}"
            )

    async def check_images(self, vision: Vision) -> None:
        """Raises ConfigError if the server reads an image in a different number of tokens than the student."""
        from PIL import Image as Pillow

        tokens, media = vision.alone(Image.from_pil(Pillow.new("RGB", (200, 150))))
        try:
            await score(self._connections, self._url, tokens, 1, media=media, retry_s=_START_S)
        except (EngineError, TimeoutError) as exc:
            raise ConfigError(
                f"teacher {self._name} cannot score images: {one_line(exc)}; the student reads them, so take a teacher "
                "of its family, with the same preprocessor_config.json"
            ) from exc

    async def ask(self, trajectories: Sequence[Trajectory]) -> None:
        await gather([self._ask(trajectory) for trajectory in trajectories if trajectory.is_valid])

    async def _ask(self, trajectory: Trajectory) -> None:
        rows = rows_of(trajectory)
        try:
            async with self._slots:
                log_probs = [await self._score(row) for row in rows]
        except (EngineError, TimeoutError) as exc:
            trajectory.stop, trajectory.failure = StopReason.FAILED, Failure.of(exc, "score")
            trajectory.mask("env_failure")
            return
        places = chain.from_iterable(_places(trajectory, rows))
        self.scores[trajectory] = dict(zip(places, chain.from_iterable(log_probs), strict=True))

    async def _score(self, row: Row) -> Sequence[float]:
        first, stop = row.positions[0], row.positions[-1] + 1
        read, media = row.tokens[:stop], [image for image in row.media if image.stop <= stop]
        log_probs = await score(self._connections, self._url, read, stop - first, media=media, retry_s=RETRY_S)
        return [log_probs[position - first] for position in row.positions]

    async def close(self) -> None:
        await self._connections.close()


def _load(name: str, config: TrainConfig, tokenizer: Any, device: torch.device) -> Any:
    source = weights_of(name)
    _check_same_tokens(name, load_tokenizer(source, chat_template="").get_vocab(), tokenizer.get_vocab())
    model = load_model(source, device=device.type, dtype=config.dtype, seed=config.seed)
    size, needed = vocabulary(model), max(tokenizer.get_vocab().values()) + 1
    if 0 < size < needed:
        raise _other_tokens(name, f"it has {size} tokens, the student {needed}")
    return model.requires_grad_(False)


def _images_of(name: str, model: Any, vision: Vision) -> RowImages:
    """The teacher's reader of the student's images. Raises ConfigError if the teacher reads no images, or reads images
    in other tokens than the student."""
    teacher_vision = vision_of(model, weights_of(name))
    if teacher_vision is None:
        raise ConfigError(f"teacher {name} reads text only, and the student reads images: take one of its family")
    if not teacher_vision.reads_as(vision):
        raise ConfigError(
            f"teacher {name} reads an image in other tokens than the student: take one of its family, with the same "
            "preprocessor_config.json"
        )
    return RowImages.of(model, teacher_vision)


def _some_tokens(tokenizer: Any) -> list[int]:
    """Some token ids from all parts of a vocabulary, including the special tokens and the last token."""
    ids = sorted(tokenizer.get_vocab().values())
    return sorted({*ids[:: max(1, len(ids) // _COMPARED)], *tokenizer.all_special_ids, ids[-1]})


def _check_same_tokens(name: str, theirs: Mapping[str, int], ours: Mapping[str, int]) -> None:
    """Raises ConfigError unless each token of the student (`ours`) has the same id in the teacher (`theirs`). The
    teacher may have more tokens."""
    wrong = [token for token, number in ours.items() if theirs.get(token) != number]
    if not wrong:
        return
    first = min(wrong, key=lambda token: ours[token])
    token_of_teacher = next((token for token, number in theirs.items() if number == ours[first]), None)
    raise _other_tokens(
        name,
        f"{len(wrong)} of {len(ours)} tokens differ, such as {ours[first]}, here {first!r}, there {token_of_teacher!r}",
    )


def _other_tokens(name: str, difference: str) -> ConfigError:
    return ConfigError(
        f"teacher {name} has another vocabulary than the student: {difference}; take a teacher with the student's "
        "tokenizer"
    )

"""LocalEngine: a Hugging Face causal LM in this process, batched, seeded and bit-reproducible."""

from __future__ import annotations

import asyncio
import operator
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import torch

from agentrl.engine.base import AsyncClosing
from agentrl.engine.local.batch import Batch
from agentrl.engine.local.experts import experts_of, route
from agentrl.engine.local.fitness import check_attention, context_length, measure, tolerance
from agentrl.engine.local.grammar import Grammars, GrammarState
from agentrl.engine.local.images import ImageInputs, prove_images
from agentrl.engine.local.lockstep import Lockstep
from agentrl.engine.local.named_weights import NamedWeights, check_whole
from agentrl.engine.local.request import GenerateRequest
from agentrl.engine.local.sampling import Sampling
from agentrl.engine.local.worker import BatchWorker
from agentrl.errors import ConfigError, RequestError
from agentrl.image import Image
from agentrl.models.vision import Vision
from agentrl.render.long_text import LONG, aside
from agentrl.types import Generation, SamplingParams


class LocalEngine(AsyncClosing):
    """Batches concurrent requests in a worker thread. Callers may use any number of event loops.

    `model` is not copied. A trainer may update the parameters in place while no request runs, and must then set
    `weight_version`. A turn's keys and values are stored for the next turn of the same `session_id`. At most
    `max_batch` sequences are running or stored; the least recently used stored sequence is dropped first.

    With `vision`, the image side of the model, requests may have images. Tokens for media are never sampled: the
    softmax of a log-prob leaves such tokens out.

    Under a grammar, `structural_tag`, the softmax of a log-prob covers only the tokens allowed by the grammar. Grammars
    need the package xgrammar.

    Raises ConfigError for a model that cannot be batched. As a test, a few tokens, and with `vision` a few images, are
    compared with a plain forward pass.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_batch: int = 64,
        max_context: int | None = None,
        device: str | None = None,
        vision: Vision | None = None,
    ) -> None:
        if max_batch < 1:
            raise ConfigError(f"max_batch is {max_batch}; a batch has at least 1 row")
        self._model = model.eval() if device is None else model.eval().to(device)
        text = model.config.get_text_config()
        self._named_weights = NamedWeights(self._model)
        self._vocabulary: int = text.vocab_size
        check_attention(text)
        self._context = context_length(text, max_context)
        self._vision = vision
        self._images = None if vision is None else ImageInputs(vision, self._model)
        batch = Batch(
            self._model,
            tokenizer,
            max_batch=max_batch,
            max_context=self._context,
            eos=(eos := _eos_tokens(model, tokenizer)),
            token_bytes=measure(self._model, self._context),
            images=self._images,
            forbidden=() if vision is None else vision.forbidden,
        )
        if vision is not None:
            prove_images(self._model, vision, self._context, tolerance(self._model))
        self._grammars = Grammars(tokenizer, self._vocabulary, eos)
        self._worker = BatchWorker(batch)
        weakref.finalize(self, self._worker.stop)

    takes_grammars = True

    @property
    def returns_experts(self) -> bool:
        """Whether the model has experts, so that `routed_experts` can be called."""
        return experts_of(self._model.config.get_text_config()) > 0

    @property
    def takes_images(self) -> bool:
        return self._vision is not None

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        session_id: str = "",
        rid: str = "",
        images: Sequence[Image] = (),
    ) -> Generation:
        """Continue `input_ids`, with one pad token for each image. See `ImageEngine.generate`, and `Sampling.read` for
        the parameters.

        Without `max_new_tokens`, a response may fill the context. The tokens include the stop text. `meta` has
        `prompt_tokens`, the number of prompt tokens with all tokens of images.
        """
        sampling = Sampling.read(sampling_params)
        grammar = None
        if sampling.structural_tag is not None:  # a thread, so the event loop never waits for a large grammar
            grammar = await aside(LONG, lambda: self._grammars.begin(sampling))
        return await asyncio.wrap_future(
            self._submit(
                input_ids,
                sampling,
                session_id=session_id,
                rid=rid,
                images=images,
                loop=asyncio.get_running_loop(),
                grammar=grammar,
            )
        )

    def _submit(
        self,
        input_ids: Sequence[int],
        sampling: Sampling,
        *,
        session_id: str = "",
        rid: str = "",
        images: Sequence[Image] = (),
        loop: asyncio.AbstractEventLoop | None = None,
        grammar: GrammarState | None = None,
    ) -> Future[Generation]:
        """Queue a request, and return its future, for a caller without an event loop. Cancelling the future ends the
        request."""
        ids = self._read(input_ids)
        if not isinstance(session_id, str) or not isinstance(rid, str):
            raise RequestError(f"session_id and rid must be strings, not {session_id!r:.50} and {rid!r:.50}")
        if grammar is None and sampling.structural_tag is not None:
            grammar = self._grammars.begin(sampling)
        request = GenerateRequest(ids, sampling, session_id, rid, loop, grammar=grammar)
        self._place(request, images)
        if sampling.max_new_tokens == 0:
            request.future.set_result(Generation([], [], "length", weight_version=self.weight_version))
        else:
            self._worker.submit(request)
        return request.future

    def _read(self, input_ids: Sequence[int]) -> list[int]:
        """A copy of the prompt's token ids, after checks."""
        ids = token_ids(input_ids)
        if not ids:
            raise RequestError("the prompt is empty: an engine needs at least one token to continue")
        if not 0 <= min(ids) <= max(ids) < self._vocabulary:
            raise RequestError(
                f"the prompt has a token id outside the model's vocabulary of {self._vocabulary}: tokenizer mismatch?"
            )
        return ids

    def _place(self, request: GenerateRequest, images: Sequence[Image]) -> None:
        """Replace the pads of a request's images by the images' tokens. Raises RequestError for images and parameters
        that the engine does not support."""
        if self._images is not None:
            self._images.place(request, images)
        elif images:
            raise RequestError("this LocalEngine takes no images: give it the image side of its model (vision=)")
        if not request.sampling.forbidden.issubset(() if self._vision is None else self._vision.forbidden):
            raise RequestError(
                "sampling parameter logit_bias is not supported by LocalEngine, but to forbid the tokens of media: "
                "leave it out, or give the engine the image side of its model (vision=)"
            )
        if len(request.input_ids) >= self._context:
            raise RequestError(
                f"the prompt has {len(request.input_ids)} tokens; the context holds {self._context}, response included"
            )

    async def abort(self, rid: str | None = None) -> None:
        """End the request with the id `rid`, or all requests. Waiting requests return at once, running requests after
        the current step."""
        self._worker.abort(rid)

    async def context_length(self) -> int:
        return self._context

    async def routed_experts(self, tokens: Sequence[int]) -> list[list[list[int]]]:
        """The experts of each token in each layer with the present weights: (tokens, layers, experts of a token).

        Costs a forward pass over all tokens, between two steps. Raises RequestError if a layer has no experts.
        """

        def compute() -> list[list[list[int]]]:
            with self._worker.between_steps():
                return route(self._model, tokens)

        return await asyncio.to_thread(compute)

    async def close(self) -> None:
        """Stop the worker. Waiting and running requests raise EngineError."""
        await self._worker.close()

    @property
    def weight_version(self) -> str:
        """The version of the weights. A Generation has the version at the sampling of its last token."""
        return self._worker.version

    @weight_version.setter
    def weight_version(self, version: str) -> None:
        with self._worker.between_steps() as batch:
            batch.forget()
            self._worker.version = version

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: str) -> None:
        """Copy a state dict into the model between two steps. Running requests continue with the new weights.

        Tensors that are already those of the model are not copied. Raises EngineError, without any change, if a tensor
        is missing, unknown or has a wrong shape, or if two values differ for tensors tied in the model.
        """
        tensors: dict[str, torch.Tensor] = self._model.state_dict()
        check_whole(weights, tensors)
        with self._worker.between_steps() as batch, torch.no_grad():
            for name, tensor in tensors.items():
                if name in weights and weights[name].data_ptr() != tensor.data_ptr():
                    tensor.copy_(weights[name])
            batch.forget()
            self._worker.version = version

    def load_part(self, weights: Mapping[str, torch.Tensor], version: str | None = None) -> set[str]:
        """Copy some weights into the model between two steps, for a trainer that sends a checkpoint in parts.

        Each expert has its own name, as in the checkpoint. Values are converted to the model's type. Without `version`
        the version stays. Returns the names by which `copy_weights` has the weights. Raises RequestError, without any
        change, if a name is unknown, a shape or a type is wrong, or if values of tied weights differ within a version.
        """
        with self._worker.between_steps() as batch, torch.no_grad():
            names = self._named_weights.copy(weights, version)
            batch.forget()
            if version is not None:
                self._worker.version = version
        return names

    def copy_weights(self) -> dict[str, torch.Tensor]:
        """A copy of the parameters between two steps, by the names of `load_part`. Tied parameters appear once."""
        with self._worker.between_steps():
            return {name: tensor.clone() for name, tensor in self._named_weights.parameters().items()}

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        device: torch.device = self._model.device
        return device

    async def update(self, model: Any, version: str) -> None:
        """Sample from the weights of `model` from now on, and report the weights as `version`.

        If `model` is the engine's own module, alone or in a peft model, training changed the weights in place, and no
        weights are copied. The state dict of any other model is loaded; see `load_weights`.
        """
        if any(module is self._model for module in model.modules()):
            self._model.eval()  # a learner may have left the model in train mode
            self.weight_version = version
        else:
            self.load_weights(model.state_dict(), version)

    async def sleep(self) -> None:
        """Do nothing: engine and trainer share the model, and the stored sequences are few."""

    async def wake(self) -> None:
        """Do nothing; see `sleep`."""

    @contextmanager
    def lockstep(self, episodes: int) -> Iterator[Lockstep]:
        """Run turns in waves, so results do not depend on timing: see Lockstep.

            with engine.lockstep(len(tasks)) as lockstep:
                async def play(task: Task) -> Trajectory:
                    with lockstep.episode():
                        return await run_episode(...)
                await asyncio.gather(*map(play, tasks))

        All episodes must be able to run at the same time. No other caller may use the engine meanwhile. The prefix
        cache is emptied first. Raises EngineError while requests run or a lockstep is open.
        """
        with self._worker.lockstep(episodes) as lockstep:
            yield lockstep


def token_ids(input_ids: Sequence[int]) -> list[int]:
    """A copy of a prompt as plain integers. Raises RequestError for any other value."""
    try:
        return list(map(operator.index, input_ids))
    except TypeError as exc:
        raise RequestError(f"the prompt must be a list of token ids: {exc}") from exc


def _eos_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """All tokens that end a sequence according to the model or the tokenizer."""
    tokens: set[int] = set()
    for eos in (
        model.config.get_text_config().eos_token_id,
        model.generation_config.eos_token_id,
        tokenizer.eos_token_id,
    ):
        tokens.update(eos if isinstance(eos, list | tuple) else [] if eos is None else [eos])
    return frozenset(tokens)

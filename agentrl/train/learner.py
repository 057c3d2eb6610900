"""The learner: a model, an optimizer, and a step of RL or of supervised learning."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from agentrl.errors import AgentRLError
from agentrl.models.attention import without_cudnn
from agentrl.models.vision import Vision
from agentrl.monitor.numerics import Numerics, compare
from agentrl.train.batch import MicroBatch, Row, micro_batches
from agentrl.train.checkpointing import checkpointing, layers_to_checkpoint
from agentrl.train.config import TrainConfig
from agentrl.train.fused import tf32, use_fused_kernels
from agentrl.train.images import RowImages
from agentrl.train.lora import AdapterReference
from agentrl.train.loss import kl_divergence, policy_loss, sequence_log_ratio, tis_weights
from agentrl.train.optimizers import make_adam
from agentrl.train.packing import attending_by_rows, packing_of
from agentrl.train.stems import reads_stems, unique_tokens

STEP_BYTES = 64 << 20
"""The most bytes of float32 gradients that an optimizer step holds for the float32 copies; a single gradient may be
larger."""
_LARGEST_LOG_RATIO = math.log(torch.finfo(torch.float32).max)
"""The largest log-ratio of two probabilities whose exponential is finite in float32."""


class DivergedError(AgentRLError):
    """The loss or its gradient is not finite. The weights are unchanged."""


@dataclass(slots=True)
class Update:
    """The metrics of an RL step, summed over the minibatches or over the trained tokens."""

    learning_rate: float
    updates: int = 0
    read: int = 0
    """The number of tokens in the sequences, prompts and observations included."""
    unique: int = 0
    """The number of these tokens if the beginnings that sequences of an update share count once."""
    computed: int = 0
    """The number of tokens that the model computed for these sequences, padding included."""
    tokens: int = 0
    loss: float = 0.0
    kl: float = 0.0
    grad_norm: float = 0.0
    clipped: int = 0
    entropy: float = 0.0
    """The sum of the negative log-probs of the trained tokens under the policy that sampled the tokens."""
    moved: float = 0.0
    """The sum of |new log-prob - old log-prob| over the tokens of all minibatches but the first."""
    moved_tokens: int = 0
    numerics: Numerics = field(default_factory=Numerics)
    """The log-probs of trainer and engine compared before the first update, over the tokens of the first minibatch.
    With TIS, over all tokens of the step."""
    truncated: int = 0
    """The number of tokens with a clipped TIS weight."""
    looked_at: list[tuple[Row, Sequence[float]]] = field(default_factory=list)
    """Rows, each with the trainer's log-probs before the first update. Without TIS, only the rows of the first
    minibatch."""
    remedy: str = "lower the learning rate"
    """The advice in the error message if the loss is not finite."""

    def metrics(self) -> dict[str, float]:
        updates, tokens = max(self.updates, 1), max(self.tokens, 1)
        return {
            "loss": self.loss / updates,
            "kl": self.kl / tokens,
            "grad_norm": self.grad_norm / updates,
            "clip_fraction": self.clipped / tokens,
            "entropy": self.entropy / tokens,
            "logprob_change": self.moved / max(self.moved_tokens, 1),
            "tis_fraction": self.truncated / tokens,
            "logprob_diff_mean": self.numerics.mean,
            "logprob_diff_max": self.numerics.max,
            "logprob_diff_clipped": self.numerics.clipped_share,
            "learning_rate": self.learning_rate,
            "read_tokens": self.read,
            "unique_tokens": self.unique,
            "computed_tokens": self.computed,
        }


class Learner:
    """Trains `model` in place, in eval mode. An engine that samples from the same module computes the same log-probs.

    `vision` is the model's image side. Raises ConfigError if the logits of padded rows with images differ from those of
    each row alone.
    """

    def __init__(self, model: Any, config: TrainConfig, vision: Vision | None = None) -> None:
        self.model = model.eval()
        self.config, self.vision = config, vision
        self.device = next(model.parameters()).device
        use_fused_kernels(model, self.device)
        self._layers = layers_to_checkpoint(model, config.gradient_checkpointing)
        self.images = None if vision is None else RowImages.of(model, vision)
        self.packing = packing_of(model) if vision is None else None
        """The packing of rows. None: rows are padded, not packed."""
        self.parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        """The trained parameters: all parameters, or with LoRA the parameters of the adapter."""
        self.masters: list[Tensor] = [p if p.dtype == torch.float32 else p.detach().float() for p in self.parameters]
        """The tensors that the optimizers change, in the order of `parameters`: each parameter of type float32, and a
        float32 copy of each other parameter. In bfloat16, rounding would lose a step of less than a 256th of a
        weight."""
        pairs = zip(self.parameters, self.masters, strict=True)
        self._rounded: list[tuple[Tensor, Tensor]] = [(p, master) for p, master in pairs if p is not master]
        self.optimizer = make_adam(config.optimizer, self.masters, config.learning_rate)
        self.schedule = Schedule(config.lr_warmup_steps, config.lr_final, config.steps)
        self.reference: Any = None
        """The reference of KL: a model with the weights at the start of RL, or an AdapterReference. None without KL."""
        self.shared_gradient: Callable[[Sequence[Row], int], float] | None = None
        """A function that `imitate` calls in place of `gradient`; see `agentrl.train.halves`."""

    @property
    def text_config(self) -> Any:
        """The transformers configuration of the model's language side."""
        return self.model.config.get_text_config()

    @torch.enable_grad()  # an Env may have turned them off for the whole process
    def learn(self, rows: Sequence[Row], *, step: int, normaliser: float) -> Update:
        """Do an RL step: learn from each row once, in `minibatches` updates. The sum of the step's losses is divided by
        `normaliser`.

        If the loss is not finite, raises DivergedError before the weights change.
        """
        with self._training():
            return self._learn(rows, step, normaliser)

    @contextmanager
    def _training(self) -> Iterator[None]:
        """The context of forward and backward passes. An engine that samples from the model must be idle."""
        attention = attending_by_rows(self.model) if self.packing else nullcontext()
        # A model in float32 keeps its precision, as its engine does.
        half = self.model.dtype != torch.float32
        with attention, without_cudnn(), tf32(half), checkpointing(self._layers):
            yield

    def micro_batches(self, rows: Sequence[Row], max_tokens: int) -> Iterator[MicroBatch]:
        packing, stems = self.packing, self.packing is not None and reads_stems(self.model, self.packing)
        return micro_batches(rows, max_tokens, self.device, packing=packing, with_stems=stems, images=self.images)

    def _learn(self, rows: Sequence[Row], step: int, normaliser: float) -> Update:
        config = self.config
        set_learning_rate(self.optimizer, self.schedule.at(step))
        update = Update(self.optimizer.param_groups[0]["lr"])
        shuffled = list(rows) if config.tis_clip is None else self.apply_tis(rows, config.tis_clip, update)
        random.Random(f"{config.seed}/{step}").shuffle(shuffled)
        for number in range(config.minibatches):
            batch = shuffled[number :: config.minibatches]
            if not batch:
                continue
            for micro in self.micro_batches(batch, config.micro_batch_tokens):
                loss = self._policy_loss(micro, update, first=number == 0) * config.minibatches / normaliser
                micro.backward(loss)
                update.loss += loss.item()
                update.computed += micro.computed
            update.updates += 1
            update.tokens += sum(len(row.positions) for row in batch)
            update.read += sum(row.length for row in batch)
            update.unique += unique_tokens([row.read for row in batch])
            update.grad_norm += self._apply([self.optimizer], update.loss, update.remedy)
        return update

    def _policy_loss(self, micro: MicroBatch, update: Update, *, first: bool) -> Tensor:
        config = self.config
        log_probs = micro.model_log_probs(self.model, config.temperature)
        if first and config.tis_clip is None:
            update.numerics += compare(micro.log_probs.tolist(), values := log_probs.tolist())
            remaining = iter(values)
            update.looked_at += [(row, list(islice(remaining, len(row.positions)))) for row in micro.rows]
        log_ratio = log_probs - micro.log_probs
        update.entropy -= micro.log_probs.sum().item()
        if not first:
            update.moved += log_ratio.detach().abs().sum().item()
            update.moved_tokens += len(log_ratio)
        _blame(update, log_ratio, micro.weights)
        if config.algorithm == "gspo":
            log_ratio = sequence_log_ratio(log_ratio, micro.row)
        result = policy_loss(
            log_ratio,
            micro.weights,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            dual_clip=config.dual_clip,
        )
        update.clipped += result.clipped
        loss = (result.losses * micro.shares).sum()
        if self.reference is None:
            return loss
        with torch.no_grad(), self._active_reference() as model:
            reference = micro.model_log_probs(model, config.temperature)
        kl = kl_divergence(log_probs, reference, config.kl_type)
        update.kl += kl.sum().item()
        return loss + config.kl_coef * (kl * micro.shares).sum()

    def _active_reference(self) -> AbstractContextManager[Any]:
        of_adapter = isinstance(self.reference, AdapterReference)
        return self.reference.active() if of_adapter else nullcontext(self.reference)

    @torch.no_grad()
    def apply_tis(self, rows: Sequence[Row], clip: float, update: Update) -> list[Row]:
        """Truncated importance sampling. The returned rows have the trainer's log-probs before any update, and their
        advantages are multiplied by the weights of TIS. `update` gets the comparison with the engine's log-probs.

        A weight is a constant and not negative, so multiplying the advantage multiplies the token's loss.
        """
        if not rows:
            return []
        read, of_trainer, of_engine = list[Row](), list[Tensor](), list[Tensor]()
        for batch in self.micro_batches(rows, self.config.micro_batch_tokens):  # one at a time: pixels are large
            of_trainer.append(batch.model_log_probs(self.model, self.config.temperature))
            of_engine.append(batch.log_probs)
            read += batch.rows
        trainer, engine = torch.cat(of_trainer), torch.cat(of_engine)
        update.numerics = compare(engine.tolist(), trainer.tolist())
        weights = tis_weights(trainer, engine, clip)
        update.truncated = int((weights < (trainer - engine).exp()).sum())
        of_rows, factors = iter(trainer.tolist()), iter(weights.tolist())
        weighted = [
            replace(
                row,
                weights=[advantage * next(factors) for advantage in row.weights],
                log_probs=[next(of_rows) for _ in row.positions],
            )
            for row in read
        ]
        update.looked_at = [(row, row.log_probs) for row in weighted]
        return weighted

    def imitate(self, rows: Sequence[Row], optimizers: Sequence[Optimizer], max_tokens: int) -> float:
        """Do a supervised step on the cross-entropy of the rows' tokens, each multiplied by its weight. Returns the
        loss."""
        loss = (self.shared_gradient or self.gradient)(rows, max_tokens)
        self._apply(optimizers, loss, "lower warm_start.learning_rate")
        return loss

    @torch.enable_grad()
    def gradient(self, rows: Sequence[Row], max_tokens: int) -> float:
        """Add the gradient of the supervised loss to the parameters' gradients. Returns the loss."""
        total = 0.0
        with self._training():
            for micro in self.micro_batches(rows, max_tokens):
                loss = -(micro.weights * micro.model_log_probs(self.model)).sum()
                micro.backward(loss)
                total += loss.item()
        return total

    def _apply(self, optimizers: Sequence[Optimizer], loss: float, remedy: str) -> float:
        """Clip the gradient, step the optimizers and clear the gradient. Returns the norm of the gradient. If the loss
        or the norm is not finite, raises DivergedError and leaves the weights unchanged."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm).item()
        finite = math.isfinite(loss) and math.isfinite(norm)
        if finite:
            self._step(optimizers)
        for parameter in self.parameters:
            parameter.grad = None
        if not finite:
            raise DivergedError(f"the loss is {loss}, its gradient's norm {norm}; {remedy}")
        return norm

    @torch.no_grad()
    def _step(self, optimizers: Sequence[Optimizer]) -> None:
        """Step all optimizers. Float32 copies are stepped in chunks: at any time, only a single chunk has float32
        gradients."""
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        for some in _portions([pair for pair in self._rounded if pair[0].grad is not None]):
            for parameter, master in some:
                assert parameter.grad is not None
                master.grad, parameter.grad = parameter.grad.float(), None
            for optimizer in optimizers:
                optimizer.step()  # passes over what has no gradient
            for parameter, master in some:
                master.grad = None
                parameter.copy_(master)

    def state_dict(self) -> dict[str, Any]:
        """The state to save: the optimizer, the process's random states, and the float32 copies of bfloat16 weights."""
        state: dict[str, Any] = {
            "optimizer": self.optimizer.state_dict(),
            "masters": [master for _, master in self._rounded],
        }
        return {**state, **random_states(self.device)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.optimizer.load_state_dict(dict(state["optimizer"]))
        for group in self.optimizer.param_groups:
            group["initial_lr"] = self.config.learning_rate  # which may have changed since
        if saved := state["masters"]:  # none where an older version kept the adapter itself in float32
            for (_, master), copied in zip(self._rounded, saved, strict=True):
                master.copy_(copied)
        random.setstate(state["python_rng"])
        torch.set_rng_state(state["torch_rng"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_rng"], self.device)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning rate of RL as a share of the highest learning rate. The learning rate rises linearly over the first
    `rise` steps, and falls linearly to `final` at the last step."""

    rise: int
    final: float
    steps: int
    since: int = 0
    """The step after which the fall began."""
    share: float = 1.0
    """The share of the highest learning rate at the beginning of the fall."""
    factor: float = 1.0
    """The factor of all rates: 0.5 after a run has returned to its best weights."""

    def at(self, step: int) -> float:
        """The share of the highest learning rate at a step. The first step is 1."""
        return self.factor * min(1.0, step / max(self.rise, 1)) * self._fall(step)

    def until(self, steps: int, *, step: int) -> Schedule:
        """The schedule of a run that continues after `step` with a different number of steps.

        The fall gets a new slope from there. The learning rate never jumps. After the end of the fall the rate stays at
        `final`.
        """
        return self if steps == self.steps else replace(self, steps=steps, since=step, share=self._fall(step))

    def _fall(self, step: int) -> float:
        done = min(1.0, (step - self.since) / max(self.steps - self.since, 1))
        return self.share + (self.final - self.share) * done


def _blame(update: Update, log_ratio: Tensor, advantages: Tensor) -> None:
    """Look for a cause of a loss that is not finite, other than the learning rate, and set `update.remedy`."""
    if not advantages.isfinite().all():
        update.remedy = "an advantage is not finite: is a reward?"
        return
    largest = log_ratio.detach().abs().max().item() if len(log_ratio) else 0.0
    if largest < _LARGEST_LOG_RATIO:
        return
    if update.updates:
        update.remedy = f"an update changed a token's log-prob by {largest:.0f}: lower the learning rate"
    else:
        update.remedy = (
            f"engine and trainer differ by {largest:.0f} over a token's log-prob before any update: do both use the "
            "same weights, temperature and dtype?"
        )


def _portions(pairs: Sequence[tuple[Tensor, Tensor]]) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """(parameter, float32 copy) pairs, in chunks of at most STEP_BYTES."""
    some, size = list[tuple[Tensor, Tensor]](), 0
    for pair in pairs:
        if some and size + pair[1].nbytes > STEP_BYTES:
            yield some
            some, size = [], 0
        some.append(pair)
        size += pair[1].nbytes
    if some:
        yield some


def random_states(device: torch.device) -> dict[str, Any]:
    """The states of the process's random number generators."""
    states: dict[str, Any] = {"python_rng": random.getstate(), "torch_rng": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda_rng"] = torch.cuda.get_rng_state(device)
    return states


def set_learning_rate(optimizer: Optimizer, share: float) -> None:
    """Set the learning rate of every parameter group to a share of its initial learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * share

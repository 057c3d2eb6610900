"""Data for slime's trainer from each generation: top-p nuclei (--rollout-top-p), routed experts (R3), and the sampler's
likeliest tokens (--use-score-centering, arXiv 2609.20807).

The rules equal slime's `Sample.append_response_tokens` (slime/utils/types.py:253, 624b824a8), and tests compare the
two. The method cannot be called here for two reasons. It refuses generations that are cut at a stop string and tokens
that the engine never read, and an episode may hold both. And slime's relatives and older commits lack the method.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from agentrl.engine.base import EngineWrapper, RequestFields
from agentrl.errors import ConfigError
from agentrl.slime.host import HostArgs
from agentrl.trajectory.segment import Segment
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Generation, SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from agentrl.engine.sglang.client import SGLangEngine

    Ints = NDArray[np.int32]
    N = TypeVar("N", np.int32, np.float32)

_TOP_P_IDS = ("top_p_token_ids", "top_p_kept_token_ids")
_TOP_P_OFFSETS = ("top_p_token_offsets", "top_p_kept_token_offsets")
_EXPERTS = ("routed_experts",)
_START = "routed_experts_start_len"
_TOP_K_IDS, _TOP_K_LOG_PROBS = ("output_topk_token_ids",), ("output_topk_log_probs",)


def request_fields(args: Any) -> dict[str, Any]:
    """The fields of a request that ask the engine for this data. slime's sampling_params already ask for top-p ids."""
    flags, fields = HostArgs.of(args), dict[str, Any]()
    if flags.use_rollout_routing_replay:
        fields["return_routed_experts"] = True
    if flags.use_score_centering:
        fields["top_logprobs_num"] = flags.score_centering_top_k
    return fields


def check_flags(flags: HostArgs) -> None:
    """Raises ConfigError for flags whose data agentrl does not collect."""
    if flags.use_score_centering and flags.replays_top_p:
        raise ConfigError(
            f"--use-score-centering with --rollout-top-p {flags.rollout_top_p:g}: agentrl keeps the likeliest tokens "
            "of the whole distribution, not those of a nucleus; write --rollout-top-p 1.0"
        )


@dataclass(frozen=True, slots=True, eq=False)
class IncrementalExperts(EngineWrapper):
    """Requests the experts of new tokens only, for the single conversation of an episode.

    A request for the experts of n tokens returns n x layers x topk numbers, so the sum over an episode would grow with
    the square of its length. With the field `routed_experts_start_len` SGLang returns only later rows
    (managers/io_struct.py, 0.5.23). A server that ignores the field returns all rows. The number of rows shows the
    difference.
    """

    engine: SGLangEngine
    width: int
    """The number of values in a row: num_layers * moe_router_topk."""
    _known: list[int] = field(default_factory=list)
    """The tokens of the last request and of its response. The experts of all these tokens except the last are known."""

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, **request: Unpack[RequestFields]
    ) -> Generation:
        length = len(self._known)
        start = length - 1 if length and list(input_ids[:length]) == self._known else 0
        extra = {_START: start} if start else None
        generation = await self.engine.generate(input_ids, sampling_params, extra=extra, **request)
        experts = _ints(generation.meta, _EXPERTS)
        if experts is None or not self.width:
            return generation
        self._known[:] = *input_ids, *generation.tokens
        rows = len(self._known) - 1 - start
        if start and experts.size == rows * self.width:
            return replace(generation, meta={**generation.meta, _START: start})
        return generation


def write_replay_data(args: Any, sample: Any, segment: Segment) -> None:
    """Write the data that slime's flags ask for into the training sample of this segment.

    Raises ConfigError if the engine did not return the data of a flag.
    """
    flags = HostArgs.of(args)
    if not (flags.replays_top_p or flags.use_rollout_routing_replay or flags.use_score_centering):
        return
    # A sample that is not shipped is not replayed, and an aborted request may lack the data.
    shipped = not sample.remove_sample and sample.status is not type(sample).Status.ABORTED
    generations = _generations(segment) if shipped else []
    if flags.replays_top_p and hasattr(sample, "rollout_top_p_token_ids"):
        ids, offsets = _top_p(flags, sample.response_length, generations)
        sample.rollout_top_p_token_ids, sample.rollout_top_p_token_offsets = _tensor(ids), _tensor(offsets)
    if flags.use_rollout_routing_replay and hasattr(sample, "rollout_routed_experts"):
        experts = _routed_experts(flags, len(sample.tokens) - 1, segment.prompt_length, generations)
        # slime's older commits and its relatives read an array here.
        sample.rollout_routed_experts = _tensor(experts) if hasattr(sample, "append_response_tokens") else experts
    if flags.use_score_centering and hasattr(sample, "rollout_topk_token_ids"):
        heads = _top_k(flags, sample.response_length, generations)
        sample.rollout_topk_token_ids, sample.rollout_topk_log_probs = heads


@dataclass(frozen=True, slots=True)
class _Generation:
    """The tokens `response[start:stop]`, which a single request sampled. `count` is the number of tokens that the
    engine sampled. The number is larger than stop - start if the tokens were cut."""

    start: int
    stop: int
    count: int
    meta: Mapping[str, Any]


def _generations(segment: Segment) -> list[_Generation]:
    """The requests that sampled the segment's tokens, in order. In a turn of several requests, only the tokens of the
    last may be cut."""
    generations: list[_Generation] = []
    sampled = [span for span in segment.spans if span.kind == "sampled"]
    for turn in sorted({span.turn for span in sampled}):
        spans = [span for span in sampled if span.turn == turn]
        start, end = spans[0].start, spans[-1].stop
        for meta in segment.turns[turn].meta:
            if count := meta.get("completion_tokens", 0):
                generations.append(_Generation(start, min(start + count, end), count, meta))
                start += count
    return generations


def _top_p(flags: HostArgs, response_length: int, generations: Sequence[_Generation]) -> tuple[Ints, Ints]:
    """The ids of all top-p nuclei, and the offset of each token's nucleus, shape [response_length + 1]. Tokens that the
    model did not sample have no nucleus."""
    import numpy as np

    sizes = np.zeros(response_length + 1, np.int32)
    nuclei = [np.zeros(0, np.int32)]
    for generation in generations:
        ids, offsets = _ints(generation.meta, _TOP_P_IDS), _ints(generation.meta, _TOP_P_OFFSETS)
        if ids is None or offsets is None:
            raise ConfigError(
                f"--rollout-top-p {flags.rollout_top_p}: slime's trainer replays the nucleus of each token, and the "
                "engine returned no top_p_token_ids; run SGLang with slime's patch, or set --rollout-top-p 1"
            )
        if len(offsets) != generation.count + 1 or offsets[0] != 0 or offsets[-1] != len(ids):
            raise ConfigError(
                f"--rollout-top-p {flags.rollout_top_p}: the engine returned {len(ids)} top_p_token_ids and "
                f"{len(offsets)} offsets for {generation.count} tokens; its patch does not fit slime's"
            )
        offsets = offsets[: generation.stop - generation.start + 1]
        sizes[generation.start + 1 : generation.stop + 1] = np.diff(offsets)
        nuclei.append(ids[: offsets[-1]])
    return np.concatenate(nuclei), np.cumsum(sizes, dtype=np.int32)


def _top_k(
    flags: HostArgs, response_length: int, generations: Sequence[_Generation]
) -> tuple[Ints, NDArray[np.float32]]:
    """The likeliest token ids at each place and their log-probs, both [response_length, k]. For tokens that the model
    did not sample, slime expects k different ids of equal probability, which its loss masks (slime/utils/types.py,
    0.4)."""
    import numpy as np

    k = flags.score_centering_top_k
    ids = np.tile(np.arange(k, dtype=np.int32), (response_length, 1))
    log_probs = np.full((response_length, k), -math.log(k), np.float32)
    for generation in generations:
        near = _numbers(generation.meta, _TOP_K_IDS, np.int32)
        near_log_probs = _numbers(generation.meta, _TOP_K_LOG_PROBS, np.float32)
        if near is None or near_log_probs is None or {near.size, near_log_probs.size} != {generation.count * k}:
            raise ConfigError(
                "--use-score-centering: the engine did not return output_topk_token_ids and output_topk_log_probs for "
                f"{generation.count} tokens x {k}; run SGLang with slime's patch, or remove the flag"
            )
        place = slice(generation.start, generation.stop)
        count = generation.stop - generation.start
        ids[place], log_probs[place] = near.reshape(-1, k)[:count], near_log_probs.reshape(-1, k)[:count]
    return ids, log_probs


def _routed_experts(flags: HostArgs, rows: int, prompt_length: int, generations: Sequence[_Generation]) -> Ints:
    """Experts of each token except the last, shape [rows, num_layers, moe_router_topk].

    The response to a request has the experts of all tokens, or of the tokens from routed_experts_start_len on. These
    experts replace earlier experts. Tokens after the last request have no loss, so they get arbitrary experts: slime's
    own padding (cp_utils.py:239).
    """
    import numpy as np

    layers, topk = flags.num_layers, flags.moe_router_topk
    routes = np.zeros((0, layers, topk), np.int32)
    for generation in _from_last_complete(generations):
        experts, start = _ints(generation.meta, _EXPERTS), _start(generation)
        if experts is None:
            raise ConfigError(
                "--use-rollout-routing-replay: the engine returned no routed_experts; start SGLang with "
                "--enable-return-routed-experts, take a router that passes the request on (PyPI's sglang-router 0.3.2 "
                "does not), or remove the flag"
            )
        seen = prompt_length + generation.start + generation.count - 1
        if start > len(routes) or experts.size != (seen - start) * layers * topk:
            raise ConfigError(
                f"--use-rollout-routing-replay: the engine returned {experts.size} routed_experts from token {start} "
                f"on, where slime needs {seen - start} x {layers} layers x {topk}; does --hf-checkpoint fit the engine?"
            )
        new = experts.reshape(-1, layers, topk)[: prompt_length + generation.stop - 1 - start]
        routes = np.concatenate([routes[:start], new])
    missing = (rows - len(routes), layers, topk)
    padding = np.arange(missing[0] * layers * topk, dtype=np.int32) % (flags.num_experts or topk)
    return np.concatenate([routes, padding.reshape(missing)])


def _from_last_complete(generations: Sequence[_Generation]) -> Sequence[_Generation]:
    """The generations from the last on that returned the experts of a whole sequence. Earlier generations need not be
    decoded."""
    whole = [i for i, generation in enumerate(generations) if _is_complete(generation.meta)]
    return generations[whole[-1] if whole else 0 :]


def forget_old_experts(trajectory: Trajectory) -> None:
    """Remove experts that a later request has returned again. Otherwise memory would grow with the square of the
    length."""
    turns = trajectory.segment.turns
    seen = [(turn, i) for turn in turns for i in range(len(turn.meta))]
    last = max((n for n, (turn, i) in enumerate(seen) if _is_complete(turn.meta[i])), default=0)
    for turn, i in seen[:last]:
        turn.meta[i] = {name: value for name, value in turn.meta[i].items() if name not in _EXPERTS}


def _is_complete(meta: Mapping[str, Any]) -> bool:
    """Whether `meta` has the experts of a whole sequence, from the first token on."""
    return not meta.get(_START) and any(meta.get(name) is not None for name in _EXPERTS)


def _start(generation: _Generation) -> int:
    return int(generation.meta.get(_START) or 0)


def _ints(meta: Mapping[str, Any], names: Sequence[str]) -> Ints | None:
    import numpy as np

    return _numbers(meta, names, np.int32)


def _numbers(meta: Mapping[str, Any], names: Sequence[str], kind: type[N]) -> NDArray[N] | None:
    """The first of these fields that exists, as a flat array. SGLang sends base64 of the bytes; lists of numbers are
    read, too."""
    import numpy as np

    value = next((meta[name] for name in names if meta.get(name) is not None), None)
    if isinstance(value, str):
        value = base64.b64decode(value)
    if isinstance(value, bytes):
        return np.frombuffer(value, kind)
    return None if value is None else np.asarray(value, kind).reshape(-1)


def _tensor(array: Ints) -> Any:
    import torch  # slime requires torch

    return torch.from_numpy(array)

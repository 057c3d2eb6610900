"""What slime's trainer replays of each generation: top-p nuclei (--rollout-top-p) and routed experts (R3).

The rules are those of slime's `Sample.append_response_tokens` (slime/utils/types.py:253, 624b824a8), and the tests hold
the two equal. They are written anew because that method refuses what an episode may hold, a generation cut at its stop
string and tokens that the engine never read, and because slime's relatives and its older commits do not have it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrl.errors import ConfigError
from agentrl.segment import Segment
from agentrl.slime.host import HostArgs
from agentrl.trajectory import Trajectory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int32]

_TOP_P_IDS = ("top_p_token_ids", "top_p_kept_token_ids")
_TOP_P_OFFSETS = ("top_p_token_offsets", "top_p_kept_token_offsets")
_EXPERTS = ("routed_experts",)


def request_fields(args: Any) -> dict[str, Any]:
    """Fields of the request body that ask for routed experts. Top-p ids are asked for in slime's sampling_params."""
    return {"return_routed_experts": True} if HostArgs.of(args).use_rollout_routing_replay else {}


def fill(args: Any, sample: Any, segment: Segment) -> None:
    """Write into a training sample, made of this segment, what slime's flags have it replay; nothing without them.

    Raises ConfigError where the engine did not return what a flag needs.
    """
    flags = HostArgs.of(args)
    # What is not shipped is not replayed, and an aborted request may come without what it would be replayed by.
    shipped = not sample.remove_sample and sample.status is not type(sample).Status.ABORTED
    played = _generations(segment) if shipped else []
    if flags.replays_top_p and hasattr(sample, "rollout_top_p_token_ids"):
        ids, offsets = _top_p(flags, sample.response_length, played)
        sample.rollout_top_p_token_ids, sample.rollout_top_p_token_offsets = _tensor(ids), _tensor(offsets)
    if flags.use_rollout_routing_replay and hasattr(sample, "rollout_routed_experts"):
        experts = _routed_experts(flags, len(sample.tokens) - 1, segment.prompt_length, played)
        # slime's older commits and its relatives read an array here.
        sample.rollout_routed_experts = _tensor(experts) if hasattr(sample, "append_response_tokens") else experts


@dataclass(frozen=True, slots=True)
class _Generation:
    """`response[start:stop]`, sampled by one request. The engine sampled `count` tokens: more where it was cut."""

    start: int
    stop: int
    count: int
    meta: Mapping[str, Any]


def _generations(segment: Segment) -> list[_Generation]:
    """The requests that sampled tokens, in order. Those of one turn lie side by side; only its last may be cut."""
    found: list[_Generation] = []
    sampled = [span for span in segment.spans if span.kind == "sampled"]
    for turn in sorted({span.turn for span in sampled}):
        at = min(span.start for span in sampled if span.turn == turn)
        end = max(span.stop for span in sampled if span.turn == turn)
        for meta in segment.turns[turn].meta:
            if count := meta.get("completion_tokens", 0):
                found.append(_Generation(at, min(at + count, end), count, meta))
                at += count
    return found


def _top_p(flags: HostArgs, response_length: int, generations: Sequence[_Generation]) -> tuple[Ints, Ints]:
    """Ids of all nuclei, and where each token's begins, shape [response_length + 1]; unsampled tokens have none."""
    import numpy as np

    sizes = np.zeros(response_length + 1, np.int32)
    kept = [np.zeros(0, np.int32)]
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
        kept.append(ids[: offsets[-1]])
    return np.concatenate(kept), np.cumsum(sizes, dtype=np.int32)


def _routed_experts(flags: HostArgs, rows: int, prompt_length: int, generations: Sequence[_Generation]) -> Ints:
    """Experts of each token but the last, shape [rows, num_layers, moe_router_topk].

    What a request returns replaces what is known of the tokens it covers: all, or those from routed_experts_start_len
    on. Tokens behind the last request have no loss, so any experts will do: slime's own padding (cp_utils.py:239).
    """
    import numpy as np

    layers, topk = flags.num_layers, flags.moe_router_topk
    known = np.zeros((0, layers, topk), np.int32)
    for generation in _since_whole(generations):
        experts, start = _ints(generation.meta, _EXPERTS), _start(generation)
        if experts is None:
            raise ConfigError(
                "--use-rollout-routing-replay: the engine returned no routed_experts; start SGLang with "
                "--enable-return-routed-experts, or remove the flag"
            )
        seen = prompt_length + generation.start + generation.count - 1
        if start > len(known) or experts.size != (seen - start) * layers * topk:
            raise ConfigError(
                f"--use-rollout-routing-replay: the engine returned {experts.size} routed_experts from token {start} "
                f"on, where slime needs {seen - start} x {layers} layers x {topk}; does --hf-checkpoint fit the engine?"
            )
        new = experts.reshape(-1, layers, topk)[: prompt_length + generation.stop - 1 - start]
        known = np.concatenate([known[:start], new])
    missing = (rows - len(known), layers, topk)
    padding = np.arange(missing[0] * layers * topk, dtype=np.int32) % (flags.num_experts or topk)
    return np.concatenate([known, padding.reshape(missing)])


def _since_whole(generations: Sequence[_Generation]) -> Sequence[_Generation]:
    """From the last one on that covers its whole sequence: those before it need not be decoded."""
    whole = [i for i, generation in enumerate(generations) if _covers_all(generation.meta)]
    return generations[whole[-1] if whole else 0 :]


def forget_old_experts(trajectory: Trajectory) -> None:
    """After each turn: experts that a later request returned anew, which would be the square of an episode's length."""
    turns = trajectory.segment.turns
    seen = [(turn, i) for turn in turns for i in range(len(turn.meta))]
    last = max((n for n, (turn, i) in enumerate(seen) if _covers_all(turn.meta[i])), default=0)
    for turn, i in seen[:last]:
        turn.meta[i] = {name: value for name, value in turn.meta[i].items() if name not in _EXPERTS}


def _covers_all(meta: Mapping[str, Any]) -> bool:
    """It holds the experts of a whole sequence, not those from some token on."""
    return not meta.get("routed_experts_start_len") and any(meta.get(name) is not None for name in _EXPERTS)


def _start(generation: _Generation) -> int:
    return int(generation.meta.get("routed_experts_start_len") or 0)


def _ints(meta: Mapping[str, Any], names: Sequence[str]) -> Ints | None:
    """An array of int32: as SGLang sends it, base64 of its bytes, or as numbers."""
    import numpy as np

    value = next((meta[name] for name in names if meta.get(name) is not None), None)
    if isinstance(value, str):
        value = base64.b64decode(value)
    if isinstance(value, bytes):
        return np.frombuffer(value, np.int32)
    return None if value is None else np.asarray(value, np.int32).reshape(-1)


def _tensor(array: Ints) -> Any:
    import torch  # there is no slime without it

    return torch.from_numpy(array)

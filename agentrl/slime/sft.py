"""Supervised training under slime, in place of its `slime.rollout.sft_rollout`:

    --rollout-function-path agentrl.slime.sft.generate_rollout --loss-type sft_loss --debug-train-only

The rows are chat (--input-key messages --tool-key tools). A row gets the tokens that an episode with the same messages
would have.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

from agentrl.episode.shared import load_renderer_once
from agentrl.errors import ConfigError
from agentrl.render.base import Renderer
from agentrl.rollout.data.chat_rows import ChatReader, ChatRow, SkippedError
from agentrl.slime.host import HostArgs, epoch_of, rollout_output
from agentrl.slime.sample import clear
from agentrl.slime.task import metadata_of, without_arrays

log = logging.getLogger("agentrl")

_UNBOUNDED = 1 << 30


def generate_rollout(args: Any, rollout_id: int, data_buffer: Any, evaluation: bool = False) -> Any:
    """The next `--rollout-batch-size` rows of the data set that can be learned, each as a sample.

    A row that the chat template cannot reproduce exactly is skipped and logged with the reason. Another row replaces
    it, so that a batch is always full. Raises ConfigError if a whole epoch has no usable row.
    """
    if evaluation:
        raise ConfigError(
            "agentrl.slime.sft: nothing is evaluated: leave out --eval-interval, or name another function"
        )
    flags = HostArgs.of(args)
    reader = _reader(flags)
    batch: list[list[Any]] = []
    skipped: Counter[str] = Counter()
    in_a_row = 0
    for sample in _samples(flags, data_buffer):
        try:
            _write(sample, _read(reader, sample), reader.renderer)
        except SkippedError as exc:
            skipped[exc.reason] += 1
            in_a_row += 1
            log.warning("sft: row skipped: %s (%s)", exc, _shown(sample))
            if in_a_row > epoch_of(data_buffer):
                raise ConfigError(_nothing(flags, skipped)) from exc
            continue
        in_a_row = 0
        batch.append([sample])
        if len(batch) == flags.rollout_batch_size:
            break
    if skipped:
        log.warning("sft: rollout %d skipped %d rows, and drew others: %s", rollout_id, skipped.total(), dict(skipped))
    return rollout_output(batch, {"sft/skipped_rows": skipped.total()})


def _nothing(flags: HostArgs, skipped: Counter[str]) -> str:
    reasons = "; ".join(f"{count} times: {reason}" for reason, count in skipped.most_common(3))
    return f"agentrl.slime.sft: no row of {flags.prompt_data} could be learned from in a whole epoch: {reasons}"


def _samples(flags: HostArgs, data_buffer: Any) -> Iterator[Any]:
    """An endless stream of rows: first a batch, read ahead, then single rows to replace skipped rows."""
    if flags.n_samples_per_prompt != 1:
        raise ConfigError("agentrl.slime.sft: a row is learned once: leave out --n-samples-per-prompt")
    if flags.apply_chat_template:
        raise ConfigError("agentrl.slime.sft: remove --apply-chat-template: the messages are needed as they are")
    count = flags.rollout_batch_size
    while True:
        for (sample,) in data_buffer.get_samples(count):
            yield sample
        count = 1  # to replace skipped rows


def _read(reader: ChatReader, sample: Any) -> ChatRow:
    """Read the chat of a sample. Raises SkippedError, and ConfigError if the row is no chat."""
    row = {"messages": without_arrays(sample.prompt), "tools": without_arrays(metadata_of(sample).get("tools"))}
    try:
        return reader.read(row)
    except ConfigError as exc:
        raise ConfigError(f"agentrl.slime.sft: {exc}; name the column of messages with --input-key") from exc


def _write(sample: Any, chat: ChatRow, renderer: Renderer) -> None:
    """Write the tokens up to the last learned token. The response begins after the messages before the first assistant
    message."""
    segment = chat.trajectory.segment
    end = max(span.stop for span in segment.spans if span.trained)
    clear(sample)
    sample.tokens = segment.tokens[: segment.prompt_length + end]
    sample.response = renderer.decode(segment.response[:end])
    sample.response_length, sample.loss_mask = end, segment.loss_mask[:end]
    sample.reward = 0.0
    sample.status = type(sample).Status.TRUNCATED if chat.left_out else type(sample).Status.COMPLETED


def _shown(sample: Any) -> str:
    """The beginning of a row, by which the user can find the row: slime gives no line number."""
    texts = [m.get("content") for m in without_arrays(sample.prompt) if isinstance(m, dict) and m.get("role") == "user"]
    return f"sample {sample.index}, the user says {texts[0]!r:.60}" if texts else f"sample {sample.index}"


def _reader(flags: HostArgs) -> ChatReader:
    if not flags.hf_checkpoint:
        raise ConfigError("agentrl.slime.sft: --hf-checkpoint names the tokenizer and its chat template; give it")
    kwargs = json.dumps(dict(flags.apply_chat_template_kwargs or {}), sort_keys=True)
    renderer = load_renderer_once(flags.hf_checkpoint, None, kwargs, True)  # slime runs the tokenizer's own code, too
    return ChatReader(renderer=renderer, context=flags.rollout_max_context_len or _UNBOUNDED)

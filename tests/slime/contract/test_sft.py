"""Supervised training: slime's own data source and conversion around `agentrl.slime.sft.generate_rollout`."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from agentrl.errors import ConfigError

SFT = {
    "rollout_function_path": "agentrl.slime.sft.generate_rollout",
    "input_key": "messages",
    "tool_key": "tools",
    "label_key": None,
    "n_samples_per_prompt": 1,
    "global_batch_size": 3,
    "rollout_batch_size": 3,
    "hf_checkpoint": None,
}
LOOKUP = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object", "properties": {}}}}


def row(question: str, *said: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, *said], **more}


def told(content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


CALL = {"id": "1", "type": "function", "function": {"name": "lookup", "arguments": '{"city": "Rome"}'}}
ROWS = [
    row(
        "Weather?",
        told(None, tool_calls=[CALL]),
        {"role": "tool", "tool_call_id": "1", "content": "foggy"},
        told("It is foggy."),
        tools=[LOOKUP],
    ),
    row("Lost?", told("a", reasoning_content="the template writes no thoughts")),
    row("Twice?", told("not this", step_loss_mask=0), {"role": "user", "content": "And?"}, told("but this")),
    row("Last?", told("end")),
]


@pytest.fixture
def sft(start: Any, checkpoint: Any) -> Any:
    return lambda rows, **more: start(rows, **{**SFT, "hf_checkpoint": str(checkpoint), **more})


@pytest.mark.path("supervised training")
def test_rows_become_samples_that_the_trainer_takes(sft: Any, renderer: Any, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "agentrl"):
        run = sft(ROWS)
        samples, metrics = run.samples()
    data, _ = run.convert(samples)

    def learned(sample: Any) -> str:
        response = sample.tokens[-sample.response_length :]
        return renderer.decode([token for token, taught in zip(response, sample.loss_mask, strict=True) if taught])

    assert [learned(sample) for sample in samples] == [
        '<tool_call>\n{"name": "lookup", "arguments": {"city": "Rome"}}\n</tool_call><|im_end|>It is foggy.<|im_end|>',
        "but this<|im_end|>",
        "end<|im_end|>",
    ]
    assert [len(mask) for mask in data["loss_masks"]] == data["response_lengths"]
    assert all(mask[-1] == 1 for mask in data["loss_masks"])
    assert data["raw_reward"] == [0.0] * 3
    assert "rollout_log_probs" not in data
    assert metrics.get("sft/skipped_rows") == 1
    assert "row skipped: a thought, and the chat template writes none" in caplog.text
    assert "the user says 'Lost?'" in caplog.text


@pytest.mark.path("supervised training")
def test_the_next_rollout_goes_on_in_the_data(sft: Any) -> None:
    run = sft(ROWS)
    first, second = (run.samples(rollout)[0] for rollout in (0, 1))

    assert [sample.prompt[0]["content"] for sample in (*first, *second)] == [
        "Weather?", "Twice?", "Last?", "Weather?", "Twice?", "Last?",
    ]  # fmt: skip


@pytest.mark.path("supervised training")
def test_a_data_set_that_teaches_nothing_ends_the_run(sft: Any) -> None:
    with pytest.raises(ConfigError, match=r"no row of .* could be learned from in a whole epoch: 3 times: a thought"):
        sft([ROWS[1]] * 2).samples()
    with pytest.raises(ConfigError, match="name the column of messages with --input-key"):
        sft([{"messages": "text", "n": json.dumps(1)}]).samples()
    with pytest.raises(ConfigError, match="leave out --n-samples-per-prompt"):
        sft(ROWS, n_samples_per_prompt=2).samples()


@pytest.mark.path("supervised training")
def test_turns_behind_the_context_are_left_out(sft: Any, host: Any) -> None:
    whole = sft(ROWS[:1] * 3).samples()[0][0]
    cut = sft(ROWS[:1] * 3, rollout_max_context_len=len(whole.tokens) - 1).samples()[0][0]

    assert (whole.status, cut.status) == (host.Status.COMPLETED, host.Status.TRUNCATED)
    assert cut.tokens == whole.tokens[: len(cut.tokens)]
    assert sum(cut.loss_mask) < sum(whole.loss_mask)

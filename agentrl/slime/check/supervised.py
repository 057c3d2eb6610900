"""Rules for supervised training: a run with the rollout function `agentrl.slime.sft.generate_rollout`."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl._util.findings import Finding, error, note, warning
from agentrl.slime.check.flags import Words

ROLLOUT = "agentrl.slime.sft.generate_rollout"


def is_supervised(words: Words) -> bool:
    """Whether the command learns from chat, and plays no episode."""
    return words.values.get("--rollout-function-path", [])[:1] == [ROLLOUT]


def supervised(words: Words) -> Iterator[Finding]:
    flags = {flag: values[0] if values else "" for flag, values in words.values.items()}
    if "--apply-chat-template" in flags:
        yield error("remove --apply-chat-template: the messages are needed as they are")
    if flags.get("--n-samples-per-prompt", "1") != "1":
        yield error("remove --n-samples-per-prompt: a row is learned once")
    if flags.get("--loss-type") != "sft_loss":
        yield error("add --loss-type sft_loss: without it slime learns from rewards, and all of them are 0")
    if "--eval-interval" in flags:
        yield error("remove --eval-interval: the rows of chat are not evaluated")
    for flag, why in (
        ("--debug-train-only", "starts engines that nobody asks"),
        ("--disable-compute-advantages-and-returns", "computes advantages of rewards that are all 0"),
        ("--calculate-per-token-loss", "weighs each row equally, however long it is"),
    ):
        if flag not in flags:
            yield warning(f"add {flag}: without it slime {why}")
    if "--input-key" not in flags:
        yield warning("add --input-key messages: without it slime reads the column `input`")
    if "--tool-key" not in flags:
        yield note("add --tool-key tools if the rows have tools")

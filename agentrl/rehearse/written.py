"""Checks a launch as it is written, before a flag is replaced: a small model would heal a wrong size.

slime's own parser reads the words, and Megatron checks its model and its batches. The rules of `agentrl check slime`
follow, and a few rules of programs that a rehearsal replaces or starts with other numbers.

    python -m agentrl.rehearse.written REPORT GPUS train.py --flag value ...

The report has a problem on each line, which begins with its stage. GPUS is the number that `ray start` names, or empty.
The exit status is not 0 if slime or Megatron refuses the words; the cause is an event of the stage `arguments`.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl._util.findings import Finding, Level
from agentrl.errors import ConfigError
from agentrl.rehearse.standins import events
from agentrl.slime.check import arguments, check, read_command
from agentrl.slime.check.ask import ask, plain
from agentrl.slime.check.checkpoint import checkpoint
from agentrl.slime.check.command import TrainCommand
from agentrl.slime.check.flags import Words
from agentrl.slime.check.rules import batches
from agentrl.slime.check.setup import Setup, read_keys

ARGUMENTS = "arguments"
SGLANG_FLAGS = Path(events.__file__).with_name("sglang_flags.txt")
"""Names of the flags of SGLang 0.5.9 to 0.5.23, and older ones that slime's scripts use."""
_ENGINE_FLAGS = ("--sglang-", "--router-", "--prefill-")
_CONFIG = "--custom-config-path"


def problems(words: Sequence[str], gpus: int | None) -> Iterator[str]:
    """The problems of a command, a line each. Raises SystemExit if slime refuses the words, and the exceptions of
    Megatron. An event has the cause."""
    command = read_command(words)
    keys: dict[str, Any] = {}
    with contextlib.suppress(ConfigError):  # the check reports the file
        keys = read_keys(next(iter(Words(command.words).values.get(_CONFIG, ())), None))
    yield from (f"{ARGUMENTS}: {problem}" for problem in numbers_read_as_text(keys))
    host = arguments.host_of(command.path)
    answer: dict[str, Any] = ask(host, words) if host else {"absent": arguments.NO_HOST}
    if "refused" in answer:
        raise SystemExit(answer["refused"])
    args = Namespace(**answer.get("args", {}))
    answer = json.loads(json.dumps(answer, default=plain))
    if "flags" in answer:
        answer["flags"] += unseen_flags(args, words)
    yield from (f"{ARGUMENTS}: {finding}" for finding in _findings(command, keys, answer))
    if "args" in answer:
        with events.only_errors(ARGUMENTS):
            _check_megatron(args)
        yield from bad_sizes(args, gpus)


def numbers_read_as_text(keys: Mapping[str, Any]) -> Iterator[str]:
    """Numbers that YAML reads as text, such as 1e-6. slime makes them arguments as they are."""
    for key, value in keys.items():
        if isinstance(value, str) and re.fullmatch(r"[+-]?\d+e[+-]?\d+", value):
            number = value.replace("e", ".0e")
            yield f"{_CONFIG}: YAML reads `{key}: {value}` as text, not as a number (str); write {key}: {number}"


def unseen_flags(args: Namespace, words: Sequence[str]) -> Iterator[str]:
    """Flags that are none of the parsers' here, but would be in the job: SGLang's, of which a rehearsal has few, and
    those of the parsers that slime leaves out without engines."""
    yield from (f"--sglang-{name}" for name in SGLANG_FLAGS.read_text(encoding="utf-8").split())
    if args.debug_train_only:
        yield from (word.partition("=")[0] for word in words if word.startswith(_ENGINE_FLAGS))


def _findings(command: TrainCommand, keys: Mapping[str, Any], answer: Mapping[str, Any]) -> Iterator[str]:
    """The findings of the check. Its rules of agentrl apply only to a command that names agentrl."""
    reading = arguments.read(command, keys, answer)
    seen = [finding for finding in reading.findings if finding.level in (Level.ERROR, Level.WARNING)]
    # `exact` would let rules read the machine's processors and its router, which are not those of the cluster
    reading = replace(reading, exact=False, findings=[])
    if "agentrl" in keys or any(word.startswith("agentrl.") for word in command.words):
        seen += [finding for finding in check(command, reading) if finding.level == Level.ERROR]
    else:
        seen += _general(Setup(reading.args, command, None, None))
    yield from (" ".join(finding.message.split()) for finding in dict.fromkeys(seen))


def _general(setup: Setup) -> Iterator[Finding]:
    """Errors of the rules that hold without agentrl."""
    for rule in (batches, checkpoint):
        yield from (finding for finding in rule(setup) if finding.level == Level.ERROR)


def _check_megatron(args: Namespace) -> None:
    """Let Megatron check the model and the batches, as each trainer would do. Raises what Megatron raises."""
    from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
    from megatron.training.arguments import core_transformer_config_from_args

    if args.debug_rollout_only:
        return
    core_transformer_config_from_args(args)
    init_num_microbatches_calculator(
        args.rank,
        args.rampup_batch_size,
        args.global_batch_size,
        args.micro_batch_size,
        args.data_parallel_size,
        args.decrease_batch_size_if_needed,
    )


def bad_sizes(args: Namespace, gpus: int | None) -> Iterator[str]:
    """Numbers that do not fit each other, and that only a stage after the parser would refuse."""
    engine, rollout = args.rollout_num_gpus_per_engine, args.rollout_num_gpus
    if rollout and rollout % engine:
        yield (
            f"engines: --rollout-num-gpus {rollout} is no multiple of --rollout-num-gpus-per-engine {engine}: GPUs are "
            "left over, or no engine starts"
        )
    heads = getattr(args, "num_attention_heads", None)
    split = engine // (getattr(args, "sglang_dp_size", 1) if getattr(args, "sglang_enable_dp_attention", False) else 1)
    if rollout and heads and split and heads % split:
        yield (
            f"engines: --rollout-num-gpus-per-engine {engine}: SGLang cannot split {heads} attention heads over "
            f"{split} GPUs; write a divisor"
        )
    experts = args.expert_model_parallel_size * (args.expert_tensor_parallel_size or 1)
    experts *= args.pipeline_model_parallel_size
    if args.num_experts and args.world_size % experts:
        yield (
            f"actors: {args.world_size} trainers are no multiple of {experts}, the product of the expert-model, "
            "expert-tensor and pipeline-model parallel sizes"
        )
    if gpus is not None:
        yield from _missing_gpus(args, gpus)


def _missing_gpus(args: Namespace, gpus: int) -> Iterator[str]:
    """Whether the GPUs of `ray start` are too few. A job of several nodes counts those of one node only."""
    trainers, rollout = args.actor_num_nodes * args.actor_num_gpus_per_node, args.rollout_num_gpus or 0
    total = max(trainers, rollout) if args.colocate else trainers + rollout
    is_alone = args.actor_num_nodes == 1 and total <= args.num_gpus_per_node
    needed = total if is_alone else args.actor_num_gpus_per_node
    if needed > gpus:
        yield (
            f"placement: the job asks for {needed} GPUs{'' if is_alone else ' on a node'}, but `ray start` names "
            f"--num-gpus {gpus}: slime would wait without end; correct one of them"
        )


def main() -> None:
    report, gpus, *words = sys.argv[1:]
    with Path(report).open("w", encoding="utf-8") as file:
        for line in problems(words, int(gpus) if gpus else None):
            file.write(f"{line}\n")


if __name__ == "__main__":
    main()

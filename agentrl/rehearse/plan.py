"""The flags that a laptop cannot take as written: each with its value before and after, and the reason.

The launch's own words stay in place, and the replacements follow: argparse takes the last value. So a value that
slime's parser refuses is still refused. Only flags without a counterpart on a CPU are taken out.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from agentrl.rehearse.launch import Flags, SlimeLaunch

CPU_SWITCHES = (
    *("--no-gradient-accumulation-fusion", "--no-rope-fusion", "--no-masked-softmax-fusion", "--no-persist-layer-norm"),
    *("--no-bias-swiglu-fusion", "--no-bias-dropout-fusion", "--use-cpu-initialization", "--no-load-rng"),
)
_NO_KERNEL = {
    "--use-precision-aware-optimizer": "the optimizer of TransformerEngine needs a GPU",
    "--optimizer-cpu-offload": "the optimizer is on the CPU already",
    "--overlap-cpu-optimizer-d2h-h2d": "the optimizer is on the CPU already",
    "--moe-permute-fusion": "a kernel for a GPU",
    "--moe-enable-deepep": "a kernel for a GPU",
    "--tp-comm-overlap": "a kernel for a GPU",
}
_NO_LAYER = {
    "--decoder-first-pipeline-num-layers": "the small model has fewer layers",
    "--decoder-last-pipeline-num-layers": "the small model has fewer layers",
    "--num-layers-per-virtual-pipeline-stage": "the small model has fewer layers",
    "--pipeline-model-parallel-layout": "the small model has fewer layers",
    "--mtp-num-layers": "the small model has no layers for speculation",
    "--enable-mtp-training": "the small model has no layers for speculation",
}
_NO_KERNEL_PREFIX = {"--fp8-": "8-bit kernels need a GPU", "--fp4-": "4-bit kernels need a GPU"}
_PROMPTS, _GROUP, _EVAL_SAMPLES, _EVAL_ROWS = 4, 4, 2, 8
_RESPONSE = 256
"""The most tokens of a response, with a random model."""
_LOGITS_BYTES = 300e6
"""The most bytes of the logits of a micro-batch, in float32. Training needs a few times as much."""
_MOST_RANKS = 4
_RATE = 1e-3
_FILTER = "agentrl.rehearse.random_model.pass_in_turn"


@dataclass(frozen=True, slots=True)
class Replacement:
    flag: str
    before: str | None
    """The launch's value. None for an added flag, empty for a switch."""
    after: str | None
    """The rehearsal's value. None for a flag that is left out."""
    reason: str


class Layout(NamedTuple):
    """Logical GPUs of the rehearsal."""

    nodes: int
    gpus: int
    """On each node."""
    ranks: int
    """Of the trainer."""
    engines: int
    colocated: bool


@dataclass(frozen=True, slots=True)
class Choices:
    """The parts of a plan that the command line, the model and this machine decide."""

    rollouts: int = 2
    full: bool = False
    model: Path = Path()
    """The folder of the rehearsal's model. With `full` the launch's own."""
    random: bool = True
    """Whether the weights are random."""
    vocabulary: int = 0
    sizes: tuple[tuple[str, str], ...] = ()
    """Flags of the model's sizes, with their values in the rehearsal."""
    model_reason: str = "a small model with random weights"
    save: Path | None = None
    """The folder of checkpoints. None if the launch saves none."""
    save_reason: str = ""
    data: tuple[Replacement, ...] = ()
    """Replacements of data files."""
    out: Path = Path()


@dataclass(slots=True)
class Plan:
    words: list[str]
    """The arguments of the training program."""
    replacements: list[Replacement]
    layout: Layout
    variables: dict[str, str] = field(default_factory=dict)
    """Variables of the environment that the flags need."""
    saves: bool = False
    """Whether the launch writes checkpoints, from which it can resume."""

    def resumed(self, rollouts: int) -> list[str]:
        """The arguments of a second start, which trains one more rollout."""
        return [*self.words, "--num-rollout", str(rollouts + 1), "--override-opt_param-scheduler"]


def make_plan(launch: SlimeLaunch, choices: Choices) -> Plan:
    flags = launch.flags
    layout = make_layout(flags)
    items = [
        *_model(flags, choices),
        *_storage(flags, choices),
        *choices.data,
        *([] if choices.full else _smaller(flags, choices)),
        *_placed(flags, layout),
        *_tracking(flags, choices),
        *_aborting(launch),
        *_cpu(flags),
        *_fewer_layers(flags),
    ]
    replacements = [item for item in items if item.before != item.after]
    variables = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}  # Megatron demands it for tensor and context parallelism
    if path := flags.text("--dynamic-sampling-filter-path"):
        variables["AGENTRL_REHEARSAL_FILTER"] = path
    return Plan(_changed(flags, replacements), replacements, layout, variables, choices.save is not None)


def written_words(flags: Flags, model: Path, absent: Iterable[Replacement]) -> list[str]:
    """The arguments as written, for slime's parser on a CPU. `model` is a folder with the model's own sizes, `absent`
    replaces files of another machine."""
    return _changed(flags, [_replaced(flags, "--hf-checkpoint", model, ""), *absent, *_cpu(flags)])


def make_layout(flags: Flags) -> Layout:
    """As few logical GPUs as show the kinds of parallelism and the placement of the launch."""
    nodes, gpus = max(1, flags.number("--actor-num-nodes", 1)), max(1, flags.number("--actor-num-gpus-per-node", 8))
    parallel = _parallel(flags)
    product = parallel["--tensor-model-parallel-size"] * parallel["--pipeline-model-parallel-size"]
    product *= parallel["--context-parallel-size"]
    ranks = max(product, min(2, nodes * gpus))
    few = min(2, nodes, ranks)
    colocated = flags.has("--colocate")
    per_engine = max(1, flags.number("--rollout-num-gpus-per-engine", 1))
    engines = ranks if colocated else max(1, min(2, flags.number("--rollout-num-gpus", 1) // per_engine))
    total = ranks if colocated else ranks + engines
    return Layout(few, -(-total // few), ranks, engines, colocated)


def _parallel(flags: Flags) -> dict[str, int]:
    """Sizes of tensor, pipeline and context parallelism: at most 2 each, and together at most `_MOST_RANKS`."""
    names = ("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size")
    sizes, product = {}, 1
    for name in names:
        sizes[name] = min(2, max(1, flags.number(name, 1))) if product < _MOST_RANKS else 1
        product *= sizes[name]
    return sizes


# ---- groups of replacements


def _replaced(flags: Flags, flag: str, after: str | int | Path, reason: str) -> Replacement:
    before = flags.values(flag)
    text = shlex.quote(str(after)) if isinstance(after, Path) else str(after)
    return Replacement(flag, None if before is None else " ".join(before), text, reason)


def _model(flags: Flags, choices: Choices) -> Iterator[Replacement]:
    if not choices.full:
        yield _replaced(flags, "--hf-checkpoint", choices.model, choices.model_reason)
        for flag, value in choices.sizes:
            yield _replaced(flags, flag, shlex.quote(value), "the size of that model")
    for flag in ("--ref-load", "--opd-teacher-load"):
        if flags.has(flag) or flag == "--ref-load":
            yield _replaced(flags, flag, choices.model, "the weights come from the model's folder, without conversion")


def _storage(flags: Flags, choices: Choices) -> Iterator[Replacement]:
    if choices.save is None:
        if flags.has("--load"):
            yield _replaced(flags, "--load", choices.model, "the launch saves no checkpoint to load")
        return
    yield _replaced(flags, "--save", choices.save, choices.save_reason)
    yield _replaced(flags, "--load", choices.save, "checkpoints of the rehearsal alone")
    if not choices.full:
        yield _replaced(flags, "--save-interval", 1, "a checkpoint after each rollout")
    if flags.has("--save-hf"):
        yield _replaced(flags, "--save-hf", choices.out / "saved-hf", "a folder of the rehearsal")


def _smaller(flags: Flags, choices: Choices) -> Iterator[Replacement]:
    yield from _batches(flags, choices)
    yield from _lengths(flags, choices)
    rate = flags.text("--lr")
    if rate and _float(rate) < _RATE:
        yield _replaced(flags, "--lr", str(_RATE), "large, so that log-probs show whether an update arrives")
    if choices.random and flags.has("--dynamic-sampling-filter-path"):
        yield _replaced(
            flags, "--dynamic-sampling-filter-path", _FILTER, "calls the filter, and lets groups of a random model pass"
        )


def _batches(flags: Flags, choices: Choices) -> Iterator[Replacement]:
    prompts = min(_PROMPTS, flags.number("--rollout-batch-size", _PROMPTS))
    group = min(_GROUP, flags.number("--n-samples-per-prompt", 1))
    samples = flags.number("--rollout-batch-size", 1) * flags.number("--n-samples-per-prompt", 1)
    steps = flags.number("--num-steps-per-rollout", samples // max(1, flags.number("--global-batch-size", samples)))
    steps = max(1, min(2, steps))
    yield _replaced(flags, "--num-rollout", choices.rollouts, "enough for a second weight update")
    yield _replaced(flags, "--rollout-batch-size", prompts, "few episodes")
    if group != flags.number("--n-samples-per-prompt", 1):
        yield _replaced(flags, "--n-samples-per-prompt", group, "few episodes")
    if flags.has("--num-steps-per-rollout"):
        yield _replaced(flags, "--num-steps-per-rollout", steps, "few steps")
    if flags.has("--global-batch-size") or not flags.has("--num-steps-per-rollout"):
        yield _replaced(flags, "--global-batch-size", prompts * group // steps, "as many steps a rollout, at most 2")
    if flags.has("--over-sampling-batch-size"):
        yield _replaced(flags, "--over-sampling-batch-size", 2 * prompts, "few episodes")
    if flags.has("--eval-interval"):
        yield _replaced(flags, "--eval-interval", choices.rollouts, "an evaluation at the beginning and at the end")
        most = min(_EVAL_SAMPLES, flags.number("--n-samples-per-eval-prompt", 1))
        yield _replaced(flags, "--n-samples-per-eval-prompt", most, "few episodes")


def _lengths(flags: Flags, choices: Choices) -> Iterator[Replacement]:
    for flag in ("--rollout-max-response-len", "--eval-max-response-len"):
        if flags.number(flag, 0) > _RESPONSE:
            yield _replaced(flags, flag, _RESPONSE, "short episodes: a random model has nothing to say")
    most = max(512, int(_LOGITS_BYTES / 4 / max(1, choices.vocabulary)))
    for flag in ("--max-tokens-per-gpu", "--log-probs-max-tokens-per-gpu"):
        if flags.number(flag, 0) > most:
            yield _replaced(
                flags, flag, most, f"the logits of {choices.vocabulary} tokens of vocabulary fill the memory"
            )


def _placed(flags: Flags, layout: Layout) -> Iterator[Replacement]:
    few = f"at most {_MOST_RANKS} trainers, on logical GPUs"
    yield _replaced(flags, "--actor-num-nodes", layout.nodes, "at most two nodes, both on this machine")
    yield _replaced(flags, "--actor-num-gpus-per-node", layout.ranks // layout.nodes, few)
    yield _replaced(flags, "--num-gpus-per-node", layout.gpus, few)
    if not layout.colocated or flags.has("--rollout-num-gpus"):
        yield _replaced(flags, "--rollout-num-gpus", layout.engines, "at most two engines")
    if flags.number("--rollout-num-gpus-per-engine", 1) > 1:
        yield _replaced(flags, "--rollout-num-gpus-per-engine", 1, "an engine is one process")
    sizes = _parallel(flags)
    for flag, size in sizes.items():
        if flags.number(flag, 1) != size:
            yield _replaced(flags, flag, size, few)
    tensor, stages = sizes["--tensor-model-parallel-size"], sizes["--pipeline-model-parallel-size"]
    split = min(flags.number("--expert-tensor-parallel-size", 1), tensor)
    experts = min(2, flags.number("--expert-model-parallel-size", 1), max(1, layout.ranks // (stages * split)))
    for flag, size in (("--expert-tensor-parallel-size", split), ("--expert-model-parallel-size", experts)):
        if flags.has(flag):
            yield _replaced(flags, flag, size, few)
    for flag in ("--sglang-dp-size", "--sglang-ep-size", "--sglang-pp-size", "--sglang-data-parallel-size"):
        if flags.number(flag, 1) > 1:
            yield _replaced(flags, flag, 1, "an engine is one process")


def _tracking(flags: Flags, choices: Choices) -> Iterator[Replacement]:
    if flags.has("--use-wandb"):
        yield _replaced(flags, "--wandb-mode", "offline", "no figures of a rehearsal among those of real runs")
        yield _replaced(flags, "--wandb-dir", choices.out / "wandb", "a folder of the rehearsal")


def _aborting(launch: SlimeLaunch) -> Iterator[Replacement]:
    """The only way in which agentrl's engine pauses, for versions of miles that have others. Fully-async rollout cannot
    do without them."""
    files = (Path(folder, "miles/utils/arguments.py") for folder in (str(launch.program.parent), *launch.python_path))
    file, flag = next(filter(Path.is_file, files), None), "--pause-generation-mode"
    if file and flag in file.read_text(encoding="utf-8") and not launch.flags.has("--fully-async"):
        yield _replaced(launch.flags, flag, "abort", "agentrl's engine pauses in no other way")


def _cpu(flags: Flags) -> Iterator[Replacement]:
    for switch in CPU_SWITCHES:
        if not flags.has(switch):
            yield Replacement(switch, None, "", "a CPU has no such kernel, or no state of a GPU")
    yield _replaced(flags, "--distributed-backend", "gloo", "NCCL needs GPUs")
    yield _replaced(flags, "--make-vocab-size-divisible-by", 1, "padding would count in the softmax")
    if flags.text("--moe-token-dispatcher-type") == "flex":
        yield _replaced(flags, "--moe-token-dispatcher-type", "alltoall", "a kernel for a GPU")
    for flag in flags:
        prefixed = (why for prefix, why in _NO_KERNEL_PREFIX.items() if flag.name.startswith(prefix))
        if reason := _NO_KERNEL.get(flag.name) or next(prefixed, None):
            yield Replacement(flag.name, " ".join(flag.values), None, reason)


def _fewer_layers(flags: Flags) -> Iterator[Replacement]:
    for flag in flags:
        if reason := _NO_LAYER.get(flag.name):
            yield Replacement(flag.name, " ".join(flag.values), None, reason)


def _changed(flags: Flags, replacements: Iterable[Replacement]) -> list[str]:
    """The words of the launch, followed by the replacements."""
    left_out = {item.flag for item in replacements if item.after is None}
    words = [word for flag in flags if flag.name not in left_out for word in (flag.name, *flag.values)]
    for item in replacements:
        if item.after is not None:
            words += [item.flag, *shlex.split(item.after)]
    return words


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("inf")  # slime's parser will refuse it


def sliced(path: str, rows: int = _EVAL_ROWS) -> str:
    """A path of data with at most so many rows, in slime's notation. A slice of the launch stays."""
    return path if path.endswith("]") else f"{path}@[0:{rows}]"

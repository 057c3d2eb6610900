"""slime as agentrl reads it: its flags, and the modules that lie beside its Sample. A new commit is met here.

slime is never imported. Its flags are attributes of `args`, and its modules are looked up among those that are loaded,
in the package that the Sample's class is from: so the same code serves slime's relatives.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

SCALED = ("grpo", "gspo", "cispo")
"""The advantage estimators whose rewards slime divides by their standard deviation."""
CENTRED = (*SCALED, "reinforce_plus_plus_baseline")
"""The advantage estimators whose rewards slime measures against their mean."""


@dataclass(frozen=True, slots=True)
class HostArgs:
    """The flags of slime that agentrl reads. One that this host does not have, or left None, is as it is here."""

    agentrl: Any = None
    """The key of --custom-config-path; slime makes an attribute of each."""

    hf_checkpoint: str | None = None
    sglang_router_ip: str | None = None
    sglang_router_port: int | None = None

    apply_chat_template: bool = False
    apply_chat_template_kwargs: Mapping[str, Any] | None = None
    eval_datasets: Sequence[Any] = ()

    rollout_function_path: str = ""
    partial_rollout: bool = False
    mask_offpolicy_in_partial_rollout: bool = False
    dynamic_sampling_filter_path: str = ""
    load_debug_rollout_data: str | None = None
    log_multi_turn: bool = False

    rollout_max_context_len: int | None = None
    eval_max_context_len: int | None = None
    rollout_top_p: float = 1.0
    use_rollout_routing_replay: bool = False
    num_layers: int = 0
    moe_router_topk: int = 0
    num_experts: int = 0

    rm_type: str | None = None
    custom_rm_path: str | None = None
    group_rm: bool = False
    reward_key: str | None = None
    eval_reward_key: str | None = None

    advantage_estimator: str = ""
    rewards_normalization: bool = False
    grpo_std_normalization: bool = False
    custom_reward_post_process_path: str | None = None

    use_opd: bool = False
    opd_type: str = ""
    rm_url: str = ""
    rollout_temperature: float = 1.0

    eps_clip: float = 0.2
    eps_clip_high: float = 0.2
    use_tis: bool = False
    tis_clip: float = 2.0
    tis_clip_low: float = 0.0

    @classmethod
    def of(cls, args: Any) -> Self:
        if isinstance(args, cls):
            return args
        given = {name: getattr(args, name, None) for name in _NAMES}
        return cls(**{name: value for name, value in given.items() if value is not None})

    @property
    def fully_async(self) -> bool:
        return is_fully_async(self.rollout_function_path)

    @property
    def sends_aborted_again(self) -> bool:
        """slime sends an aborted sample again."""
        return self.partial_rollout or self.fully_async

    @property
    def masks_off_policy(self) -> bool:
        """slime masks what was sampled before an abort."""
        return self.partial_rollout and self.mask_offpolicy_in_partial_rollout

    @property
    def centred(self) -> bool:
        """Rewards are measured against those of the same prompt, not taken as they are."""
        return self.rewards_normalization and self.advantage_estimator in CENTRED

    @property
    def scaled(self) -> bool:
        """Rewards are divided by their standard deviation as well."""
        return self.centred and self.grpo_std_normalization and self.advantage_estimator in SCALED

    @property
    def own_filter(self) -> bool:
        """The dynamic filter is one of slime's or its relatives' own."""
        return self.dynamic_sampling_filter_path.startswith(("slime.", "miles."))

    @property
    def asks_teacher(self) -> bool:
        """Distillation from a teacher that is asked over HTTP."""
        return self.use_opd and self.opd_type == "sglang"

    @property
    def replays_top_p(self) -> bool:
        return self.rollout_top_p != 1.0

    def reward_name(self, *, evaluation: bool) -> str | None:
        """Where slime finds the number in a reward that is a mapping; None: the reward is the number."""
        return (self.eval_reward_key if evaluation else None) or self.reward_key

    def has_reward_model(self, sample: Any) -> bool:
        """slime would score this sample if it has no reward."""
        paths = getattr(sample, "custom_rm_path", None), self.custom_rm_path
        metadata = sample.metadata if isinstance(sample.metadata, Mapping) else {}
        return bool(any(paths) or metadata.get("rm_type") or self.rm_type)


_NAMES = tuple(field.name for field in fields(HostArgs))


@dataclass(frozen=True, slots=True)
class Rendering:
    """What slime does with the prompts of a data set."""

    rendered: bool
    """It has rendered them: --apply-chat-template."""
    template_kwargs: Mapping[str, Any]


def eval_renderings(flags: HostArgs, sample: Any, default: Rendering) -> list[Rendering]:
    """Of the evaluation data sets that a sample may be from, by what slime copies from a data set to its samples."""
    fitting = [dataset for dataset in flags.eval_datasets if _may_hold(dataset, sample)]
    return [
        Rendering(
            default.rendered if (rendered := getattr(dataset, "apply_chat_template", None)) is None else bool(rendered),
            default.template_kwargs
            if (kwargs := getattr(dataset, "apply_chat_template_kwargs", None)) is None
            else kwargs,
        )
        for dataset in fitting or flags.eval_datasets
    ]


def _may_hold(dataset: Any, sample: Any) -> bool:
    """slime: rollout/sglang_rollout.py, eval_rollout_single_dataset, and EvalDatasetConfig.inject_metadata."""
    paths = {"custom_generate_function_path": "generate_function_path", "custom_rm_path": "custom_rm_path"}
    if any(getattr(dataset, its, None) != getattr(sample, own, None) for its, own in paths.items()):
        return False
    metadata = sample.metadata if isinstance(sample.metadata, Mapping) else {}
    injected = dict(getattr(dataset, "metadata_overrides", None) or {})
    if (rm_type := getattr(dataset, "rm_type", None)) is not None:
        injected.setdefault("rm_type", rm_type)
    return all(key in metadata and metadata[key] == value for key, value in injected.items())


def is_fully_async(rollout_function_path: str | None) -> bool:
    return "fully_async" in (rollout_function_path or "")


def of_host(sample: Any, name: str, *modules: str) -> Any:
    """`name` from the first of these modules that has it, in the package that the Sample's class is from; else None."""
    for package in {cls.__module__.partition(".")[0] for cls in type(sample).__mro__}:
        for module in modules:
            found = getattr(sys.modules.get(f"{package}.{module}"), name, None)
            if found is not None:
                return found
    return None


def abort_flag(args: Any, sample: Any) -> Callable[[], bool] | None:
    """slime's abort flag; None where no slime is, as in a contract test or a notebook."""
    generate_state = of_host(sample, "GenerateState", "rollout.sglang_rollout")
    if generate_state is None:
        return None
    state = generate_state(args)  # a singleton, made before slime calls `adapt`
    return lambda: bool(state.aborted)


def filter_output(sample: Any) -> Any:
    """The class of what a dynamic filter returns, which carries a reason; None where the host wants a bool."""
    return of_host(sample, "DynamicFilterOutput", "rollout.filter_hub.base_types")


def tracing(sample: Any) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    """`trace_span(sample, name, attrs=)`, and what makes its attributes of SGLang's meta_info."""
    modules = "observability.trace_utils", "utils.trace_utils"
    return of_host(sample, "trace_span", *modules), of_host(sample, "build_sglang_meta_trace_attrs", *modules)


def tracker(sample: Any) -> Callable[..., Any] | None:
    """`log(args, metrics, step_key=)`, which slime tracks its metrics with."""
    found: Callable[..., Any] | None = of_host(
        sample, "log", "observability.logging_utils", "utils.logging_utils", "utils.tracking_utils"
    )
    return found


def tracked_step(args: Any, sample: Any, rollout_id: int) -> int:
    """The step that slime tracks the metrics of a rollout at."""
    count = of_host(sample, "compute_rollout_step", "observability.metric_utils", "utils.metric_utils")
    return count(args, rollout_id) if count else rollout_id

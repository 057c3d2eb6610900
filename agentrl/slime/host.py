"""slime's flags and modules, as agentrl reads them. A host is slime, or a program with slime's interfaces: miles. A new
commit of slime changes only this file.

slime is never imported. Its flags are attributes of `args`. Its modules are looked up among the loaded modules, in the
package of the Sample's class, so the same code works with miles.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from inspect import signature
from types import FrameType
from typing import Any, Self

from agentrl.errors import ConfigError

PACKAGES = ("slime", "miles")
"""The names of the hosts' packages."""
SCALED = ("grpo", "gspo", "cispo")
"""The advantage estimators whose rewards slime divides by their standard deviation."""
CENTRED = (*SCALED, "reinforce_plus_plus_baseline")
"""The advantage estimators from whose rewards slime subtracts the mean of their prompt."""
BATCH_CENTRED = ("flash_reinforce",)
"""The advantage estimators from whose rewards slime (0.4, data/batch_builder.py) subtracts the mean of the batch."""
PART = re.compile(r"(?P<path>.*)@\[(?P<start>-?\d*):(?P<end>-?\d*)\]")
"""The pattern of a path that selects a range of a file's rows, such as `data.jsonl@[0:100]`."""
_SYNC = frozenset(
    {
        "",
        "agentrl.slime.generate_rollout",
        "miles.rollout.inference_rollout.inference_rollout_common.InferenceRolloutFn",
        "miles.rollout.sglang_rollout.generate_rollout",
        "slime.rollout.sglang_rollout.generate_rollout",
    }
)
"""The paths of rollout functions that play no group after a rollout, and forget unshipped groups."""
_AHEAD = frozenset(
    {
        "agentrl.slime.generate_rollout_fully_async",
        "miles.rollout.fully_async_rollout.FullyAsyncRolloutFn",
        "slime.rollout.fully_async_rollout.generate_rollout_fully_async",
    }
)
"""The paths of rollout functions that play groups of later rollouts, and send aborted samples again."""
ESTIMATORS = (*CENTRED, *BATCH_CENTRED, "reinforce_plus_plus", "ppo")
"""All advantage estimators of the supported versions of slime."""


@dataclass(frozen=True, slots=True)
class HostArgs:
    """The flags of slime that agentrl reads. A flag that is missing or None has the default of this class."""

    agentrl: Any = None
    """The value of the key `agentrl` of --custom-config-path. slime sets an attribute for each key in the file."""

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
    rollout_sample_filter_path: str = ""
    over_sampling_batch_size: int = 0
    sglang_server_concurrency: int = 512
    load_debug_rollout_data: str | None = None
    log_multi_turn: bool = False

    rollout_max_context_len: int | None = None
    eval_max_context_len: int | None = None
    rollout_top_p: float = 1.0
    use_rollout_routing_replay: bool = False
    num_layers: int = 0
    moe_router_topk: int = 0
    num_experts: int = 0
    use_score_centering: bool = False
    score_centering_top_k: int = 128

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
    rollout_batch_size: int = 1
    n_samples_per_prompt: int = 1
    prompt_data: str = ""
    input_key: str = "text"
    label_key: str | None = None
    metadata_key: str | None = None
    tool_key: str | None = None
    multimodal_keys: Any = None
    rollout_max_prompt_len: int | None = None
    rollout_shuffle: bool = False
    rollout_seed: int = 42
    buffer_filter_path: str | None = None
    save: str | None = None
    load: str | None = None

    eps_clip: float = 0.2
    eps_clip_high: float = 0.2
    use_tis: bool = False
    tis_clip: float = 2.0
    tis_clip_low: float = 0.0

    @classmethod
    def of(cls, args: Any) -> Self:
        if isinstance(args, cls):
            return args
        values = {name: getattr(args, name, None) for name in _NAMES}
        return cls(**{name: value for name, value in values.items() if value is not None})

    @property
    def plays_ahead(self) -> bool | None:
        """Whether groups of later rollouts are played. None for a user's rollout function: its behaviour during the run
        decides."""
        return plays_ahead(self.rollout_function_path)

    @property
    def may_send_again(self) -> bool:
        """Whether slime may send an aborted sample again."""
        return self.partial_rollout or self.plays_ahead is not False

    @property
    def masks_off_policy(self) -> bool:
        """Whether slime masks the tokens that were sampled before an abort."""
        return self.partial_rollout and self.mask_offpolicy_in_partial_rollout

    @property
    def centred(self) -> bool:
        """Whether the mean reward of a prompt is subtracted from the prompt's rewards."""
        return self.rewards_normalization and self.advantage_estimator in CENTRED

    @property
    def batch_centred(self) -> bool:
        """Whether the mean reward of the whole batch is subtracted from the rewards."""
        return self.rewards_normalization and self.advantage_estimator in BATCH_CENTRED

    @property
    def scaled(self) -> bool:
        """Whether rewards are also divided by their standard deviation."""
        return self.centred and self.grpo_std_normalization and self.advantage_estimator in SCALED

    @property
    def own_filter(self) -> bool:
        """Whether the dynamic filter is part of slime or miles."""
        return self.dynamic_sampling_filter_path.startswith(("slime.", "miles."))

    @property
    def asks_teacher(self) -> bool:
        """Whether the run distils from a teacher over HTTP."""
        return self.use_opd and self.opd_type == "sglang"

    @property
    def replays_top_p(self) -> bool:
        return self.rollout_top_p != 1.0

    def reward_name(self, *, evaluation: bool) -> str | None:
        """The key of a reward mapping under which slime reads the number. None if the reward itself is the number."""
        return (self.eval_reward_key if evaluation else None) or self.reward_key

    def has_reward_model(self, sample: Any) -> bool:
        """Whether slime would score this sample if the sample had no reward."""
        paths = getattr(sample, "custom_rm_path", None), self.custom_rm_path
        metadata = sample.metadata if isinstance(sample.metadata, Mapping) else {}
        return bool(any(paths) or metadata.get("rm_type") or self.rm_type)


_NAMES = tuple(field.name for field in fields(HostArgs))


@dataclass(frozen=True, slots=True)
class Rendering:
    """How slime renders the prompts of a data set."""

    rendered: bool
    """Whether slime has rendered the prompts to text (--apply-chat-template)."""
    template_kwargs: Mapping[str, Any]


def eval_renderings(flags: HostArgs, sample: Any, default: Rendering) -> list[Rendering]:
    """The rendering of each evaluation data set that may contain the sample.

    Data sets are recognised by the fields that slime copies to their samples.
    """
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


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of prompts, and the columns that slime reads."""

    path: str
    input_key: str
    label_key: str | None
    metadata_key: str | None

    @classmethod
    def of_training(cls, flags: HostArgs) -> Self:
        return cls(flags.prompt_data, flags.input_key, flags.label_key, flags.metadata_key)


def eval_files(flags: HostArgs, sample: Any) -> list[DataFile]:
    """The files of the evaluation data sets that may contain the sample."""
    return [
        DataFile(
            str(getattr(dataset, "path", "")),
            getattr(dataset, "input_key", None) or flags.input_key,
            getattr(dataset, "label_key", None),
            getattr(dataset, "metadata_key", None),
        )
        for dataset in flags.eval_datasets
        if _may_hold(dataset, sample)
    ]


def _may_hold(dataset: Any, sample: Any) -> bool:
    """Whether the sample has all fields that slime would have copied from this data set.

    In slime: rollout/sglang_rollout.py, eval_rollout_single_dataset, and EvalDatasetConfig.inject_metadata.
    """
    paths = {"custom_generate_function_path": "generate_function_path", "custom_rm_path": "custom_rm_path"}
    if any(
        getattr(dataset, dataset_field, None) != getattr(sample, sample_field, None)
        for dataset_field, sample_field in paths.items()
    ):
        return False
    metadata = sample.metadata if isinstance(sample.metadata, Mapping) else {}
    injected = dict(getattr(dataset, "metadata_overrides", None) or {})
    if (rm_type := getattr(dataset, "rm_type", None)) is not None:
        injected.setdefault("rm_type", rm_type)
    return all(key in metadata and metadata[key] == value for key, value in injected.items())


def plays_ahead(rollout_function_path: str | None) -> bool | None:
    """Whether a rollout function plays groups of later rollouts; see `HostArgs.plays_ahead`."""
    path = rollout_function_path or ""
    return True if path in _AHEAD else False if path in _SYNC else None


def sample_class() -> Any:
    """The class of samples in the host. Raises ConfigError outside of a host."""
    for package in PACKAGES:
        if (cls := getattr(sys.modules.get(f"{package}.utils.types"), "Sample", None)) is not None:
            return cls
    raise ConfigError("agentrl.slime.DataSource makes slime's samples: name it in slime's --data-source-path")


def session_of(sample: Any) -> str:
    """The session id by which a sample's requests are routed to a server. miles calls it routing_key. "" without a
    session."""
    return getattr(sample, "session_id", None) or getattr(sample, "routing_key", None) or ""


def host_attribute(sample: Any, name: str, *modules: str) -> Any:
    """The attribute `name`, from the first of these modules with such an attribute. The modules are in the package of
    the Sample's class. None if all modules lack the attribute."""
    for package in {cls.__module__.partition(".")[0] for cls in type(sample).__mro__}:
        for module in modules:
            value = getattr(sys.modules.get(f"{package}.{module}"), name, None)
            if value is not None:
                return value
    return None


def rollout_state(args: Any, sample: Any) -> Any:
    """The state of the sample's rollout; `aborted` in the state is slime's flag. None outside of slime.

    In slime the state is a singleton, which exists before slime calls `adapt`. In miles each class-based rollout has a
    separate state. miles gives the state to the caller of `adapt` only, so the caller's variables are searched first.
    """
    if (state := _state_of_caller()) is not None:
        return state
    generate_state = host_attribute(sample, "GenerateState", "rollout.sglang_rollout")
    return None if generate_state is None else generate_state(args)


def _state_of_caller() -> Any:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in PACKAGES:
            state = frame.f_locals.get("state")
            if isinstance(getattr(state, "aborted", None), bool):
                return state
        frame = frame.f_back
    return None


def has_queues(state: Any) -> bool:
    """Whether the rollout of this version of slime has queues, as from 0.4 on. The GenerateState then lists the
    cancellable tasks.

    On an abort slime 0.4 keeps only groups that have an aborted sample, and drops ended groups (`abort` in
    rollout/sglang_rollout.py). Earlier versions collect every group.
    """
    return hasattr(state, "cancellable_tasks")


def takes_lists(args: Any, sample: Any) -> bool:
    """Whether the sample's rollout accepts a list of samples for an episode.

    Before 0.4, slime's fully-async worker reads the index of each member of a group, and a list has no index. From 0.4
    on slime uses `iter_samples`, as miles does.
    """
    if host_attribute(sample, "iter_samples", "rollout.base_types", "rollout.fully_async_data_buffer") is not None:
        return True
    worker = host_attribute(sample, "_global_worker", "rollout.fully_async_rollout")
    in_worker = getattr(worker, "worker_thread", None) is threading.current_thread()
    return not in_worker and HostArgs.of(args).plays_ahead is not True


def refuses_rewards(sample: Any) -> bool:
    """Whether the host's reward model of groups refuses samples with a reward, as in miles' main."""
    model = host_attribute(sample, "batched_async_rm", "rollout.rm_hub")
    return model is not None and "inplace_set_reward_field" in signature(model).parameters


def epoch_of(data_source: Any) -> int:
    """The number of rows of a data source, which is the length of an epoch."""
    return len(data_source.dataset)


def rollout_output(groups: list[list[Any]], metrics: Mapping[str, Any]) -> Any:
    """The result of a rollout function: groups of samples, with metrics if the host has a class for both."""
    output_class = host_attribute(groups[0][0], "RolloutFnTrainOutput", "rollout.base_types")
    return groups if output_class is None else output_class(samples=groups, metrics=dict(metrics))


def filter_output(sample: Any) -> Any:
    """The class of a dynamic filter's result, which has a reason. None if the host wants a bool."""
    return host_attribute(sample, "DynamicFilterOutput", "rollout.filter_hub.base_types")


def tracing(sample: Any) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    """slime's `trace_span(sample, name, attrs=)`, and its function that turns SGLang's meta_info into `attrs`."""
    modules = "observability.trace_utils", "utils.trace_utils"
    return host_attribute(sample, "trace_span", *modules), host_attribute(
        sample, "build_sglang_meta_trace_attrs", *modules
    )


def tracker(sample: Any) -> Callable[..., Any] | None:
    """slime's function for tracking metrics: `log(args, metrics, step_key=)`."""
    function: Callable[..., Any] | None = host_attribute(
        sample, "log", "observability.logging_utils", "utils.logging_utils", "utils.tracking_utils"
    )
    return function


def tracked_step(args: Any, sample: Any, rollout_id: int) -> int:
    """The step at which slime tracks the metrics of a rollout."""
    count = host_attribute(sample, "compute_rollout_step", "observability.metric_utils", "utils.metric_utils")
    return count(args, rollout_id) if count else rollout_id

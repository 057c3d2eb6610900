"""Reads slime's arguments without slime's parser: the arguments that the rules need, with slime's defaults.

Names and defaults come from slime/utils/arguments.py at 624b824a8 and in 0.4, and from Megatron's and SGLang's flags.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from agentrl._util.findings import Finding, error, warning

_ALIKE = 0.88
"""The similarity, from 0 to 1, from which a name counts as a misspelling. `--partial-rollouts` is a misspelling; other
real flags are not."""


def _names(text: str) -> list[str]:
    return text.split()


_WHOLE: Mapping[str, int | None] = {
    "actor_num_gpus_per_node": 8,
    "actor_num_nodes": 1,
    "context_parallel_size": 1,
    "n_samples_per_eval_prompt": 1,
    "n_samples_per_prompt": 1,
    "rollout_num_gpus_per_engine": 1,
    "sglang_router_port": None,
    "sglang_server_concurrency": 512,
    "tensor_model_parallel_size": 1,
} | dict.fromkeys(
    _names("""
    eval_interval eval_max_context_len eval_max_prompt_len eval_max_response_len global_batch_size
    max_tokens_per_gpu num_epoch num_experts num_layers num_rollout num_steps_per_rollout over_sampling_batch_size
    rollout_batch_size rollout_max_context_len rollout_max_prompt_len rollout_max_response_len rollout_num_gpus
    sglang_context_length""")
)
_NUMBERS: Mapping[str, float | None] = {
    "eval_temperature": None,
    "eval_top_p": None,
    "kl_coef": 0.0,
    "kl_loss_coef": 0.0,
    "rollout_temperature": 1.0,
    "rollout_top_p": 1.0,
}
_TEXTS: Mapping[str, str | None] = {
    "advantage_estimator": "grpo",
    "input_key": "input",
    "metadata_key": "metadata",
    "rollout_data_transport": "object-store",
    "tool_key": "tools",
} | dict.fromkeys(
    _names("""
    buffer_filter_path custom_advantage_function_path custom_config_path custom_convert_samples_to_train_data_path
    custom_eval_rollout_log_function_path custom_generate_function_path custom_loss_function_path
    custom_pg_loss_reducer_function_path custom_reward_post_process_path custom_rm_path
    custom_rollout_log_function_path custom_tis_function_path data_source_path dynamic_sampling_filter_path
    eval_config eval_function_path eval_input_key eval_label_key eval_reward_key eval_tool_key hf_checkpoint
    label_key load opd_type prompt_data recompute_granularity rm_type rollout_all_samples_process_path
    rollout_data_dir rollout_data_postprocess_path rollout_function_path rollout_sample_filter_path router_policy save
    sglang_kv_cache_dtype sglang_reasoning_parser sglang_router_ip sglang_tool_call_parser""")
)
_LISTS = ("eval_prompt_data", "rollout_stop")
_OBJECTS = ("apply_chat_template_kwargs", "multimodal_keys")
_SWITCHES: Mapping[str, tuple[str, bool]] = {
    name: (name, True)
    for name in _names("""
    apply_chat_template colocate debug_rollout_only finetune fully_async group_rm mask_offpolicy_in_partial_rollout
    partial_rollout use_dynamic_batch_size use_kl_loss use_opd use_rollout_routing_replay use_score_centering
    use_tis""")
} | {
    "disable_rewards_normalization": ("rewards_normalization", False),
    "disable_rollout_global_dataset": ("rollout_global_dataset", False),
}
_FLAGS = frozenset(
    f"--{name.replace('_', '-')}" for kind in (_WHOLE, _NUMBERS, _TEXTS, _LISTS, _OBJECTS, _SWITCHES) for name in kind
)
"""The names of the flags that are read here."""
_OTHERS = frozenset(
    {
        "--eval-top-k",
        "--q-lora-rank",
        "--rl-partial-rollouts",
        "--rollout-top-k",
        "--sglang-moe-data-parallel-size",
        "--sglang-moe-dp-size",
        "--sglang-page-size",
        "--sglang-tp-size",
        "--use-routing-replay",
    }
)
"""Real flags of slime, Megatron and SGLang that look like misspellings of a flag above."""


@dataclass(slots=True)
class Words:
    """The flags of a command line with their values; the last occurrence wins, as in argparse."""

    values: dict[str, list[str]] = field(default_factory=dict)
    stray: list[str] = field(default_factory=list)
    """The words before the first flag."""

    def __init__(self, words: Sequence[str]) -> None:
        self.values, self.stray = {}, []
        values = self.stray
        for word in words:
            if word.startswith("--") and len(word) > 2:
                name, equals, value = word.partition("=")
                values = self.values[name] = [value] if equals else []
            else:
                values.append(word)


def plain(words: Words) -> tuple[dict[str, Any], list[Finding]]:
    """The arguments by name, and findings for unreadable values."""
    args: dict[str, Any] = {**_WHOLE, **_NUMBERS, **_TEXTS, **dict.fromkeys((*_LISTS, *_OBJECTS))}
    args |= {attribute: not value for attribute, value in _SWITCHES.values()}
    findings: list[Finding] = []
    for flag, values in words.values.items():
        name = flag.removeprefix("--").replace("-", "_")
        if flag not in _FLAGS:
            if name.endswith("_path") and values:
                args[name] = values[0]
        elif name in _SWITCHES:
            attribute, value = _SWITCHES[name]
            args[attribute] = value
        elif name in _LISTS:
            args[name] = values
        else:
            findings += _set(args, name, flag, values)
    return args, findings


def _set(args: dict[str, Any], name: str, flag: str, values: Sequence[str]) -> Iterator[Finding]:
    if not values:
        yield error(f"{flag} has no value; write one after it, or remove it")
        return
    if len(values) > 1:
        yield warning(
            f"{flag} {values[0]}: slime ignores what follows, {' '.join(values[1:])!r}; quote a value with spaces"
        )
    try:
        args[name] = _value(name, values[0])
    except ValueError:
        expected = "a whole number" if name in _WHOLE else "a number" if name in _NUMBERS else "a JSON object"
        yield error(f"{flag} {values[0]}: not {expected}")


def _value(name: str, text: str) -> Any:
    """The value of an argument, read from its text. Raises ValueError."""
    if name in _WHOLE:
        return int(text)
    if name in _NUMBERS:
        return float(text)
    if name in _TEXTS:
        return text
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError
    return value


def override(args: dict[str, Any], keys: Mapping[str, Any]) -> None:
    """Set the argument of each key of --custom-config-path, as slime does."""
    args.update({str(key): value for key, value in keys.items()})


def misspelt(words: Words, flags: frozenset[str] | None) -> Iterator[Finding]:
    """Findings about flags that slime would ignore. `flags` are the flags of slime's parsers. If None, only flags that
    are similar to a known flag are reported."""
    for flag in words.values:
        if flags is None:
            if flag not in _FLAGS | _OTHERS and (close := get_close_matches(flag, _FLAGS, n=1, cutoff=_ALIKE)):
                yield warning(
                    f"{flag} is no flag of slime's, which ignores it without a word; did you mean {close[0]}?"
                )
        elif flag not in flags and not _abbreviates(flag, flags):
            close = get_close_matches(flag, flags, n=1)
            meant = f"did you mean {close[0]}?" if close else "remove it"
            yield warning(f"{flag} is no flag of slime's, which ignores it without a word; {meant}")
    if words.stray:
        yield warning(f"{' '.join(words.stray)!r} stands before the first flag; remove it")


def _abbreviates(flag: str, flags: frozenset[str]) -> bool:
    """Whether `flag` is the beginning of a known flag. Only SGLang's parser accepts abbreviations."""
    return flag.startswith("--sglang-") and any(name.startswith(flag) for name in flags)

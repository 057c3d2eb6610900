"""Checks the data sets of --eval-config or --eval-prompt-data (slime/utils/eval_config.py at 624b824a8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl._util.findings import Finding, error, warning
from agentrl._util.yaml_files import read_yaml
from agentrl.errors import ConfigError, did_you_mean
from agentrl.slime.check.arguments import Args
from agentrl.slime.check.functions import is_misspelt
from agentrl.slime.check.media import media
from agentrl.slime.check.setup import GENERATE, Setup

_FALLBACKS: Mapping[str, tuple[str, ...]] = {
    "input_key": ("eval_input_key", "input_key"),
    "label_key": ("eval_label_key", "label_key"),
    "tool_key": ("eval_tool_key", "tool_key"),
    "metadata_key": ("metadata_key",),
    "multimodal_keys": ("multimodal_keys",),
    "apply_chat_template": ("apply_chat_template",),
    "custom_rm_path": ("eval_custom_rm_path", "custom_rm_path"),
    "max_response_len": ("eval_max_response_len", "rollout_max_response_len"),
}
"""Key of a data set that is checked -> the arguments whose values slime uses if the key is missing."""
_OTHER_KEYS = """name path rm_type apply_chat_template_kwargs n_samples_per_eval_prompt temperature top_p top_k stop
stop_token_ids min_new_tokens repetition_penalty skip_special_tokens no_stop_trim custom_generate_function_path
app_service eval_task_timeout min_eval_samples eval_early_stop_remaining eval_early_stop_idle_timeout message_processor
reward_model remote_environment metadata_overrides"""
_KEYS = frozenset({*_FALLBACKS, *_OTHER_KEYS.split()})


def datasets(args: Args) -> list[Mapping[str, Any]]:
    """The evaluation data sets. Missing keys are filled in as slime's parser fills them in. Raises ConfigError."""
    if args.eval_datasets is not None:
        return list(args.eval_datasets)
    if args.eval_config:
        defaults = _defaults(args.eval_config)
        return [_filled(args, row, defaults) for row in _listed(args)]
    values = args.eval_prompt_data or []
    if len(values) == 1:
        values = ["aime", *values]
    if len(values) % 2:
        raise ConfigError(
            f"--eval-prompt-data {' '.join(values)}: not pairs of a name and a path; write NAME FILE.jsonl"
        )
    return [_filled(args, {"name": n, "path": p}, {}) for n, p in zip(values[::2], values[1::2], strict=True)]


def evaluation(setup: Setup) -> Iterator[Finding]:
    args, sets = setup.args, datasets(setup.args)
    source = "--eval-config" if args.eval_config else "--eval-prompt-data"
    if args.eval_interval and not sets:
        yield error("--eval-interval without data: add --eval-prompt-data NAME FILE.jsonl, or --eval-config FILE.yaml")
    elif sets and not args.eval_interval:
        yield warning(f"{source} without --eval-interval: slime never evaluates; add --eval-interval 20, or remove it")
    yield from _same_names(sets, source)
    for row in sets:
        yield from _dataset(setup, row, f"{source}, data set {row['name']}")


def _same_names(sets: Sequence[Mapping[str, Any]], source: str) -> Iterator[Finding]:
    counts = Counter(row["name"] for row in sets)
    for name in sorted(name for name, count in counts.items() if count > 1):
        yield error(f"{source}: two data sets are called {name}, and slime keeps one's results; rename the other")


def _dataset(setup: Setup, row: Mapping[str, Any], where: str) -> Iterator[Finding]:
    for check in (_function, _added, _reward, _length):
        yield from check(setup, row, where)


def _function(setup: Setup, row: Mapping[str, Any], where: str) -> Iterator[Finding]:
    function = row.get("custom_generate_function_path")
    if not function or function == GENERATE:
        return
    text = f"{where}: custom_generate_function_path {function}"
    if is_misspelt(str(function)):
        yield error(f"{text}: there is no such function")
    else:
        yield warning(f"{text}: agentrl does not play this data set")


def _added(setup: Setup, row: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """Findings about values in the file of --eval-config that the arguments do not have. Other checks cover the
    arguments."""
    args = setup.args
    if row.get("apply_chat_template") and not args.apply_chat_template and setup.has_tools and setup.env:
        yield error(f"{where}: remove apply_chat_template: the model would never see the tools of {setup.env.__name__}")
    if row.get("multimodal_keys") and not args.multimodal_keys:
        yield from media(setup, row["multimodal_keys"], where)


def _reward(setup: Setup, row: Mapping[str, Any], where: str) -> Iterator[Finding]:
    if not setup.scores:
        return
    for key, flag in (("custom_rm_path", setup.args.custom_rm_path), ("rm_type", setup.args.rm_type)):
        value = row.get(key)
        if value and value not in (flag, "agentrl.slime.reward"):
            yield error(f"{where}: two give the reward: {setup.scores} and {key} {value}, which would never be asked")


def _length(setup: Setup, row: Mapping[str, Any], where: str) -> Iterator[Finding]:
    response, context = row.get("max_response_len"), setup.args.eval_max_context_len or setup.context
    if response and context and response != setup.args.rollout_max_response_len and response >= context:
        yield warning(f"{where}: max_response_len {response} leaves no room for the prompt in {context} tokens")


def _eval(path: str) -> Mapping[str, Any]:
    example = "eval: {datasets: [{name: held_out, path: FILE.jsonl}]}"
    root = read_yaml(path, "--eval-config", example)
    settings = root.get("eval", root)
    if not isinstance(settings, dict):
        raise ConfigError(f"--eval-config {path}: `eval` is not a mapping; write `{example}`")
    return settings


def _defaults(path: str) -> Mapping[str, Any]:
    defaults = _eval(path).get("defaults") or {}
    if not isinstance(defaults, dict):
        raise ConfigError(f"--eval-config {path}: eval.defaults is not a mapping")
    return _known(defaults, f"--eval-config {path}: eval.defaults")


def _listed(args: Args) -> Iterator[Mapping[str, Any]]:
    flag = f"--eval-config {args.eval_config}"
    listed = _eval(args.eval_config).get("datasets")
    rows = [{"name": n, **(row or {})} for n, row in listed.items()] if isinstance(listed, dict) else listed
    if not rows or not isinstance(rows, list):
        raise ConfigError(f"{flag}: no data sets under eval.datasets; write `datasets: [{{name: ..., path: ...}}]`")
    for number, row in enumerate(rows, 1):
        where = f"{flag}: data set {number}"
        if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("name", "path")):
            raise ConfigError(f"{where} needs a name and a path; write {{name: held_out, path: FILE.jsonl}}")
        yield _known(row, where)


def _known(row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    for key in row:
        if key not in _KEYS:
            raise ConfigError(f"{where}: slime knows no key {key!r}{did_you_mean(str(key), _KEYS)}")
    return row


def _filled(args: Args, row: Mapping[str, Any], defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    flags = {
        key: next((value for name in names if (value := getattr(args, name)) is not None), None)
        for key, names in _FALLBACKS.items()
    }
    return {**flags, **defaults, **row}

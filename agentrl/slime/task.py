"""Converts slime's Sample to a Task. Only this module reads a sample's own content."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.errors import ConfigError
from agentrl.slime.host import HostArgs, Rendering, eval_renderings
from agentrl.slime.images import with_images
from agentrl.slime.row_ids import row_id
from agentrl.slime.sample import own_metadata
from agentrl.types import JSON, Observation, Raw, Task, ToolSpec


def from_sample(args: Any, sample: Any, *, evaluation: bool = False) -> Task:
    """Build a Task from a copy of the sample's content. Raises ConfigError for unreadable content.

    The id is the row's, as in `agentrl train`; see `row_ids`. A prompt that slime's --apply-chat-template has rendered
    becomes Raw. All samples of a group have the same seed, so they play in the same world. In evaluation slime numbers
    no groups: there each sample has its own seed, the same in every run.
    """
    flags, metadata = HostArgs.of(args), copy.deepcopy(without_arrays(own_metadata(metadata_of(sample))))
    group, index = getattr(sample, "group_index", None), getattr(sample, "index", None)
    return Task(
        prompt=_prompt(flags, sample, evaluation=evaluation),
        label=copy.deepcopy(without_arrays(sample.label)),
        metadata=metadata,
        tools=_tools(metadata.get("tools")),
        id=row_id(flags, sample, metadata, evaluation=evaluation),
        seed=group if group is not None else index or 0,
        split="eval" if evaluation else "train",
    )


def metadata_of(sample: Any) -> Mapping[str, JSON]:
    """The sample's metadata. A data set may hold JSON text. Raises ConfigError if the result is not a mapping."""
    raw = sample.metadata
    parsed = {} if raw is None else _parsed(raw)
    if not isinstance(parsed, Mapping):
        raise ConfigError(f"sample.metadata is {raw!r:.200}: give an object, or JSON text of one; see --metadata-key")
    return parsed


def without_arrays(data: Any) -> Any:
    """Lists for arrays, also within mappings and lists: pandas reads a list out of Parquet as an array."""
    if hasattr(data, "tolist"):
        data = data.tolist()
    if isinstance(data, dict):
        return {key: without_arrays(value) for key, value in data.items()}
    return [without_arrays(value) for value in data] if isinstance(data, list) else data


def template_kwargs(args: Any, sample: Any, *, evaluation: bool) -> Mapping[str, Any]:
    """The template arguments that slime would use: the sample's, else its evaluation data set's, else the flag's."""
    if kwargs := getattr(sample, "apply_chat_template_kwargs", None):
        return dict(kwargs)
    chosen = [rendering.template_kwargs for rendering in _renderings(HostArgs.of(args), sample, evaluation)]
    return dict(_same(chosen, "apply_chat_template_kwargs", "set `chat_template_kwargs` under `agentrl`"))


def _prompt(flags: HostArgs, sample: Any, *, evaluation: bool) -> Observation:
    prompt = without_arrays(sample.prompt)
    if isinstance(prompt, str):
        chosen = [rendering.rendered for rendering in _renderings(flags, sample, evaluation)]
        remedy = "set it to false for all of them (agentrl renders prompts itself)"
        return Raw(prompt) if _same(chosen, "apply_chat_template", remedy) else prompt
    if isinstance(prompt, Sequence) and prompt and all(isinstance(m, Mapping) and "role" in m for m in prompt):
        return [with_images(message) for message in copy.deepcopy(list(prompt))]
    raise ConfigError(f"sample.prompt is neither text nor messages: {prompt!r:.200}; check --input-key")


def _renderings(flags: HostArgs, sample: Any, evaluation: bool) -> Sequence[Rendering]:
    """The rendering of the prompt. Several answers if the sample may be from one of several data sets."""
    default = Rendering(flags.apply_chat_template, flags.apply_chat_template_kwargs or {})
    return (eval_renderings(flags, sample, default) if evaluation else ()) or [default]


def _same(chosen: Sequence[Any], name: str, remedy: str) -> Any:
    if any(value != chosen[0] for value in chosen):
        raise ConfigError(
            f"eval datasets differ in {name}, and a sample does not tell which of them it is from; {remedy}, or mark "
            "each with `metadata_overrides: {dataset: NAME}`"
        )
    return chosen[0]


def _tools(raw: Any) -> Sequence[ToolSpec]:
    """A row's tools: a list, or JSON text of a list."""
    tools = _parsed(raw)
    if tools is None or tools == "":
        return ()
    if not isinstance(tools, list | tuple) or not all(isinstance(spec, Mapping) for spec in tools):
        raise ConfigError(f"metadata['tools'] is {raw!r:.200}: give a list of tools, or JSON text of one")
    return tools


def _parsed(value: Any) -> Any:
    """Parse JSON text. Other values, and text that is not JSON, are returned unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value

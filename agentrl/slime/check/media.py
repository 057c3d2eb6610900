"""Checks the images of a data set: the kinds of media that the flags name, and whether the checkpoint reads images."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl._util.findings import Finding, error
from agentrl.errors import ConfigError
from agentrl.models.vision import load_vision
from agentrl.slime.check.setup import Setup
from agentrl.slime.images import NOT_KNOWN


def media(setup: Setup, keys: str | Mapping[str, Any], where: str = "") -> Iterator[Finding]:
    """Findings about the value of `--multimodal-keys`, or about the same key of the data set `where`."""
    flag = "multimodal_keys" if where else "--multimodal-keys"
    begin = f"{where}: " if where else ""
    try:
        names = json.loads(keys) if isinstance(keys, str) else keys
        other = sorted(set(names) - {"image"})
    except (ValueError, TypeError):
        yield error(f'{begin}{flag} is {keys!r:.60}, not an object; write {{"image": "images"}}')
        return
    if other:
        yield error(f"{begin}remove {', '.join(other)} from {flag}: agentrl shows text and images only")
    try:
        readable = setup.args.hf_checkpoint is not None and load_vision(setup.args.hf_checkpoint) is not None
    except ConfigError:
        return  # another rule reports a missing checkpoint
    if not readable:
        yield error(f"{begin}{NOT_KNOWN.replace('--multimodal-keys', flag)}")

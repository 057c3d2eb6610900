"""Writes the files beside the weights in such a way that engines with an older transformers (4.57) read the same model.

Transformers 5 writes new names for a tokenizer's class, for extra tokens, and for the angles of rotary positions.
Transformers 4.57 does not know the new names: it refuses the tokenizer, and uses the default angles without a warning.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.models.adapter import without_adapter

_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"),
    *("tekken.json", "chat_template.jinja", "chat_template.json"),
)
_TEMPLATES = "additional_chat_templates"
_CONFIG = "tokenizer_config.json"
_TEMPLATE = "chat_template.jinja"
_NEW_CLASSES = {"TokenizersBackend": "PreTrainedTokenizerFast"}
"""Name of a class since transformers 5 -> its earlier name."""
_OWN_PARTS = ("text_config", "thinker_config", "llm_config")
"""The keys of a configuration whose value is the configuration of the language model."""


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer. The files of the loaded tokenizer are copied, unless the tokens have changed since. The chat
    template is written in its present form."""
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(tokenizer.name_or_path or "")
    if _is_same(tokenizer, source):
        for name in _TOKENIZER_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
        if (source / _TEMPLATES).is_dir():
            shutil.copytree(source / _TEMPLATES, folder / _TEMPLATES, dirs_exist_ok=True)
    else:
        tokenizer.save_pretrained(folder)
    _rewrite_tokenizer_config(folder / _CONFIG, tokenizer)


def rewrite_config(folder: Path, source: Path) -> None:
    """Add the keys that older readers need to a saved config.json: the keys of config.json in the folder `source`, and
    old names."""
    path = folder / "config.json"
    config = _read(path)
    before = _read(source / "config.json") if (source / "config.json").is_file() else {}
    _add_old_names(config, before)
    _write(path, config)


def set_ends(model: Any, ends: Collection[int]) -> None:
    """Add the ids `ends` of tokens that end a turn to a model's configurations, before the end tokens already there.

    A base model has only the token for the end of a text: an engine would sample beyond each turn, up to the limit.
    """
    model = without_adapter(model)
    for config in {id(one): one for one in (model.config.get_text_config(), model.config)}.values():
        _set_ends(config, ends)
    if model.generation_config is not None:
        _set_ends(model.generation_config, ends)


def _set_ends(config: Any, ends: Collection[int]) -> None:
    known = getattr(config, "eos_token_id", None)
    before = known if isinstance(known, list | tuple) else [] if known is None else [known]
    if not set(ends) <= set(before):
        tokens = list(dict.fromkeys([*sorted(ends), *before]))
        config.eos_token_id = tokens if len(tokens) > 1 else tokens[0]


def _is_same(tokenizer: Any, source: Path) -> bool:
    """Whether a tokenizer has the same tokens as the folder that it was loaded from."""
    if not (source / _CONFIG).is_file():
        return False
    from agentrl.models.tokenizer import read_tokenizer

    try:
        return _tokens(read_tokenizer(source, trust_remote_code=False)) == _tokens(tokenizer)
    except ConfigError:  # it has code of its own, or its files are gone
        return False


def _tokens(tokenizer: Any) -> Mapping[str, Any]:
    """All settings of a tokenizer that decide the tokens of a text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = json.loads(backend.to_str()) if backend is not None else dict(tokenizer.get_vocab())
    for state in ("padding", "truncation"):  # of the last call
        content.pop(state, None)
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return {"class": type(tokenizer).__name__, "content": content, "special": special}


def _rewrite_tokenizer_config(path: Path, tokenizer: Any) -> None:
    config = _read(path) if path.is_file() else {}
    name = str(config.get("tokenizer_class", ""))
    if name in _NEW_CLASSES:
        config["tokenizer_class"] = _NEW_CLASSES[name]
    if isinstance(extra := config.get("extra_special_tokens"), list):
        del config["extra_special_tokens"]
        config["additional_special_tokens"] = [*config.get("additional_special_tokens", ()), *extra]
    template = tokenizer.chat_template
    if isinstance(template, str):
        config["chat_template"] = template  # transformers before 4.44 reads no file
        (path.parent / _TEMPLATE).write_text(template, encoding="utf-8")
    _write(path, config)


def _add_old_names(config: dict[str, Any], before: Mapping[str, Any]) -> None:
    """Add old names to a configuration and all of its parts. `before` is the configuration in the source folder."""
    for key, value in before.items():
        if key not in config and key not in ("torch_dtype", "transformers_version", "quantization_config"):
            config[key] = value
    if "dtype" in config:
        config["torch_dtype"] = config["dtype"]
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        rest = {key: value for key, value in rope.items() if key != "rope_theta"}
        config.setdefault("rope_theta", rope["rope_theta"])
        config.setdefault("rope_scaling", None if rest.get("rope_type", "default") == "default" else rest)
    for part in _OWN_PARTS:
        if isinstance(config.get(part), dict):
            of_part = before.get(part)
            _add_old_names(config[part], of_part if isinstance(of_part, dict) else {})


def _read(path: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return config


def _write(path: Path, config: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

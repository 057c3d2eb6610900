"""Writes a launch script for slime and its YAML file. All facts about models come from slime's own scripts.

The script is `run.sh` beside this module. It sources slime's file of the model (scripts/models/NAME.sh). The flags that
split the model over GPUs are copied from slime's own script with the same name (scripts/run-NAME.sh), if present.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from agentrl.errors import ConfigError, did_you_mean

SCRIPT, CONFIG = "run.sh", "agentrl.yaml"
_TEMPLATE = Path(__file__).with_name(SCRIPT)
_CONFIG = """\
# Read through slime's --custom-config-path. One key: every other would become an argument of slime.
agentrl:
  env: {env}   # a row's metadata["env"] wins
  limits: {{turns: 8}}
{workers}"""
_WORKERS = """\
  workers: {workers}   # processes that play episodes: Ray actors with one CPU each
"""
_SMALL = """\
--tensor-model-parallel-size 1
--pipeline-model-parallel-size 1
--context-parallel-size 1
--use-dynamic-batch-size
--max-tokens-per-gpu 9216
--balance-data
--rollout-num-gpus-per-engine 1
--sglang-mem-fraction-static 0.7
--attention-dropout 0.0
--hidden-dropout 0.0
--accumulate-allreduce-grads-in-fp32
--attention-softmax-in-fp32
--attention-backend flash"""
_SMALL_NOTE = "The model over the GPUs: for a small one. slime's scripts/run-*.sh show what larger ones need."
_COPIED = ("PERF_ARGS", "SGLANG_ARGS", "OPTIMIZER_ARGS", "MISC_ARGS")
"""The arrays in slime's scripts whose flags depend on the model's size."""
_KIND = re.compile(r"-(instruct|base|chat|it)$")


def model_file(model: str, slime: Path) -> str:
    """The name of slime's file for a model, which is a name on the Hugging Face Hub or a folder.

    Raises ConfigError if slime has no such file.
    """
    name = Path(model).name
    files = {file.stem.lower(): file.stem for file in sorted((slime / "scripts/models").glob("*.sh"))}
    if not files:
        raise ConfigError(f"--slime {slime}: it has no scripts/models/*.sh; give the root of slime's source")
    for candidate in (name.lower(), _KIND.sub("", name.lower())):
        for kind in ("", "-instruct"):
            if match := files.get(candidate + kind):
                return match
    meant = did_you_mean(name, files.values(), "; write --model with one of {}", most=3, cutoff=0.5)
    raise ConfigError(f"--model {model}: slime has no scripts/models/{name}.sh{meant}")


def script(env: str, model: str, slime: Path) -> str:
    """The text of the launch script. `env` is the path of the Env, and `model` the name of a file in slime's
    scripts/models."""
    text = _TEMPLATE.read_text(encoding="utf-8")
    source = slime / f"scripts/run-{model}.sh"
    if source.is_file():
        note, lines = f"The model over the GPUs, as in slime's scripts/{source.name}.", [*_copied(source, text)]
    else:
        note, lines = _SMALL_NOTE, _SMALL.splitlines()
    for name, value in {"ENV": env, "MODEL_FILE": model, "NOTE": note, "LAYOUT": "\n   ".join(lines)}.items():
        text = text.replace(f"@{name}@", value)
    return text


def _copied(source: Path, text: str) -> Iterator[str]:
    """The flags of slime's script that `text` lacks. Lines with shell variables are left out."""
    flags = set(re.findall(r"^ +(--[\w-]+)", text, re.MULTILINE))
    for name in _COPIED:
        for block in re.findall(rf"^{name}=\(\n(.*?)^\)", source.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            for line in map(str.strip, block.splitlines()):
                flag = line.partition(" ")[0]
                if flag.startswith("--") and flag not in flags and not re.search(r"\$\{|\$[A-Za-z]", line):
                    flags.add(flag)
                    yield line


def write(env: str, model: str, slime: Path, folder: Path, workers: int = 0) -> tuple[Path, Path]:
    """Write the script and the YAML file, and return their paths. Raises ConfigError, also for an existing file."""
    texts = {folder / SCRIPT: script(env, model, slime), folder / CONFIG: _config(env, workers)}
    for file in texts:
        if file.exists():
            raise ConfigError(f"{file} exists; name another folder, or remove it first")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            file.write_text(text, encoding="utf-8")
    except (FileExistsError, NotADirectoryError, PermissionError) as exc:
        raise ConfigError(f"{folder} cannot be written to: {exc.strerror}; name another folder") from exc
    (folder / SCRIPT).chmod(0o755)
    return folder / SCRIPT, folder / CONFIG


def _config(env: str, workers: int) -> str:
    return _CONFIG.format(env=env, workers=_WORKERS.format(workers=workers) if workers else "")


def next_steps(folder: Path, model: str, slime: Path) -> list[str]:
    """Lines of text with the user's next steps after the script is written."""
    script = folder / SCRIPT
    steps = [
        f"export SLIME=... MEGATRON=... MODEL=... DATA=..., and make REF as {script} describes",
        f"CHECK=1 bash {script}   # what would go wrong, before a GPU is taken",
        f"agentrl slime rehearse {script}   # plays slime's own program on this machine's CPU",
        f"bash {script}",
    ]
    if (slime / f"scripts/run-{model}.sh").is_file():
        return steps
    files = sorted((slime / "scripts").glob("run-*.sh"))
    near = [file.name for file in files if f"models/{model}.sh" in file.read_text(encoding="utf-8")]
    return [
        f"fit LAYOUT_ARGS in {script} to your GPUs, as slime's {' or '.join(near) or 'scripts/run-*.sh'} does",
        *steps,
    ]

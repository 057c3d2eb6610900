"""Launch scripts for slime, written for a model and the GPUs at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.slime.check.setup import read_model
from agentrl.slime.layouts import Launch
from agentrl.slime.models import model_name, model_of
from agentrl.slime.recipes import RECIPES, Recipe
from agentrl.slime.script import CONFIG, SCRIPT, config, script


def recipe_of(name: str | None, estimator: str) -> Recipe | None:
    """The recipe of this name. Raises ConfigError, also where it has no settings for the estimator."""
    if name is None and estimator != "grpo":
        raise ConfigError(f"--estimator {estimator}: only a recipe has settings for it; add --recipe {min(RECIPES)}")
    if name is None:
        return None
    if name not in RECIPES:
        raise ConfigError(f"--recipe {name}: there is no such recipe; the recipes are: {', '.join(RECIPES)}")
    known = RECIPES[name].estimators
    if estimator not in known:
        raise ConfigError(f"--estimator {estimator}: the recipe {name} has settings for {' and '.join(known)} only")
    return RECIPES[name]


def launch_of(model: str, env: str, **more: Any) -> Launch:
    """A Launch for a model's name, or for its folder, whose config.json is read. Raises ConfigError."""
    folder = Path(model).expanduser()
    if found := read_model(folder):
        name, base = model_of(found, model)
        return Launch(name, env, folder=str(folder.resolve()), rotary_base=base, **more)
    return Launch(model_name(model), env, **more)


def write_launch(launch: Launch, folder: Path) -> tuple[Path, Path]:
    """Write the script and the YAML file, and return their paths. Raises ConfigError, also where one of them exists."""
    texts = {folder / SCRIPT: script(launch), folder / CONFIG: config(launch)}
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


def next_steps(launch: Launch, folder: Path) -> list[str]:
    """The commands to run once the script is written."""
    asked = ["SLIME", "MEGATRON", *([] if launch.folder else ["MODEL"]), "DATA"]
    many = launch.nodes > 1
    if many:
        asked += ["SAVE", "HEAD"]
    script = folder / SCRIPT
    made = "MODEL_FP8 and REF" if launch.fp8 else "REF"
    return [
        f"export {' '.join(f'{name}=...' for name in asked)}, and make {made} as {script} says",
        f"{'NODE=0 ' if many else ''}CHECK=1 bash {script}   # what would go wrong, before a GPU is taken",
        f"bash {script}" + ("   # on each node, with NODE=0 on the first, 1 on the second" if many else ""),
    ]

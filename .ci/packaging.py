"""Build the wheel, look into it, install it alone into a fresh environment, and import it there."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROMISED = (
    "agentrl/__init__.py",
    "agentrl/py.typed",
    "agentrl/view/static/index.html",
    "agentrl/view/static/main.js",
    "agentrl/view/static/style.css",
    "agentrl/init/templates/tool/pyproject.toml",
    "agentrl/init/templates/retrieval/my_env/corpus.jsonl",
    "agentrl/init/templates/search_r1/tests/test_my_env.py",
    "agentrl_envs/fact_search/__init__.py",
    "agentrl_sandbox/__init__.py",
    "agentrl_sandbox/docker/base/Dockerfile",
)
SHOW = """
import sys, agentrl
heavy = {"torch", "ray", "aiodocker", "sglang"} & set(sys.modules)
assert not heavy, f"import agentrl brought {heavy}"
import agentrl_envs, agentrl_sandbox
from agentrl.models import load_tokenizer
from agentrl.render import load_renderer
assert load_renderer(load_tokenizer("tiny")).certificate.level == "exact"
print("agentrl", agentrl.__version__, "imports neither torch, ray, aiodocker nor sglang, and renders for `tiny`")
"""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run([str(part) for part in command], check=True, cwd=cwd, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="")
    return done.stdout


def make_env(programs: Path, folder: Path) -> None:
    """An environment made by `agentrl init` out of the wheel, installed, and played by its name from elsewhere."""
    run(programs / "agentrl", "init", "weather", cwd=folder)
    run(programs / "python", "-m", "pip", "install", "--quiet", folder / "weather")
    (folder / "elsewhere").mkdir()
    listed = run(programs / "agentrl", "envs", cwd=folder / "elsewhere")
    assert any(line.startswith("weather ") and "tools: lookup" in line for line in listed.splitlines()), listed
    assert "fact_search" in listed, listed
    play = ("play", "weather", "--player", "weather:gold", "--limit", "3")
    assert "mean reward  1.000" in run(programs / "agentrl", *play, cwd=folder / "elsewhere")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        dist = Path(folder)
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", dist, ROOT)
        (wheel,) = dist.glob("*.whl")
        names = zipfile.ZipFile(wheel).namelist()
        missing = [name for name in PROMISED if name not in names]
        assert not missing, f"the wheel lacks {missing}"
        strays = [n for n in names if n.split("/")[0] not in ("agentrl", "agentrl_envs", "agentrl_sandbox")]
        strays = [n for n in strays if ".dist-info/" not in n]
        assert not strays, f"the wheel also holds {strays}"
        run(sys.executable, "-m", "venv", dist / "venv")
        python = dist / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
        run(python, "-c", SHOW)
        run(python.parent / "agentrl", "--version")
        make_env(python.parent, dist)
        print(f"{wheel.name}: {len(names)} files, core dependencies only: ok")


if __name__ == "__main__":
    main()

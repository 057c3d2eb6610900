"""README's quickstart, docs/first-hour.md, the game of docs/text-games.md and docs/your-own.md, verbatim and in one
folder: what they promise is looked for.

.venv/bin/python .ci/first_hour.py [--templates]

Between the first two, the episode in Python of docs/environments.md.

--templates: the READMEs of all templates of `agentrl init` instead, each in its own folder; a quarter of an hour.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from agentrl.init import TEMPLATES, write_project

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # a script finds only its own folder
from examples.quickstart.demo import commands  # noqa: E402

README = ROOT / "README.md"
GUIDE = ROOT / "docs" / "first-hour.md"
ENVIRONMENTS = ROOT / "docs" / "environments.md"
GAMES = ROOT / "docs" / "text-games.md"
YOUR_OWN = ROOT / "docs" / "your-own.md"
PROMISED_S, QUICKSTART_S, YOUR_OWN_S = 180, 120, 300
"""On two quiet cores. Told, not enforced: machines are noisy."""
GAIN, HELD_OUT = 0.1, 0.5
"""What the rewards must rise by while it trains, sampled and held out, and the least that held-out tasks must earn at
the end."""
PORT = "8123"
"""The guide's. A free one is taken here."""

SHELL = """set -e
trap 'kill $(jobs -p) 2> /dev/null || true' EXIT
told() { printf '\\n$ %s\\n' "$1"; began=$EPOCHREALTIME; }
took() { echo "took $(python -c "print(f'{$EPOCHREALTIME - $began:.0f}')") s"; }
"""


def main() -> None:
    if "--templates" in sys.argv:
        for template in TEMPLATES:
            with tempfile.TemporaryDirectory() as folder:
                name = f"made_{template.replace('-', '_')}"
                write_project(name, template, Path(folder))
                text = Path(folder, name, "README.md").read_text(encoding="utf-8")
                follow(template, text, Path(folder, name), least=0)  # `tiny` misreads questions that are new
        return
    with tempfile.TemporaryDirectory() as folder:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        follow("quickstart", quickstart(), Path(folder), promised=QUICKSTART_S)
        follow("first hour", GUIDE.read_text(encoding="utf-8").replace(PORT, port), Path(folder))
        game = GAMES.read_text(encoding="utf-8").partition("## A game of your own")[0]
        follow("text games", game, Path(folder), least=0)
        own = Path(folder, "own")
        own.mkdir()
        follow("your own", YOUR_OWN.read_text(encoding="utf-8"), own, promised=YOUR_OWN_S)


def quickstart() -> str:
    """README's first commands, and an episode in Python after them."""
    lines = "".join(f"{line}\n" for line in commands(README.read_text(encoding="utf-8")))
    guide = ENVIRONMENTS.read_text(encoding="utf-8")
    in_python = re.search(r"## Episodes in Python\n.*?```python\n(.*?)```", guide, re.DOTALL)[1]
    episode = f"```python\n# one_episode.py\n{in_python}```\n```bash\npython one_episode.py\n```\n"
    return f"```bash\n{lines}```\n{episode}"


def follow(what: str, text: str, folder: Path, least: float = HELD_OUT, promised: float = PROMISED_S) -> None:
    """Run a guide's commands in one shell, and see the reward rise; held-out tasks must earn `least` at the end."""
    began, before = time.monotonic(), set(folder.rglob("metrics.jsonl"))
    run(script(text), folder)
    seconds = time.monotonic() - began
    (run_folder,) = {file.parent for file in folder.rglob("metrics.jsonl") if file not in before}
    rewards = [json.loads(line)["reward_mean"] for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((run_folder / "summary.json").read_text())
    held_out = [summary[f"eval_{name}"] for name in ("start", "warm", "final")]
    first, last = rewards[0], sum(rewards[-3:]) / 3
    told = ", ".join(f"{reward:.3f}" for reward in held_out)
    slow = "" if seconds < promised else f": more than the {promised:g} s that it may take on two quiet cores"
    print(f"\n{what}: mean reward {first:.3f} in the first step, {last:.3f} in the last three")
    print(f"{what}: held-out tasks earn {told}: before, after the imitation, after training")
    print(f"{what}: {seconds:.0f} s{slow}", flush=True)
    if last < first + GAIN or held_out[-1] < least:
        sys.exit(f"{what}: the mean reward rose by less than {GAIN}, or held-out tasks earn less than {least}")
    if least and held_out[-1] < held_out[1] + GAIN:
        sys.exit(f"{what}: on held-out tasks, reinforcement added less than {GAIN} to the imitation")


def script(text: str) -> str:
    """The guide as a script: its files are written where they stand, and its commands run one after the other."""
    parts, name = [SHELL], ""
    for kind, block in re.findall(r"```(bash|python)\n(.*?)```", text, re.DOTALL):
        if kind == "python":
            named = re.match(r"# (\w+\.py)\n", block)
            name = named[1] if named else name  # a block without a name continues the file
            parts.append(f"cat {'>' if named else '>>'} {name} << 'END_OF_FILE'\n{block}\nEND_OF_FILE\n")
            continue
        for command in block.replace("\\\n", " ").splitlines():
            told = command.partition("  #")[0].strip()
            parts.append(f"told '{told}'\n{command}\ntook\n")
    return "".join(parts)


def run(commands: str, folder: Path) -> None:
    """In a folder of its own, with this Python's programs first on the PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-c", commands], check=True, cwd=folder, env={**os.environ, "PATH": path})


if __name__ == "__main__":
    main()

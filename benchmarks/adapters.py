"""Check that each environment of the suites with an adapter runs, and that its reward equals the suite's reward.

    python -m benchmarks.adapters                       # all suites; 20 minutes on two cores, 2.5 GB in .cache
    python -m benchmarks.adapters --suite textarena

The suites are installed into virtual environments under .cache/adapters. A player with fixed texts plays each
environment first through the suite's API, then through the adapter, with the same seeds and texts, and all episodes at
the same time. Rewards, the number of turns and the end must be equal. A hash of the name divides each suite into
halves. The adapters were developed with a half; `first_contact` has the results of the first run with the other half.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "adapters"
RESULTS = ROOT / "benchmarks" / "results" / "adapters.json"
BASE = ["aiohttp", "docstring-parser", "jinja2", "pydantic", "pyyaml", "rich", "transformers", "typer"]
MCP_SERVERS = ["mcp-server-time==2026.10.19", "mcp-server-git==2026.10.19"]
VENVS = {
    "main": [
        *BASE,
        "mcp==2.3.0",
        "gymnasium==1.4.0",
        "mujoco==4.0.0",
        "box2d==2.3.10",
        "reasoning-gym==0.1.25",
        "textarena==0.7.4",
    ],
    "gem": [*BASE, "gem-llm==0.1.0"],
    "openenv": ["openenv==0.10.0", "fastmcp<4"],
    "servers": MCP_SERVERS,
    "old_servers": ["mcp-server-sqlite==2025.4.25", "mcp<2"],
}
NPM = [
    *("@modelcontextprotocol/server-everything", "@modelcontextprotocol/server-filesystem"),
    *("@modelcontextprotocol/server-memory", "@modelcontextprotocol/server-sequential-thinking"),
]
SUITES = {
    "gymnasium": ("main",),
    "reasoning_gym": ("main",),
    "textarena": ("main",),
    "gem": ("gem",),
    "openenv": ("main", "openenv"),
    "mcp": ("main", "servers", "old_servers", "npm"),
}
"""Suite -> its virtual environments. The adapter runs in the first."""


def install(name: str) -> None:
    """Create a virtual environment, unless it exists."""
    folder, done = CACHE / name, CACHE / name / ".installed"
    if done.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    print(f"installing {name} into {folder}", flush=True)
    if name == "npm":
        subprocess.run(["npm", "install", "--silent", "--prefix", folder, *NPM], check=True, cwd=folder)
    else:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", *VENVS[name]], check=True)
    done.touch()


def play(suite: str, half: str) -> list[dict[str, Any]]:
    """A row for each environment of a suite: its name, its half, and the result."""
    python = CACHE / SUITES[suite][0] / "bin" / "python"
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "envs", ROOT / "sandbox")))
    env = {
        **os.environ,
        "PYTHONPATH": paths,
        "PYTHONWARNINGS": "ignore",
        "HF_HUB_OFFLINE": "1",
        "AGENTRL_ADAPTERS_CACHE": str(CACHE),
    }
    command = [python, "-m", f"benchmarks.adapter_suites.{suite}", half]
    rows = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env, cwd=ROOT, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("ROW "):
                rows.append(json.loads(line[4:]))
                print(f"  {suite}: {rows[-1]['name']}: {rows[-1]['result']}", flush=True)
    if running.returncode:
        raise SystemExit(f"{suite} ended with {running.returncode}")
    return rows


def table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The counts of results, and for each reason the names of the environments that did not pass."""
    reasons: dict[str, dict[str, list[str]]] = {"excluded": {}, "failed": {}}
    for row in rows:
        kind, _, reason = row["result"].partition(": ")
        if kind != "passed":
            reasons[kind].setdefault(reason, []).append(row["name"])
    passed = sum(row["result"] == "passed" for row in rows)
    episodes = sum(row.get("episodes", 0) for row in rows)
    nonzero = sum(row.get("nonzero", 0) for row in rows)
    counts = {"tried": len(rows), "passed": passed, "episodes": episodes, "episodes_with_a_reward": nonzero}
    return {**counts, **reasons}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=SUITES, action="append")
    parser.add_argument("--half", default="all")
    args = parser.parse_args()
    for suite in args.suite or SUITES:
        for name in SUITES[suite]:
            install(name)
        began = time.perf_counter()
        rows = play(suite, args.half)
        seconds = round(time.perf_counter() - began, 1)
        for half in sorted({row["half"] for row in rows}):
            found = {**table([row for row in rows if row["half"] == half]), "seconds": seconds}
            print(json.dumps({"suite": suite, "half": half, **found}, indent=1))
            keep(suite, half, found)


def keep(suite: str, half: str, found: dict[str, Any]) -> None:
    """Write one half of a suite into the results, with the sum of both halves. The results of the first
    run are never overwritten."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"suites": {}}
    told = kept["suites"].setdefault(suite, {})
    halves = told.setdefault("halves", {})
    if half == "held":
        told.setdefault("first_contact", {key: found[key] for key in ("tried", "passed", "excluded", "failed")})
    halves[half] = found
    counts = ("tried", "passed", "episodes", "episodes_with_a_reward")
    told.update({key: sum(each[key] for each in halves.values()) for key in counts})
    kept.update(date=date.today().isoformat(), python=platform.python_version(), pinned={**VENVS, "npm": NPM})
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()

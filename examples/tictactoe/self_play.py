"""Self-play: a model with random weights learns tic-tac-toe against itself, and is trained in both seats.

First the model imitates games of two players that move at random, and learns the format of a move. Then it plays
against itself and a perfect player in turn. Evaluations before and after training are games against a random and a
perfect player, in each seat.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean

import yaml

HERE = Path(__file__).parent
ENV, PLAYERS = f"{HERE / 'env.py'}:TicTacToe", HERE / "players.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/self-play"), help="folder for games and run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="one run for each; the games are the same")
    parser.add_argument("--set", action="append", default=[], help="as of agentrl train")
    args = parser.parse_args()
    began, games = time.monotonic(), args.out / "games.jsonl"
    args.out.mkdir(parents=True, exist_ok=True)
    agentrl("play", ENV, "--player", f"{PLAYERS}:random", "--episodes", 2000, "--out", games)
    opponents = [f"opponents=[policy, {PLAYERS}:perfect]", f"eval_opponents=[{PLAYERS}:random, {PLAYERS}:perfect]"]
    settings = [f"env={ENV}", *opponents, *args.set]
    given = [part for setting in settings for part in ("--set", setting)]
    given += ["--config", HERE / "train.yaml", "--warm-start", games]
    runs = {seed: args.out / f"seed-{seed}" for seed in args.seeds}
    for seed, run in runs.items():
        agentrl("train", "--seed", seed, "--out", run, *given)
    for seed, run in runs.items():
        print(f"seed {seed}, {self_play_share(run):.0%} of the games in training were self-play\n{table(run)}")
    print(f"in all {(time.monotonic() - began) / 60:.1f} minutes")


def agentrl(*arguments: object) -> None:
    words = [sys.executable, "-m", "agentrl", *map(str, arguments)]
    print("$ agentrl", *words[3:], flush=True)
    if code := subprocess.run(words, check=False).returncode:
        sys.exit(code)


def self_play_share(run: Path) -> float:
    opponents: list[str] = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))["opponents"]
    return opponents.count("policy") / len(opponents)


def table(run: Path) -> str:
    """The mean reward of each evaluation, by opponent and seat."""
    lines = ["mean reward, 50 games each      random: x      o   perfect: x      o"]
    for name, told in (("warm", "before self-play"), ("final", "after self-play")):
        text = (run / "trajectories" / f"eval_{name}.jsonl").read_text(encoding="utf-8")
        games = [json.loads(line) for line in text.splitlines()]
        rewards = [
            fmean(
                game["reward"]
                for game in games
                if game["info"]["opponent"].endswith(f":{opponent}") and game["seat"] == seat
            )
            for opponent in ("random", "perfect")
            for seat in ("x", "o")
        ]
        lines.append(f"{told:28}" + "".join(f"{reward:11.2f}" for reward in rewards))
    return "\n".join(lines)


if __name__ == "__main__":
    main()

"""python -m agentrl_envs.fact_search FOLDER: write the training and held-out questions."""

from __future__ import annotations

import argparse
from pathlib import Path

from agentrl_envs.fact_search.tasks import write_tasks


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m agentrl_envs.fact_search", description=__doc__)
    parser.add_argument("folder", type=Path, help="where train.jsonl and held_out.jsonl go")
    parser.add_argument("--train", type=int, default=6000, help="questions to train on (6000)")
    parser.add_argument("--held-out", type=int, default=300, help="questions to test on (300)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for file in write_tasks(args.folder, train=args.train, held_out=args.held_out, seed=args.seed):
        print(file)  # noqa: T201


if __name__ == "__main__":
    main()

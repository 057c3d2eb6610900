"""Sum up what `agentrl validate` found in public sets of Harbor tasks.

    python -m benchmarks.public_sets OUT.json REPOSITORY@COMMIT FOLDER FINDINGS.json [REPOSITORY@COMMIT ...]

FINDINGS is what `agentrl validate FOLDER --json` wrote; of a set that is too large, it may cover a sample.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl import ConfigError
from agentrl_envs.coding.formats.harbor.config import read_task_toml

_RAN = ("good", "no-op rewarded", "oracle failed", "flaky", "no oracle", "deadline")
_CLASSES = {
    r"docker-compose.yaml": "it needs more of docker-compose than one plain service",
    "registry-1.docker.io": "its base image is neither here nor mapped",
    "fetch_media": "its image needs a network (its own Python script)",
    "no Dockerfile": "it has neither a Dockerfile nor a docker_image",
    "GPUs": "it asks for GPUs",
    "environment of its own": "its verifier has an environment of its own",
    r"its image needs a network \([^)]*\)": "{}",
    r"it needs a network \([^)]*\)": "its scripts: {}",
    "cannot be built": "its image cannot be built on the mapped base",
}


def main(arguments: Sequence[str]) -> None:
    out, *rest = arguments
    triples = [rest[at : at + 3] for at in range(0, len(rest), 3)]
    sets = {name: _summary(Path(folder), json.loads(Path(found).read_text())) for name, folder, found in triples}
    total = {key: sum(one[key] for one in sets.values()) for key in ("task_toml", "parsed", "tried", "ran")}
    verdicts = Counter[str]()
    for one in sets.values():
        verdicts.update(one["verdicts"])
    figures = {"total": {**total, "verdicts": dict(verdicts.most_common())}, "sets": sets}
    Path(out).write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures["total"]))


def _summary(folder: Path, found: Mapping[str, Any]) -> dict[str, Any]:
    files = sorted(folder.rglob("task.toml"))
    findings = found["findings"]
    reasons = Counter(_class(one["reason"]) for one in findings if one["verdict"] == "cannot run here")
    named = ("no-op rewarded", "oracle failed", "flaky", "error", "deadline")
    return {
        "task_toml": len(files),
        "parsed": sum(_parses(file) for file in files),
        "tried": len(findings),
        "ran": sum(one["verdict"] in _RAN or (one["verdict"] == "error" and bool(one["noop"])) for one in findings),
        "verdicts": dict(Counter(one["verdict"] for one in findings).most_common()),
        "cannot_run_because": dict(reasons.most_common()),
        "broken": {verdict: [one["id"] for one in findings if one["verdict"] == verdict] for verdict in named},
    }


def _parses(file: Path) -> bool:
    try:
        read_task_toml(file)
    except ConfigError:
        return False
    return True


def _class(reason: str) -> str:
    for pattern, name in _CLASSES.items():
        if match := re.search(pattern, reason):
            return name.format(match[0])
    return reason[:80]


if __name__ == "__main__":
    main(sys.argv[1:])

"""slime's own train.py, unmodified, from launch to the second start: the launch of `make rehearse`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.rehearse.calling import example, rehearse

SOURCE = os.environ.get("SLIME_SRC", "")
STAGES = (
    *("cluster", "arguments", "ray", "placement", "router", "engines", "actors", "weights", "rollout", "conversion"),
    *("training", "checkpoint", "second update", "evaluation", "resume"),
)


def processes_of(out):
    marker = f"AGENTRL_REHEARSAL={out}".encode()
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if marker in file.read_bytes():
                found.append(file)
        except OSError:
            continue
    return found


@pytest.mark.host
@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not SOURCE, reason="SLIME_SRC is not set: give the root of slime's source")
def test_slimes_own_program_is_rehearsed(tmp_path):
    """The first call needs a package registry, or an environment of an earlier rehearsal."""
    words = example().prepare(tmp_path)
    out = tmp_path / "out"
    code, report, _, output = rehearse(["--timeout", "300", "--", "python3", f"{SOURCE}/train.py", *words], out)
    assert code == 0, output
    assert report["problems"] == []
    assert {stage["name"]: stage["state"] for stage in report["stages"]} == dict.fromkeys(STAGES, "ok")
    figures = report["figures"]
    assert [row["update"] for row in figures["log_probs"]][-1] == 2
    assert max(row["difference"] for row in figures["log_probs"]) < 0.02
    assert figures["ledger"]["sampled"] == figures["trained_tokens"] + sum(figures["ledger"]["masked"].values())
    assert figures["episodes"]["stops"].get("done"), "the model ends its turns"
    assert len({*figures["weight_sums"]}) == 3, "each update changed the weights"
    assert not processes_of(out)

"""docs/metrics.md names every key that a run writes, and no other."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from agentrl.monitor.metrics import RolloutMetrics
from agentrl.train import train
from agentrl.train.report import Summary
from agentrl.types import StopReason
from tests.train.toy_runs import TOY, quiet

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
COPIED = Path(__file__).with_name("copied_engine.py")


def keys(name: str) -> list[str]:
    """The first column of the tables between two comments."""
    tables = re.findall(rf"<!-- {name} -->\n(.*?)<!-- end of {name} -->", PAGE, re.DOTALL)
    first = [cell for table in tables for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)]
    return [key for cell in first for key in re.findall(r"`(\w+)`", cell)]


@pytest.fixture
def everything(make_config: Any, small_model: Path, tmp_path: Path) -> Any:
    """Two steps of a run with every option that adds a metric."""
    rows = [{"prompt": f"say {i}", "label": i / 100, "id": str(i)} for i in range(8)]
    (tmp_path / "hard.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return make_config(
        env=f"{TOY}:Uneven",
        data=tmp_path / "hard.jsonl",
        eval_data=tmp_path / "hard.jsonl",
        eval_every=1,
        steps=2,
        refill=1,
        max_prompt_tokens=150,
        teacher={"model": str(small_model), "beside_reward": True},
    )


@pytest.fixture
def never_stops(make_config: Any, tmp_path: Path) -> Any:
    """Two steps of a run whose episodes never stop, with an evaluation beside them."""
    return make_config(
        eval_data=tmp_path / "tasks.jsonl",
        eval_every=1,
        staleness=1,
        engine=f"{COPIED}:CopiedEngine",
        out=tmp_path / "never_stops",
    )


def lines(config: Any) -> list[dict[str, Any]]:
    train(config, console=quiet())
    return [json.loads(line) for line in (config.out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.thorough
def test_the_page_names_every_key_of_a_run(everything: Any, never_stops: Any) -> None:
    found = lines(everything) + lines(never_stops)
    written = {re.sub("^dropped_.*", "dropped_REASON", key) for line in found for key in line}
    assert len(keys("keys")) == len(set(keys("keys")))
    assert set(keys("keys")) - written == set()
    assert written - set(keys("keys")) == set()
    assert [line["step"] for line in found] == [1, 2, 1, 2]
    summary = json.loads((everything.out / "summary.json").read_text())
    assert set(keys("summary")) == summary.keys() == {field.name for field in fields(Summary)}


def test_what_slime_gets_is_on_the_page() -> None:
    assert {field.name for field in fields(RolloutMetrics)} <= set(keys("keys"))


def test_the_reasons_to_stop_are_on_the_page() -> None:
    (row,) = re.findall(r"^\| `stops` \|.*$", PAGE, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == {"stops", *map(str, StopReason)}

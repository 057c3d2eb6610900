"""`make demo` plays README's own commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl._util.loading import load_object

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def demo(monkeypatch):
    """A function that loads a name of the demo, which imports its siblings by `examples`."""
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: load_object(f"{ROOT / 'examples' / 'quickstart' / 'demo.py'}:{name}")


def test_the_commands_are_readmes(demo):
    lines = demo("commands")(README)
    assert [line.split()[:2] for line in lines] == [["agentrl", name] for name in ("init", "play", "train", "show")]
    assert all(line in README and "#" not in line for line in lines)
    assert lines[0].endswith("cd weather")
    assert lines[-1] == f"agentrl show {demo('RUN').relative_to('weather')}"


def test_a_seed_is_added_to_the_training_only(demo):
    lines = demo("commands")(README)
    assert demo("seeded")(lines, 0) == lines
    changed = [line for line in demo("seeded")(lines, 2) if line not in lines]
    assert changed == ["agentrl train --config train.yaml --seed 2"]


def test_a_command_that_fails_ends_the_demo(demo, tmp_path):
    with pytest.raises(SystemExit) as end:
        demo("play")(["mkdir made && cd made", "touch here", "false && true", "touch not-here"], tmp_path)
    assert end.value.code == 1
    assert [path.name for path in tmp_path.rglob("*")] == ["made", "here"]


def test_the_commands_are_those_of_the_demos_python(demo, tmp_path, capfd):
    demo("play")(["agentrl --version"], tmp_path)
    assert capfd.readouterr().out.startswith("\n$ agentrl --version\nagentrl ")


def test_each_demo_has_a_folder_of_its_own(demo, tmp_path):
    folders = [demo("new_folder")(tmp_path / "demo").name for _ in range(3)]
    assert folders == ["demo", "demo-2", "demo-3"]


def test_the_figures_at_the_end(demo, tmp_path, capsys):
    names = ("start", "warm", "final")
    summary = {f"eval_{name}": mean for name, mean in zip(names, (0.0, 0.25, 0.75), strict=True)}
    intervals = {f"eval_{name}": [0.125, 0.875] for name in names}
    (tmp_path / "summary.json").write_text(json.dumps({**summary, "eval_intervals": intervals, "eval_tasks": 8}))
    step = {"sampled_tokens": 10, "trained_tokens": 8, "masked_tokens": {"truncated": 2}}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (step, step)))
    demo("recap")(tmp_path, 61.4)
    printed = capsys.readouterr().out
    for mean in ("0.000", "0.250", "0.750"):
        assert mean in printed
    assert printed.count("0.125 to 0.875") == 3
    assert "sampled 20 = trained 16 + masked 4; it balances in 2 of 2 steps" in printed
    assert str(tmp_path / "reward.png") in printed.replace("\n", "")
    assert f"agentrl view {tmp_path}" in printed.replace("\n", "")
    assert "61 s" in printed


@pytest.mark.parametrize("name", ["quickstart", "fact_search"])
def test_the_demos_run_as_modules(name):
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{name}.demo", "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--seed" in done.stdout

"""The comparison of two of slime's evaluations."""

from __future__ import annotations

import pytest

from tests.rehearse.learning import evaluations, paired, rewards

torch = pytest.importorskip("torch")


def dump(file, values):
    samples = [{"tokens": [prompt, 9, 9], "response_length": 2, "reward": reward} for prompt, reward in values]
    torch.save({"samples": samples}, file)


def test_tasks_are_paired_by_their_prompts(tmp_path):
    (tmp_path / "rollouts").mkdir()
    dump(tmp_path / "rollouts/eval_39.pt", [(2, 1.0), (1, 1.0), (1, 0.0), (2, 1.0)])
    dump(tmp_path / "rollouts/eval_0.pt", [(1, 0.0), (1, 0.0), (2, 1.0), (2, 0.0)])
    first, last = evaluations(tmp_path)
    assert (first.stem, last.stem) == ("eval_0", "eval_39")
    before, after, difference, half, tasks = paired(rewards(first), rewards(last))
    assert (before, after, difference, tasks) == (0.25, 0.75, 0.5, 2)
    assert half == 0.0


def test_other_tasks_are_refused():
    with pytest.raises(ValueError, match="other tasks"):
        paired({"a": 1.0}, {"b": 1.0})

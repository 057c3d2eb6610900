"""The ledger's oracle finds each way in which tokens can go wrong between the engine and slime's trainer."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.rehearse.ledger import account, read_generations, read_samples

torch = pytest.importorskip("torch")
PROMPT, FIRST, SEEN, SECOND = [1, 2, 3], [10, 11], [20, 21, 22], [12]
TOKENS = [*PROMPT, *FIRST, *SEEN, *SECOND]
MASK = [1, 1, 0, 0, 0, 1]
LOG_PROBS = [-0.5, -0.25, 0.0, 0.0, 0.0, -1.5]


def generation(inputs: list[int], outputs: list[int], log_probs: list[float], version: str = "1") -> dict[str, object]:
    return {"input_ids": inputs, "output_ids": outputs, "log_probs": log_probs, "weight_version": version}


TURNS = (
    generation(PROMPT, FIRST, LOG_PROBS[:2]),
    generation([*PROMPT, *FIRST, *SEEN], SECOND, LOG_PROBS[5:]),
)


def played(**changed: object) -> dict[str, object]:
    sample = {"tokens": TOKENS, "response_length": 6, "rollout_log_probs": LOG_PROBS, "status": "completed"}
    return sample | changed


def trained(position: int = 0, **changed: object) -> dict[str, object]:
    return {"rollout_position": position, "tokens": torch.tensor(TOKENS), "loss_masks": torch.tensor(MASK)} | changed


@pytest.fixture
def run(tmp_path: Path):
    """Write the three folders of a run, and account for its tokens."""

    def accounted(turns, rollout, training=None, evaluation=()):
        for name in ("engine", "rollouts", "trained"):
            (tmp_path / name).mkdir()
        (tmp_path / "engine/1.jsonl").write_text("".join(f"{json.dumps(turn)}\n" for turn in turns))
        torch.save({"samples": rollout}, tmp_path / "rollouts/0.pt")
        torch.save({"samples": [*evaluation]}, tmp_path / "rollouts/eval_0.pt")
        if training is not None:
            torch.save({"samples": training}, tmp_path / "trained/0.pt")
        return account(read_generations(tmp_path / "engine"), read_samples(tmp_path / "rollouts", tmp_path / "trained"))

    return accounted


def test_each_token_of_a_good_run_is_trained(run):
    result = run(TURNS, [played()], [trained()])
    assert (dict(result.tokens), result.problems) == ({"trained": 3}, [])
    assert result.versions == {"1": 3}


def test_episodes_with_equal_tokens_are_told_apart(run):
    other = [*LOG_PROBS[:5], -1.25]
    turns = (*TURNS, TURNS[0], generation([*PROMPT, *FIRST, *SEEN], SECOND, other[5:], "2"))
    result = run(turns, [played(), played(rollout_log_probs=other)], [trained(0), trained(1)])
    assert (result.tokens["trained"], result.problems) == (6, [])
    assert result.versions == {"1": 5, "2": 1}


def test_evaluation_dropped_and_removed_episodes_have_their_own_line(run):
    turns = (*TURNS, *TURNS, generation([5], [6], [-1.0]))
    removed = played(remove_sample=True, status="failed")
    result = run(turns, [removed], [trained(loss_masks=torch.zeros(6))], evaluation=[played(rollout_log_probs=None)])
    assert dict(result.tokens) == {"masked: removed sample, failed": 3, "evaluation": 3, "in no sample": 1}


def test_a_rollout_that_was_not_trained_is_told(run):
    assert dict(run(TURNS, [played()]).tokens) == {"played, not trained": 3}


@pytest.mark.parametrize(
    ("turns", "sample", "training", "problem"),
    [
        (TURNS, played(), trained(loss_masks=torch.ones(6)), "token 2 was trained, and no engine sampled it"),
        (TURNS[:1], played(), trained(), "token 5 was trained, and no engine sampled it"),
        (TURNS, played(rollout_log_probs=[-0.5, -0.3, *LOG_PROBS[2:]]), trained(), "log-probs differ"),
    ],
)
def test_it_finds(run, turns, sample, training, problem):
    assert problem in " ".join(run(turns, [sample], [training]).problems)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ([trained(tokens=torch.tensor([*TOKENS[:-1], 13]))], "other tokens"),
        ([trained(loss_masks=torch.tensor(MASK[:5]))], "5 bits of loss mask"),
        ([trained(), trained()], "trained twice"),
    ],
)
def test_a_dump_that_does_not_fit_ends_the_account(run, training, message):
    with pytest.raises(ValueError, match=message):
        run(TURNS, [played()], training)


@pytest.mark.skipif("SLIME_SRC" not in os.environ, reason="SLIME_SRC is not set: give the root of slime's source")
def test_slimes_own_dumps_are_read(tmp_path, monkeypatch):
    """slime's functions write a rollout of three samples and an evaluation. Two ranks train them, one is removed."""
    monkeypatch.syspath_prepend(os.environ["SLIME_SRC"])
    rollouts = pytest.importorskip("slime.observability.rollout_data_utils")
    training = pytest.importorskip("slime.observability.train_data_utils")
    sample_class = pytest.importorskip("slime.utils.types").Sample

    def sample(**changed):
        fields = {"tokens": TOKENS, "response_length": 6, "rollout_log_probs": LOG_PROBS, "loss_mask": MASK}
        return sample_class(**{**fields, "status": sample_class.Status.COMPLETED, **changed})

    removed = sample(status=sample_class.Status.FAILED, remove_sample=True)
    path = f"{tmp_path}/rollouts/{{rollout_id}}.pt"
    rollouts.save_debug_rollout_data(path, [sample(), removed, sample()], rollout_id=3, evaluation=False)
    held_out = {"held_out": {"samples": [sample(rollout_log_probs=None)]}}
    rollouts.save_debug_rollout_data(path, held_out, rollout_id=3, evaluation=True)
    shards = [
        {"rank": rank, "data_parallel_rank": rank, "rollout_data": _rank(partition)}
        for rank, partition in enumerate(([2, 0], [1]))
    ]
    (tmp_path / "trained").mkdir()
    torch.save(training._build_dump_payload(shards, rollout_id=3, writer_rank=0), tmp_path / "trained/3.pt")
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine/1.jsonl").write_text("".join(f"{json.dumps(turn)}\n" for turn in TURNS * 4))

    samples = read_samples(tmp_path / "rollouts", tmp_path / "trained")
    result = account(read_generations(tmp_path / "engine"), samples)
    assert dict(result.tokens) == {"trained": 6, "masked: removed sample, failed": 3, "evaluation": 3}
    assert result.problems == []


def _rank(partition):
    """A rank's part of slime's training data. The second sample of the rollout is removed."""
    masks = [torch.zeros(6, dtype=torch.int) if number == 1 else torch.tensor(MASK) for number in partition]
    return {
        "partition": partition,
        "tokens": [torch.tensor(TOKENS) for _ in partition],
        "response_lengths": [6 for _ in partition],
        "loss_masks": masks,
    }

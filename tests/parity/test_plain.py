"""The embedded trainer, from episodes to the loss, against the formulas in plain Python; on any machine."""

from __future__ import annotations

import pytest

from agentrl import StopReason
from tests.parity import plain
from tests.parity.cases import CASES
from tests.parity.embedded import LENGTH, learn, trained


def samples(groups, models, *, algorithm="grpo", tis=False):
    """One of each episode, those without a trained token included."""
    found = []
    for group in groups:
        valid = [t for t in group if t.is_valid]
        values = plain.advantages([t.reward for t in valid], deviation=algorithm != "dr_grpo")
        advantage = {id(t): value for t, value in zip(valid, values, strict=True)}
        for t in group:
            engine = [x for x, mask in zip(t.log_probs, t.loss_mask, strict=True) if mask]
            found.append(
                plain.Sample(
                    new=trained(t, models.now),
                    old=trained(t, models.before) if tis else engine,
                    advantages=[advantage.get(id(t), 0.0)] * sum(t.loss_mask),
                    engine=engine,
                    reference=trained(t, models.reference),
                )
            )
    return found


def expected(groups, models, values) -> float:
    options = {"algorithm": "grpo", **values}
    algorithm = options.pop("algorithm")
    reduction = options.pop("reduction", {"dr_grpo": "constant", "gspo": "sample"}.get(algorithm, "token"))
    given = samples(groups, models, algorithm=algorithm, tis="tis_clip" in values)
    return plain.mean_loss(given, reduction, length=LENGTH, sequence=algorithm == "gspo", **options)


@pytest.mark.parametrize("name", CASES)
def test_the_loss_is_the_papers(groups, models, name):
    assert learn(groups, models, **CASES[name]).loss == pytest.approx(expected(groups, models, CASES[name]), rel=1e-5)


def test_every_case_is_a_loss_of_its_own(groups, models):
    losses = [round(expected(groups, models, values), 7) for values in CASES.values()]

    assert len(set(losses)) == len(losses)


def test_the_episodes_are_what_they_should_be(groups):
    """Else the rest would prove less than it says."""
    assert [len({t.segment.response_length for t in group}) for group in groups] == [4, 4, 4]
    stops = [t.stop for group in groups for t in group]
    assert {StopReason.DONE, StopReason.TURN_MAX_TOKENS, StopReason.FAILED} == set(stops)
    assert [len(t.turns) for t in groups[0]] == [3, 1, 2, 2]
    assert [t.reward for t in groups[1]] == [1.0, 0.0, None, 0.0]
    assert {t.reward for t in groups[2]} == {0.0}
    assert sum(t.ledger.observation + t.ledger.scaffold for group in groups for t in group) > 100
    assert groups[1][2].ledger.masked == {"env_failure": groups[1][2].ledger.sampled}
    assert groups[1][3].turns[0].bad_call == "structural"

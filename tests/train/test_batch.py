import pytest
import torch

from agentrl import Generation, Trajectory
from agentrl.models import tiny_model
from agentrl.train.batch import MicroBatch, Row, episode_rows, micro_batches
from agentrl.train.loss import policy_loss
from agentrl.types import Action, Rendered, RenderedSpan

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model():
    return tiny_model(seed=1)


def two_turns() -> Trajectory:
    """Prompt 10 11 12, sampled 20 21, observed 30 31, sampled 40: loss_mask 1 1 0 0 1."""
    trajectory = Trajectory()
    trajectory.append_prompt(Rendered((10, 11, 12), (RenderedSpan("prompt", 0, 3),)))
    trajectory.append_model(Generation([20, 21], [-0.5, -0.6], "stop"))
    trajectory.append_action(Action("", "", tokens=(20, 21)))
    trajectory.append_observation(Rendered((30, 31), (RenderedSpan("observation", 0, 2),)))
    trajectory.append_model(Generation([40], [-0.7], "stop"))
    return trajectory


def test_a_row_holds_the_loss_mask_tokens_and_reads_no_further_than_it_must():
    row = Row.of(two_turns().segment, [1.5, -0.5])

    assert [row.tokens[i] for i in row.positions] == [20, 21, 40]
    assert list(row.log_probs) == pytest.approx([-0.5, -0.6, -0.7])
    assert row.weights == [1.5, 1.5, -0.5], "each token has its turn's"
    assert row.length == 7  # all tokens but the last, which nothing follows


def test_a_segment_is_credited_with_its_own_turns():
    """Three turns, the last in a segment of its own; spans count an earlier segment's turns from 0."""
    trajectory = two_turns()
    trajectory.append_action(Action("", "", tokens=(40,)))
    trajectory.begin_segment(Rendered((10, 11, 12), (RenderedSpan("prompt", 0, 3),)))
    trajectory.append_model(Generation([50], [-0.8], "stop"))
    trajectory.append_action(Action("", "", tokens=(50,)))
    trajectory.begin_segment(Rendered((10, 11), (RenderedSpan("prompt", 0, 2),)))
    trajectory.append_model(Generation([60], [-0.9], "stop"))

    rows = episode_rows(trajectory, [1.0, 2.0, 3.0, 4.0], 0.25)

    assert [[row.tokens[i] for i in row.positions] for row in rows] == [[20, 21, 40], [50], [60]]
    assert [row.weights for row in rows] == [[1.0, 1.0, 2.0], [3.0], [4.0]]
    assert {row.share for row in rows} == {0.25}

    trajectory.mask("host", turn=2)
    assert len(episode_rows(trajectory, [1.0, 2.0, 3.0, 4.0])) == 2


def test_a_masked_turn_is_left_out_and_a_masked_trajectory_is_no_row():
    trajectory = two_turns()
    trajectory.mask("off_policy", turn=1)
    row = Row.of(trajectory.segment, [1.0, 1.0])
    assert ([row.tokens[i] for i in row.positions], row.length) == ([20, 21], 4)

    trajectory.mask("host")
    assert Row.of(trajectory.segment, [1.0, 1.0]) is None


def rows_of_lengths(*lengths):
    generator = torch.Generator().manual_seed(0)
    rows = []
    for n in lengths:
        tokens = torch.randint(0, 600, (n + 1,), generator=generator).tolist()
        positions = sorted({n, max(1, n // 2)})
        rows.append(Row(tokens, positions, [1.0] * len(positions), [-1.0] * len(positions)))
    return rows


@pytest.mark.parametrize("budget", [1, 10, 25, 1000])
def test_micro_batches_keep_the_budget_and_every_row(budget):
    rows = rows_of_lengths(9, 3, 7, 12, 3, 5)

    batches = list(micro_batches(rows, budget, CPU))

    assert sum(len(batch.rows) for batch in batches) == 6
    assert sum(len(batch.row) for batch in batches) == sum(len(row.positions) for row in rows)
    assert all(batch.inputs["input_ids"].numel() <= budget or len(batch.rows) == 1 for batch in batches)
    if budget == 1000:
        assert len(batches) == 1


def test_log_probs_equal_those_of_each_row_alone_without_padding(model):
    rows = rows_of_lengths(9, 3, 17)
    [batch] = micro_batches(rows, 1000, CPU)

    found = batch.model_log_probs(model, temperature=0.7).tolist()

    expected = []
    for row in sorted(rows, key=lambda row: row.length):
        logits = model(input_ids=torch.tensor([row.tokens])).logits[0] / 0.7
        log_probs = logits.log_softmax(-1)
        expected += [log_probs[position - 1, row.tokens[position]].item() for position in row.positions]
    assert found == pytest.approx(expected, abs=1e-5)


def test_gradients_at_loss_mask_zero_are_exactly_zero(model):
    """Of all logits, only those that predict a loss_mask token move the loss."""
    row = Row.of(two_turns().segment, [1.0, 1.0])
    logits = model(input_ids=torch.tensor([row.tokens[: row.length]])).logits.detach().requires_grad_()

    def stand_in(input_ids, use_cache, logits_to_keep):
        return type("Output", (), {"logits": logits[:, logits_to_keep]})

    batch = MicroBatch.padded([row], CPU)
    policy_loss(batch.model_log_probs(stand_in) - batch.log_probs, batch.weights).losses.sum().backward()

    trained = [bool(gradient.any()) for gradient in logits.grad[0]]
    # positions 2, 3 and 6 predict the tokens 20, 21 and 40
    assert trained == [False, False, True, True, False, False, True]


def test_what_an_observation_says_is_not_imitated(model):
    """Other observed tokens in a masked turn change nothing; other sampled ones do."""

    def loss(tokens, positions):
        batch = MicroBatch.padded([Row(tokens, positions, [1.0] * len(positions), [-1.0] * len(positions))], CPU)
        return policy_loss(batch.model_log_probs(model) - batch.log_probs, batch.weights).losses.sum().item()

    assert loss([1, 2, 3, 4, 5], [2]) == loss([1, 2, 3, 99, 98], [2])
    assert loss([1, 2, 3, 4, 5], [2]) != loss([1, 2, 33, 4, 5], [2])

"""Packed rows: the loss and the gradients of each row alone, without padding, and shared beginnings read once."""

from __future__ import annotations

import copy

import pytest
import torch

from agentrl.train import batch, log_probs, packing, stems
from agentrl.train.batch import Row, micro_batches
from agentrl.train.checkpointing import checkpointing, layers_to_checkpoint
from agentrl.train.learner import Learner
from agentrl.train.packing import Pack, attending_by_rows, packing_of
from agentrl.train.stems import packs
from tests.train.packed import CPU, PACKED, PADDED, SIZES, assert_equal, bottom_right, make, with_gradients


def rows():
    """A group of three with one prompt, two of which go on alike; two others; one of them again."""
    generator = torch.Generator().manual_seed(0)

    def some(n):
        return torch.randint(3, 96, (n,), generator=generator).tolist()

    prompt, turn = some(12), some(9)
    sequences = [prompt + turn + some(5), some(18), prompt + some(7), prompt + turn + some(11), some(6)]
    found = []
    for tokens in [*sequences, sequences[1]]:
        positions = [i for i in range(3, len(tokens)) if i % 3]
        weights = torch.randn(len(positions), generator=generator).tolist()
        found.append(Row(tokens, positions, weights, [-4.0] * len(positions)))
    return found


def alone(model):
    """Loss and gradients by a plain computation: each row alone."""
    loss = torch.zeros(())
    for row in rows():
        found = model(input_ids=torch.tensor([row.tokens]), use_cache=False).logits[0].log_softmax(-1)
        for position, weight in zip(row.positions, row.weights, strict=True):
            loss = loss + weight * found[position - 1, row.tokens[position]]
    return with_gradients(model, loss)


def packed(model, budget=1000):
    loss = torch.zeros(())
    with attending_by_rows(model):
        for micro in micro_batches(rows(), budget, CPU, packing="rows"):
            loss = loss + (micro.weights * micro.model_log_probs(model)).sum()
        return with_gradients(model, loss)


@pytest.mark.parametrize("budget", [1000, 30])
@pytest.mark.parametrize("kind", PACKED)
def test_a_pack_has_the_loss_and_gradients_of_each_row_alone(kind, budget):
    model = make(kind)
    assert packing_of(model)
    assert_equal(packed(model, budget), alone(model))


@pytest.mark.parametrize("kind", ["Qwen2", "Gemma3Text"])
def test_checkpoints_and_pieces_change_nothing(kind, monkeypatch):
    model = make(kind)
    expected = alone(model)
    for module in (batch, log_probs):
        monkeypatch.setattr(module, "PIECE_BYTES", 3 * 4 * SIZES["vocab_size"])
    with checkpointing(layers_to_checkpoint(model, True)):
        assert_equal(packed(model), expected)


@pytest.mark.parametrize("kind", PADDED)
def test_what_does_not_compute_the_same_is_padded_and_says_so_once(kind, caplog, make_config):
    model = make(kind)
    learners = [Learner(model, make_config()) for _ in range(2)]

    assert not any(learner.packing for learner in learners)
    assert [record.message for record in caplog.records if record.name == "agentrl"] == [
        f"{type(model).__name__} is trained on padded rows: it does not compute the same for packed ones"
    ]
    with learners[0]._training():
        found = [micro.pack for micro in learners[0].micro_batches(rows(), 1000)]
    assert found == [None]


def test_a_pack_holds_each_row_and_shared_beginnings_once():
    given = [row.read for row in rows()]
    pack, places = Pack.of(given, CPU)

    for row, place in zip(given, places, strict=True):
        assert pack.input_ids[0, place].tolist() == list(row)
        assert pack.position_ids[0, place].tolist() == list(range(len(row)))
    # 12 and 9 tokens are shared by two other rows and by one; the fourth row is there twice
    assert pack.input_ids.numel() == sum(map(len, given)) - 2 * 12 - 9 - len(given[1])
    assert pack.rows is not None
    assert sorted(pack.rows.tolist()) == sorted(i for place in places[:-1] for i in place.tolist())
    assert sum(own for own, _ in pack.lengths) == pack.input_ids.numel()
    assert sum(whole for _, whole in pack.lengths) == len(pack.rows)


def test_rows_that_share_nothing_are_laid_end_to_end():
    pack, _ = Pack.of([(9, 8, 7), (1, 2), (1, 3, 4, 5)], CPU)
    assert pack.input_ids.tolist() == [[1, 2, 9, 8, 7, 1, 3, 4, 5]]
    assert (pack.lengths, pack.rows) == (((2, 2), (3, 3), (4, 4)), None)


@pytest.mark.parametrize("budget", [1, 20, 40, 1000])
def test_packs_keep_the_budget_and_every_row(budget, monkeypatch):
    monkeypatch.setattr(stems, "MOST_READ", 2)
    given = [row.read for row in rows()]

    found = [each.numbers for each in packs(given, budget)]

    assert sorted(number for numbers in found for number in numbers) == list(range(len(given)))
    for numbers in found:
        pack, _ = Pack.of([given[number] for number in numbers], CPU)
        assert len(numbers) == 1 or (
            pack.input_ids.numel() <= budget and sum(whole for _, whole in pack.lengths) <= 2 * budget
        )
    if budget == 1:
        assert len(found) == len(given)


@pytest.mark.parametrize("kind", ["Qwen2", "Gemma3Text", "Mixtral"])
def test_a_varlen_kernel_gets_the_ends_of_rows_and_the_window(kind, monkeypatch):
    model = make(kind)
    expected, calls = alone(model), []
    kernel = lambda *given: calls.append(given[-1]) or bottom_right(*given)  # noqa: E731
    monkeypatch.setattr(packing, "varlen_kernel", lambda: kernel)
    monkeypatch.setattr(packing, "MOST_MASKED", 0)
    assert packing.computes_the_same(model, "varlen")
    calls.clear()

    loss = torch.zeros(())
    for micro in micro_batches(rows(), 1000, CPU, packing="varlen"):
        loss = loss + (micro.weights * micro.model_log_probs(model)).sum()
    assert_equal(with_gradients(model, loss), expected)
    windows = {"Qwen2": [-1, -1], "Gemma3Text": [7, -1], "Mixtral": [6, 6]}
    assert [before for before, _ in calls] == windows[kind]


def test_a_kernel_that_computes_something_else_is_not_taken(monkeypatch):
    """Some kernels let the first query of a row see its first token only, whatever the row shares."""
    model = make("Qwen2").bfloat16()
    monkeypatch.setattr(packing, "_candidates", lambda model: iter(["varlen", "rows"]))
    monkeypatch.setattr(packing, "varlen_kernel", lambda: lambda q, k, *rest: torch.zeros_like(q))
    assert packing_of(model) == "rows"


def of_2_10(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False):
    raise AssertionError("it has no window")


def of_2_11(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
    return bottom_right(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale, window_size)


def of_2_12(*states_and_ends, scale=None, window_size=(-1, -1), enable_gqa=False):
    assert enable_gqa
    return of_2_11(*states_and_ends, scale=scale, window_size=window_size)


def test_the_kernel_of_each_torch_is_called_as_it_wants(monkeypatch):
    assert packing.kernel_of_torch(of_2_10) is None
    model = make("Qwen2")
    for varlen_attn in (of_2_11, of_2_12):
        monkeypatch.setattr(packing, "varlen_kernel", lambda: packing.kernel_of_torch(varlen_attn))  # noqa: B023
        assert packing.computes_the_same(model, "varlen")


def test_the_engine_finds_the_model_as_it_was():
    model = make("Gemma3Text")
    with attending_by_rows(model):
        assert model.config._attn_implementation == "agentrl_packed"
    assert model.config._attn_implementation == "sdpa"
    packing_of(model)
    assert model.config._attn_implementation == "sdpa"


def test_attention_sees_no_mask_over_the_pack(monkeypatch):
    """A row's own tokens see the whole row, and rows of one length go together. A mask is of one row at most."""
    seen = []

    def attention(module, query, key, value, mask, **kwargs):
        seen.append((len(query), query.shape[2], key.shape[2], mask is not None))
        return original(module, query, key, value, mask, **kwargs)

    model, original = make("Qwen2"), packing.sdpa_attention_forward
    assert packing_of(model)
    monkeypatch.setattr(packing, "sdpa_attention_forward", attention)
    [micro] = micro_batches(rows(), 1000, CPU, packing="rows")
    micro.model_log_probs(model)
    shared = [(1, own, whole, own != whole) for own, whole in micro.pack.lengths if own]
    assert seen == 2 * shared, "in each of two layers"
    assert sum(masked for *_, masked in shared) == 2

    seen.clear()
    unlike = [Row(range(first, first + n), [n - 1], [1.0]) for first, n in ((50, 8), (3, 9), (20, 8))]
    [micro] = micro_batches(unlike, 1000, CPU, packing="rows")
    micro.model_log_probs(model)
    assert seen == 2 * [(2, 7, 7, False), (1, 8, 8, False)]


@pytest.mark.parametrize("values", [{}, {"algorithm": "gspo"}, {"tis_clip": 2.0}, {"kl_coef": 0.1}])
def test_a_step_is_that_of_padded_rows(values, make_config):
    learned = {}
    for is_packed in (True, False):
        model = make("Qwen2")
        learner = Learner(model, make_config(learning_rate=1e-3, minibatches=1, **values))
        assert learner.packing
        learner.packing = "rows" if is_packed else None
        learner.reference = copy.deepcopy(model) if "kl_coef" in values else None
        given = [Row(r.tokens, r.positions, [w / 9 for w in r.weights], r.log_probs, 0.5) for r in rows()]
        update = learner.learn(given, step=1, normaliser=10)
        learned[is_packed] = update, torch.cat([p.detach().flatten() for p in model.parameters()])

    (found, weights), (expected, others) = learned[True], learned[False]
    metrics, others_metrics = found.metrics(), expected.metrics()
    assert metrics.pop("computed_tokens") < others_metrics.pop("computed_tokens")
    assert metrics == pytest.approx(others_metrics, rel=1e-3, abs=1e-5)
    assert torch.allclose(weights, others, atol=1e-4)


def test_a_step_is_the_same_to_the_bit_in_each_run(make_config):
    def learn():
        model = make("Qwen2")
        Learner(model, make_config()).learn(rows(), step=1, normaliser=10)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(learn(), learn())


@pytest.mark.parametrize("kind", ["Qwen2", "Gemma3Text"])
def test_padded_rows_may_be_read_in_between(kind):
    model, ids = make(kind), torch.tensor([rows()[0].tokens])
    expected = model(input_ids=ids).logits
    with attending_by_rows(model):
        assert torch.equal(model(input_ids=ids).logits, expected)

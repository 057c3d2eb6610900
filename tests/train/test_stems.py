"""Beginnings that several packs share: computed once, with the loss and the gradients of each row alone."""

from __future__ import annotations

import copy
import random

import pytest
import torch

from agentrl.train import batch, log_probs, packing, stems
from agentrl.train.batch import Row, micro_batches
from agentrl.train.checkpointing import checkpointing, layers_to_checkpoint
from agentrl.train.learner import Learner
from agentrl.train.lora import AdapterReference, attach
from agentrl.train.packing import attending_by_rows, packing_of
from agentrl.train.stems import packs, reads_stems, unique_tokens
from tests.train.packed import CPU, PACKED, SIZES, assert_equal, bottom_right, make, with_gradients


@pytest.fixture(autouse=True)
def short_stems(monkeypatch):
    monkeypatch.setattr(stems, "LEAST_STEM", 4)


def rows():
    """Two prompts of a group and a session, with what follows; and a row that begins like no other."""
    chance = random.Random(0)

    def some(n):
        return [chance.randrange(3, 96) for _ in range(n)]

    prompt, task, other = some(20), some(9), some(16)
    sequences = [[*prompt, *task, *some(8)] for _ in range(3)]
    sequences += [[*prompt, *some(6)] for _ in range(2)] + [[*other, *some(7)] for _ in range(4)] + [some(11)]
    chance.shuffle(sequences)
    found = []
    for tokens in sequences:
        first = 29 if tokens[:29] == [*prompt, *task] else 20 if tokens[:20] == prompt else 16
        positions = [i for i in range(min(first, len(tokens) - 3), len(tokens)) if i % 5]
        found.append(Row(tokens, positions, [chance.uniform(-1, 1) for _ in positions], [-4.0] * len(positions)))
    return found


def alone(model):
    loss = torch.zeros(())
    for row in rows():
        found = model(input_ids=torch.tensor([row.tokens]), use_cache=False).logits[0].log_softmax(-1)
        for position, weight in zip(row.positions, row.weights, strict=True):
            loss = loss + weight * found[position - 1, row.tokens[position]]
    return with_gradients(model, loss)


def after_stems(model, budget):
    """Loss and gradients of packs, and the tokens that each computed."""
    total, computed = 0.0, list[int]()
    with attending_by_rows(model):
        for micro in micro_batches(rows(), budget, CPU, packing="rows", with_stems=True):
            loss = (micro.weights * micro.model_log_probs(model)).sum()
            micro.backward(loss)
            total += loss.item()
            computed.append(micro.computed)
    return with_gradients(model, torch.tensor(total, requires_grad=True)), computed


@pytest.mark.parametrize("budget", [1000, 60, 37])
@pytest.mark.parametrize("kind", PACKED)
def test_each_row_has_the_loss_and_gradients_that_it_has_alone(kind, budget):
    model = make(kind)
    assert packing_of(model)
    assert reads_stems(model, "rows")
    found, computed = after_stems(model, budget)
    assert_equal(found, alone(model))
    again = sum(computed) - unique_tokens([row.read for row in rows()])
    assert 0 <= again < len(computed), "a prompt's last token in each pass, since it predicts"


def test_without_stems_a_small_budget_reads_beginnings_again():
    read = [row.read for row in rows()]
    passes = list(micro_batches(rows(), 37, CPU, packing="rows"))
    assert sum(micro.computed for micro in passes) > unique_tokens(read) + 40


def test_checkpoints_and_pieces_change_nothing(monkeypatch):
    model = make("Gemma3Text")
    expected = alone(model)
    for module in (batch, log_probs):
        monkeypatch.setattr(module, "PIECE_BYTES", 3 * 4 * SIZES["vocab_size"])
    with checkpointing(layers_to_checkpoint(model, True)):
        found, _ = after_stems(model, 37)
    assert_equal(found, expected)


@pytest.mark.parametrize("values", [{}, {"algorithm": "gspo"}, {"tis_clip": 2.0}, {"kl_coef": 0.1}])
def test_a_step_is_that_of_padded_rows(values, make_config):
    learned = {}
    for budget in (37, 5000):
        model = make("Qwen2")
        learner = Learner(model, make_config(learning_rate=1e-3, minibatches=1, micro_batch_tokens=budget, **values))
        learner.packing = "rows" if budget == 37 else None
        learner.reference = copy.deepcopy(model) if "kl_coef" in values else None
        given = [Row(r.tokens, r.positions, [w / 9 for w in r.weights], r.log_probs, 0.5) for r in rows()]
        update = learner.learn(given, step=1, normaliser=10)
        learned[budget] = update, torch.cat([p.detach().flatten() for p in model.parameters()])
    (found, weights), (expected, others) = learned.values()
    assert found.unique == expected.unique <= found.computed < found.unique + 9
    assert found.computed < found.read == expected.read < expected.computed
    metrics, others_metrics = found.metrics(), expected.metrics()
    del metrics["computed_tokens"], others_metrics["computed_tokens"]
    assert metrics == pytest.approx(others_metrics, rel=1e-3, abs=1e-5)
    assert torch.allclose(weights, others, atol=1e-4)


@pytest.mark.parametrize("kind", ["Qwen2", "Gemma3Text"])
def test_a_varlen_kernel_reads_after_stems(kind, monkeypatch):
    model = make(kind)
    expected, calls = alone(model), []
    kernel = lambda *given: calls.append(given) or bottom_right(*given)  # noqa: E731
    monkeypatch.setattr(packing, "varlen_kernel", lambda: kernel)
    assert reads_stems(model, "varlen")
    calls.clear()
    total = 0.0
    with attending_by_rows(model):
        for micro in micro_batches(rows(), 37, CPU, packing="varlen", with_stems=True):
            loss = (micro.weights * micro.model_log_probs(model)).sum()
            micro.backward(loss)
            total += loss.item()
    assert_equal(with_gradients(model, torch.tensor(total, requires_grad=True)), expected)
    assert calls


def test_nothing_is_kept_after_the_last_pass():
    model = make("Qwen2")
    passes = list(micro_batches(rows(), 37, CPU, packing="rows", with_stems=True))
    with attending_by_rows(model):
        for micro in passes:
            micro.backward(micro.model_log_probs(model).sum())
            with torch.no_grad():
                micro.model_log_probs(model)
    used = {stem for micro in passes for stem in (micro.read.stem.chain if micro.read.stem else ())}
    assert len(used) >= 3
    assert not any(stem._states for stem in used)
    assert sorted(map(id, used)) == sorted(id(stem) for micro in passes for stem in micro.read.closes)


def test_where_layers_share_states_beginnings_are_read_again(caplog):
    model = make("Qwen2")
    first, second = model.model.layers
    second.self_attn.forward = first.self_attn.forward  # one module for both: a stem keeps one of their states
    assert packing_of(model)
    assert not reads_stems(model, "rows")
    assert "a beginning that several packs share is read again in each" in caplog.text


@pytest.mark.parametrize("seed", range(20))
def test_passes_hold_each_row_once_within_the_budget(seed, monkeypatch):
    monkeypatch.setattr(stems, "MOST_READ", 3)
    chance = random.Random(seed)
    given, budget = [()], chance.choice([20, 40, 80])
    while len(given) < 30:
        given.append((*chance.choice(given), *(chance.randrange(3) for _ in range(chance.randrange(1, 12)))))
    given = given[1:]
    firsts = [chance.randrange(len(row)) for row in given]
    passes = packs(given, budget, firsts=firsts, with_stems=True)
    assert sorted(number for each in passes for number in each.numbers) == list(range(len(given)))
    closed = []
    for each in passes:
        past = () if each.stem is None else each.stem.row
        assert all(given[n][: len(past)] == past and len(past) <= firsts[n] for n in each.numbers)
        size = unique_tokens([given[n] for n in each.numbers])
        whole = sum(len(given[n]) for n in each.numbers)
        assert len(each.numbers) == 1 or (size <= budget and whole <= 3 * budget)
        assert not set(each.stem.chain if each.stem else ()) & set(closed), "closed too early"
        closed += each.closes


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_an_adapters_gradients_reach_through_stems(kl_coef, make_config):
    """The keys of the first layer have no gradient if they have no adapter, and the reference has stems of its own."""
    pytest.importorskip("peft", reason="LoRA needs the extra `lora`")
    learned = []
    for budget in (37, 5000):
        config = make_config(
            learning_rate=1e-2,
            minibatches=1,
            micro_batch_tokens=budget,
            kl_coef=kl_coef,
            lora={"rank": 2, "targets": ["v_proj", "down_proj"]},
        )
        model = attach(make("Qwen2"), config.lora, base="somewhere", seed=0)
        learner = Learner(model, config)
        learner.reference = AdapterReference(model) if kl_coef else None
        given = [Row(r.tokens, r.positions, r.weights, r.log_probs) for r in rows()]
        updates = [learner.learn(given, step=step, normaliser=10) for step in (1, 2)]
        learned.append((updates, torch.cat([p.detach().flatten() for p in learner.parameters])))
    (found, weights), (expected, others) = learned
    assert expected[1].computed == expected[1].unique < found[1].computed < found[1].unique + 9, "stems were used"
    assert found[1].kl == pytest.approx(expected[1].kl, rel=1e-3)
    assert (found[1].kl > 0) is (kl_coef > 0)
    assert torch.allclose(weights, others, atol=1e-4)

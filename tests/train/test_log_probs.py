"""Long sequences: the same loss and gradients with a part of the memory, for several architectures."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers

from agentrl.errors import ConfigError
from agentrl.train import batch, log_probs
from agentrl.train.batch import MicroBatch, Row
from agentrl.train.learner import Learner
from agentrl.train.modes import CHECKPOINTING_FROM, prepare, wants_checkpointing

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
KINDS = {
    "Qwen2": {},
    "Qwen2 tied": {"tie_word_embeddings": True},
    "Qwen3": {},
    "Llama": {"attention_dropout": 0.1},
    "Gemma2": {"final_logit_softcapping": 3.0, "sliding_window": 8},
    "Granite": {"logits_scaling": 4.0, "embedding_multiplier": 2.0, "tie_word_embeddings": False},
    "Cohere": {"logit_scale": 0.25},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


def make(kind, **values):
    name = kind.split()[0]
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **KINDS.get(kind, {}), **values})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def rows(n=5):
    generator = torch.Generator().manual_seed(0)
    found = []
    for length in range(6, 6 + 3 * n, 3):
        tokens = torch.randint(0, 96, (length,), generator=generator).tolist()
        positions = sorted({*range(3, length, 2), length - 1})
        weights = torch.randn(len(positions), generator=generator).tolist()
        found.append(Row(tokens, positions, weights, [-4.0] * len(positions)))
    return found


def gradients(model, temperature=0.7):
    micro = MicroBatch.of(rows(), torch.device("cpu"))
    loss = (micro.weights * micro.model_log_probs(model, temperature)).sum()
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return loss.item(), found


@pytest.fixture
def in_pieces(monkeypatch):
    """Pieces of three tokens."""

    def cut():
        for module in (batch, log_probs):
            monkeypatch.setattr(module, "PIECE_BYTES", 3 * 4 * SIZES["vocab_size"])

    return cut


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_and_checkpoints_change_neither_loss_nor_gradients(kind, in_pieces, caplog, monkeypatch):
    model = make(kind)
    whole, expected = gradients(model)
    assert len(expected) > 10

    in_pieces()
    sizes = []
    monkeypatch.setattr(
        log_probs, "token_log_probs", lambda x, *rest: sizes.append(len(x)) or batch.token_log_probs(x, *rest)
    )
    assert prepare(model, True)
    model.train()
    loss, found = gradients(model)

    assert max(sizes) == 3, "the pieces were used"
    assert loss == pytest.approx(whole, rel=1e-5)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, rtol=1e-4, atol=1e-5 * gradient.abs().max()), name
    assert not caplog.records


def test_small_logits_are_made_at_once_and_equal_to_the_bit(monkeypatch):
    model = make("Qwen2")
    monkeypatch.setattr(batch, "take_apart", lambda model: pytest.fail("taken apart"))
    micro = MicroBatch.of(rows(), torch.device("cpu"))
    logits = model(input_ids=micro.input_ids, use_cache=False, logits_to_keep=micro.kept).logits
    expected = batch.token_log_probs(logits[micro.row, micro.column], micro.targets)

    model.train()
    assert torch.equal(micro.model_log_probs(model), expected)


def test_a_model_whose_parts_give_other_logits_is_left_whole(in_pieces, caplog):
    class Odd(transformers.Qwen2ForCausalLM):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            out.logits = out.logits + 0.01 * out.logits.square()
            return out

    model = Odd(make("Qwen2").config).eval()
    whole = gradients(model)
    in_pieces()
    again = [gradients(model) for _ in range(2)]

    assert [loss for loss, _ in again] == [whole[0]] * 2
    assert [record.getMessage() for record in caplog.records] == [
        "the logits of Odd are made whole: their parts give others"
    ]


def test_every_kind_of_dropout_is_off_in_train_mode():
    model = make("Llama")
    assert model.model.layers[0].self_attn.attention_dropout == 0.1
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=96))
    for one in (model, gpt2):
        assert prepare(one, None)
        ids = torch.arange(20)[None]
        expected = one(input_ids=ids).logits
        one.train()
        assert torch.equal(one(input_ids=ids).logits, expected)


class Noisy(transformers.Qwen2ForCausalLM):
    """Has noise in train mode that no setting turns off."""

    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        if self.training:
            out.logits = out.logits + torch.randn_like(out.logits)
        return out


def test_a_model_with_noise_in_train_mode_is_trained_in_eval_mode(make_config, caplog):
    noisy = Noisy(make("Qwen2").config)
    plain = make("Qwen2")
    plain.load_state_dict(noisy.state_dict())
    state = torch.get_rng_state()
    learners = [Learner(model, make_config(lr_warmup_steps=0)) for model in (noisy, plain)]
    assert torch.equal(torch.get_rng_state(), state), "no random number is used up"
    norms = [learner.learn(rows(), step=1, normaliser=10).grad_norm for learner in learners]
    assert norms[0] == norms[1]
    assert "Noisy computes something else in train mode, even without dropout: it is trained without" in caplog.text
    with pytest.raises(ConfigError, match="gradient_checkpointing: Noisy computes something else in train mode"):
        Learner(noisy, make_config(gradient_checkpointing=True))


def test_a_model_without_checkpointing_is_told_apart(make_config, monkeypatch, caplog):
    model = make("Qwen2")
    monkeypatch.setattr(type(model), "supports_gradient_checkpointing", False)
    Learner(model, make_config())
    assert not caplog.records
    with pytest.raises(ConfigError, match="Qwen2ForCausalLM has no gradient checkpointing; leave it out"):
        Learner(model, make_config(gradient_checkpointing=True))


def test_it_is_in_train_mode_only_while_it_learns(make_config):
    learner = Learner(make("Qwen2"), make_config(lr_warmup_steps=0))
    modes = []
    forward = learner.model.model.forward
    learner.model.model.forward = lambda *args, **kwargs: (
        modes.append(learner.model.training) or forward(*args, **kwargs)
    )
    assert not learner.model.training
    learner.learn(rows(), step=1, normaliser=10)
    learner.imitate(rows(), [learner.optimizer], 1000)
    assert (set(modes), learner.model.training) == ({True}, False)

    learner.model.model.forward = lambda *args, **kwargs: 1 / 0
    with pytest.raises(ZeroDivisionError):
        learner.learn(rows(), step=1, normaliser=10)
    assert not learner.model.training, "the engine samples from this module"


def test_large_models_keep_few_activations_unless_told_otherwise():
    found = {
        (setting, parameters): wants_checkpointing(setting, parameters)
        for setting in (None, True, False)
        for parameters in (CHECKPOINTING_FROM - 1, CHECKPOINTING_FROM)
    }
    assert list(found.values()) == [False, True, True, True, False, False]


def kept_bytes(learner, given):
    """What the forward pass keeps for the backward pass, the model's own weights left out."""
    own = {p.untyped_storage().data_ptr() for p in learner.model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # alive, so that no address is used twice
        return tensor

    micro = MicroBatch.of(given, torch.device("cpu"))
    with learner._training(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        micro.model_log_probs(learner.model)
    return sum(size for size, _ in kept.values())


def test_checkpoints_and_pieces_keep_less_than_a_quarter(make_config, in_pieces):
    model = make("Qwen2", num_hidden_layers=4, vocab_size=960)
    tokens = [i * 7 % 960 for i in range(60)]
    given = [Row(tokens, range(30, 60), [1.0] * 30, [-1.0] * 30)]
    before = kept_bytes(Learner(copy.deepcopy(model), make_config(gradient_checkpointing=False)), given)
    in_pieces()

    after = kept_bytes(Learner(model, make_config(gradient_checkpointing=True)), given)

    assert 0 < after < before / 4

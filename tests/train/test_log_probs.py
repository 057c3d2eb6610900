"""Long sequences: the same loss and gradients with a part of the memory, for several architectures."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
import transformers

from agentrl.errors import ConfigError
from agentrl.train import batch, log_probs
from agentrl.train.batch import MicroBatch, Row
from agentrl.train.checkpointing import CHECKPOINTING_FROM, checkpointing, layers_to_checkpoint, wants_checkpointing
from agentrl.train.learner import Learner

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
    micro = MicroBatch.padded(rows(), torch.device("cpu"))
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
    with checkpointing(layers_to_checkpoint(model, True)):
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
    micro = MicroBatch.padded(rows(), torch.device("cpu"))
    logits = model(input_ids=micro.inputs["input_ids"], use_cache=False, logits_to_keep=micro.predicting).logits
    expected = batch.token_log_probs(logits[micro.row, micro.column], micro.predicted)

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
        "the logits of Odd are computed as a whole: computed in parts, they differ"
    ]


class Noisy(transformers.Qwen2ForCausalLM):
    """Has noise in train mode, as dropout, routers and skipped layers have it."""

    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        if self.training:
            out.logits = out.logits + torch.randn_like(out.logits)
        return out


@pytest.mark.parametrize("setting", [True, False])
def test_what_is_trained_is_what_was_sampled_from(make_config, setting):
    noisy, plain = Noisy(make("Qwen2").config).train(), make("Qwen2")
    plain.load_state_dict(noisy.state_dict())
    state = torch.get_rng_state()
    learners = [Learner(model, make_config(gradient_checkpointing=setting)) for model in (noisy, plain)]
    norms = [learner.learn(rows(), step=1, normaliser=10).grad_norm for learner in learners]
    assert norms[0] == norms[1]
    assert torch.equal(torch.get_rng_state(), state), "no random number is used up"


def test_a_model_without_layers_to_checkpoint_is_told_apart(make_config, monkeypatch, caplog):
    model = make("Qwen2")
    monkeypatch.setattr("agentrl.train.checkpointing.GradientCheckpointingLayer", torch.nn.Conv1d)
    monkeypatch.setattr("agentrl.train.checkpointing.CHECKPOINTING_FROM", 1)
    Learner(model, make_config())
    why = "Qwen2ForCausalLM has no layers that transformers can checkpoint"
    assert caplog.messages == [f"{why}: it is trained without gradient checkpointing"]
    with pytest.raises(ConfigError, match=f"{why}; leave it out"):
        Learner(model, make_config(gradient_checkpointing=True))


def test_layers_are_wrapped_only_while_it_learns(make_config):
    learner = Learner(make("Qwen2"), make_config(gradient_checkpointing=True, lr_warmup_steps=0))
    layers = learner.model.model.layers
    own = layers[1].forward = partial(type(layers[1]).forward, layers[1])  # as other libraries wrap layers
    learner.learn(rows(), step=1, normaliser=10)
    learner.imitate(rows(), [learner.optimizer], 1000)
    assert ("forward" in vars(layers[0]), layers[1].forward) == (False, own)

    learner.model.model.forward = lambda *args, **kwargs: 1 / 0
    with pytest.raises(ZeroDivisionError):
        learner.learn(rows(), step=1, normaliser=10)
    assert "forward" not in vars(layers[0]), "the engine samples from this module"


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

    micro = MicroBatch.padded(given, torch.device("cpu"))
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


@torch.no_grad()
def test_another_kernel_is_rounding_and_another_position_is_not():
    """In bfloat16 a bound of .03 refused other kernels: these two differ by .037 here."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.Qwen3Config(
            vocab_size=4096, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=16,
            num_key_value_heads=8, head_dim=64, tie_word_embeddings=True,
        ),
        dtype=torch.bfloat16,
    ).eval()  # fmt: skip
    ids, positions = torch.tensor([[(17 + 29 * k * k) % 4096 for k in range(24)]]), torch.arange(24)[None]
    usual = model(input_ids=ids).logits.float()
    shifted = model(input_ids=ids, position_ids=positions + (positions > 11)).logits.float()
    model.config._attn_implementation = "eager"
    other = model(input_ids=ids).logits.float()
    assert log_probs.alike(usual, other, torch.bfloat16)
    assert not log_probs.alike(usual, shifted, torch.bfloat16)

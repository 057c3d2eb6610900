"""What makes learning faster on a GPU, as far as a CPU can show it: the wiring, and that it can be undone."""

from __future__ import annotations

import sys
from types import MethodType, SimpleNamespace

import pytest
import torch

from agentrl.engine.local import LocalEngine
from agentrl.engine.local.sampling import Sampling
from agentrl.models import tiny_model, tiny_tokenizer
from agentrl.models.attention import without_cudnn
from agentrl.train.batch import Row
from agentrl.train.fused import tf32, try_kernels, use_fused_kernels
from agentrl.train.learner import Learner

IDS = torch.tensor([[5, 6, 7, 8]])
ROWS = [Row(range(3, 3 + n), [n // 2, n - 1], [0.5, -0.5], [-6.0, -6.0]) for n in (9, 12, 30)]


def patch(factor):
    """Change a model as liger-kernel does: functions of its module, and methods of its parts."""

    def apply(*, model):
        code = sys.modules[type(model).__module__]
        original = code.apply_rotary_pos_emb
        code.apply_rotary_pos_emb = lambda *args, **kwargs: original(*args, **kwargs)
        norm = model.model.norm
        norm.forward = MethodType(lambda self, x: factor * type(self).forward(self, x), norm)

    return apply


@pytest.fixture
def code():
    module = sys.modules[type(tiny_model()).__module__]
    before = dict(vars(module))
    yield module
    vars(module).update(before)


def test_kernels_that_compute_the_same_stay(code):
    model, original = tiny_model(), code.apply_rotary_pos_emb
    expected = model(input_ids=IDS).logits
    assert try_kernels(model, patch(1.0))
    assert "forward" in vars(model.model.norm)
    assert code.apply_rotary_pos_emb is not original
    assert torch.allclose(model(input_ids=IDS).logits, expected)


def broken(*, model):
    patch(1.0)(model=model)
    raise RuntimeError("no kernel for this card")


@pytest.mark.parametrize("apply", [patch(1.5), broken])
def test_others_are_undone_and_a_line_says_so(apply, code, caplog):
    model, original = tiny_model(), code.apply_rotary_pos_emb
    expected = model(input_ids=IDS).logits
    assert not try_kernels(model, apply)
    assert "forward" not in vars(model.model.norm)
    assert code.apply_rotary_pos_emb is original
    assert torch.equal(model(input_ids=IDS).logits, expected)
    assert "liger-kernel is not used: Qwen2ForCausalLM" in caplog.text


def test_an_architecture_without_kernels_is_left_in_silence(caplog):
    assert not try_kernels(tiny_model(), lambda *, model: None)
    assert not caplog.records


def test_they_are_for_gpus_and_leave_the_head_alone(monkeypatch):
    given = {}
    patches = SimpleNamespace(_apply_liger_kernel_to_instance=lambda **values: given.update(values))
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers.monkey_patch", patches)
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", SimpleNamespace(monkey_patch=patches))
    monkeypatch.setitem(sys.modules, "liger_kernel", SimpleNamespace(transformers=None))
    assert not use_fused_kernels(tiny_model(), torch.device("cpu"))
    assert given == {}
    use_fused_kernels(model := tiny_model(), torch.device("cuda"))
    assert given == {"model": model, "cross_entropy": False, "fused_linear_cross_entropy": False}


def test_without_liger_nothing_happens(monkeypatch):
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers.monkey_patch", None)
    assert not use_fused_kernels(tiny_model(), torch.device("cuda"))


def test_tf32_ends_with_the_pass():
    before = torch.backends.cuda.matmul.allow_tf32
    with tf32(True):
        assert torch.backends.cuda.matmul.allow_tf32
    with tf32(False):
        assert torch.backends.cuda.matmul.allow_tf32 == before
    assert torch.backends.cuda.matmul.allow_tf32 == before


async def test_attention_makes_no_plan_for_each_length(make_config):
    """cuDNN does: in the learner and in the engine its kernels are off."""
    model, seen = tiny_model(), []
    model.model.layers[0].self_attn.register_forward_hook(
        lambda *_: seen.append(torch.backends.cuda.cudnn_sdp_enabled())
    )
    learner = Learner(model, make_config())
    async with LocalEngine(model, tiny_tokenizer()) as engine:
        for act in (
            lambda: learner.learn(ROWS, step=1, normaliser=3),
            lambda: engine._submit([5, 6], Sampling(seed=0, max_new_tokens=3)).result(),
        ):
            seen.clear()
            act()
            assert seen
            assert not any(seen)


def test_engine_and_learner_may_leave_in_any_order():
    engine, learner = without_cudnn(), without_cudnn()
    engine.__enter__()
    learner.__enter__()
    engine.__exit__(None, None, None)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    learner.__exit__(None, None, None)
    assert torch.backends.cuda.cudnn_sdp_enabled()

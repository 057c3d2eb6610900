"""LoRA: adapters learn and nothing else does; runs save, resume, go on and merge as those of whole models do."""

from __future__ import annotations

import copy
import io
import json
import sys

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.engine.local import LocalEngine
from agentrl.errors import ConfigError
from agentrl.models import load_model, load_tokenizer, save_model, tiny_model, tiny_tokenizer
from agentrl.train import Trainer, model_folder, train
from agentrl.train.config import LoRAConfig
from agentrl.train.learner import Learner
from agentrl.train.lora import AdapterReference, attach, changes_nothing
from tests.train.learners import rows
from tests.train.played import lines, played

pytest.importorskip("peft", reason="LoRA needs the extra `lora`")

SMALL = {"steps": 1, "prompts_per_step": 2, "group_size": 2, "minibatches": 1}
IDS = torch.arange(40)[None] * 13 % 600


def quiet():
    return Console(file=io.StringIO(), width=1000)


def adapted(dtype="float32", seed=0, **values):
    base = tiny_model(seed=0).to(getattr(torch, dtype))
    return attach(base, LoRAConfig(**{"rank": 4, **values}), base="somewhere", seed=seed)


def make(make_config, model=None, **values):
    """A learner with an adapter that has learned something."""
    given = {"lr_warmup_steps": 0, "minibatches": 1, "learning_rate": 1e-2, "lora": {"rank": 4}, **values}
    learner = Learner(model or adapted(), make_config(**given))
    if model is None:
        learner.learn(rows(learner), step=1, normaliser=100)
    return learner


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


def gradients_of(learner, given):
    """The gradient of the adapter at one batch."""
    found = []
    learner._apply = lambda *_: found.extend(p.grad.clone() for p in learner.parameters) or 0.0
    update = learner.learn(given, step=1, normaliser=10)
    for parameter in learner.parameters:
        parameter.grad = None
    return update, torch.cat([gradient.flatten() for gradient in found])


def test_a_new_adapter_changes_nothing_and_its_seed_decides_it():
    state, base = torch.get_rng_state(), logits(tiny_model(seed=0))
    model = adapted()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(logits(model), base)
    assert changes_nothing(model)
    assert torch.equal(weights_of(model), weights_of(adapted()))
    assert not torch.equal(weights_of(model), weights_of(adapted(seed=1)))
    assert not changes_nothing(tiny_model(seed=0)), "all of its weights may change"


def weights_of(model):
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_the_adapter_learns_from_float32_copies(make_config, dtype):
    learner = make(make_config, model=adapted(dtype), dtype=dtype)
    before = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    old = rows(learner)
    update = learner.learn(old, step=1, normaliser=100)

    changed = {name for name, p in learner.model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {name for name in before if ".lora_B." in name}, "A has no gradient while B is zero"
    assert update.grad_norm > 0
    assert {p.dtype for p in learner.parameters} == {learner.model.dtype} == {getattr(torch, dtype)}
    assert {master.dtype for master in learner.masters} == {torch.float32}
    for parameter, master in zip(learner.parameters, learner.masters, strict=True):
        assert (parameter is master) == (dtype == "float32")
        assert torch.equal(parameter, master.to(parameter.dtype))
    assert len(learner.optimizer.param_groups[0]["params"]) == len(learner.parameters) == 2 * 2 * 7
    for now, then in zip(rows(learner), old, strict=True):
        assert (sum(now.log_probs) > sum(then.log_probs)) == (then.weights[0] > 0)


def test_an_adapter_of_a_bfloat16_model_computes_in_bfloat16(make_config):
    learner, seen = make(make_config, model=adapted("bfloat16"), dtype="bfloat16"), set()
    for name, module in learner.model.named_modules():
        if name.endswith(("lora_A.default", "lora_B.default")):
            module.register_forward_hook(lambda _, inputs, output: seen.add((inputs[0].dtype, output.dtype)))
    learner.learn(rows(learner), step=1, normaliser=100)
    assert seen == {(torch.bfloat16, torch.bfloat16)}


def test_a_checkpoint_of_a_float32_adapter_can_be_resumed(make_config):
    """Earlier versions kept the adapter of a bfloat16 model in float32, and no copies of it."""
    learner = make(make_config, model=adapted("bfloat16"), dtype="bfloat16")
    learner.learn(rows(learner), step=1, normaliser=100)
    again = make(make_config, model=copy.deepcopy(learner.model), dtype="bfloat16")
    again.load_state_dict({**learner.state_dict(), "masters": []})

    assert all(torch.equal(m, p.float()) for m, p in zip(again.masters, again.parameters, strict=True))
    again.learn(rows(again), step=2, normaliser=100)


def test_it_learns_the_same_with_checkpoints(make_config):
    model = adapted()
    updates = []
    for checkpointing in (False, True):
        learner = make(make_config, model=copy.deepcopy(model), gradient_checkpointing=checkpointing)
        learner.learn(rows(learner), step=1, normaliser=100)
        updates.append(weights_of(learner.model))
    assert torch.allclose(*updates, atol=1e-7)
    assert not torch.equal(updates[0], weights_of(model))


@pytest.mark.parametrize("warm", [False, True], ids=["base", "second adapter"])
def test_the_reference_shares_the_model(make_config, tmp_path, warm):
    """It gives the KL and the gradients that a copy of the model gives as the reference."""
    learner = make(make_config, kl_coef=0.5)
    if warm:
        kept = copy.deepcopy(learner.model)
        save_model(learner.model, tiny_tokenizer(), tmp_path / "reference")
        reference = AdapterReference.load(learner.model, tmp_path / "reference")
        assert reference.adapter is not None
    else:
        kept = tiny_model(seed=0)
        reference = AdapterReference.load(learner.model, tmp_path / "none")
    learner.reference = reference
    learner.config = learner.config.model_copy(update={"kl_coef": 0.0})
    learner.reference, shared = None, reference
    learner.learn(rows(learner), step=1, normaliser=10)
    learner.config = learner.config.model_copy(update={"kl_coef": 0.5})
    given, before = rows(learner), logits(learner.model)
    assert not torch.equal(logits(kept), before)

    found = []
    for each in (kept, shared):
        learner.reference = each
        found.append(gradients_of(learner, given))

    (a, expected), (b, gradient) = found
    assert a.kl == pytest.approx(b.kl, rel=1e-4)
    assert a.kl > 1e-3
    assert torch.allclose(gradient, expected, atol=1e-6 * expected.abs().max())
    assert torch.equal(logits(learner.model), before), "the adapter in training is active again"
    assert all(p.requires_grad for p in learner.parameters)
    assert all(not p.requires_grad for n, p in learner.model.named_parameters() if ".reference." in n)


async def test_the_engine_samples_through_the_adapter(make_config):
    learner = make(make_config)
    async with LocalEngine(learner.model, tiny_tokenizer()) as engine:
        await engine.update(learner.model, "1")
        found = await engine.generate([5, 6, 7], {"max_new_tokens": 8, "temperature": 1.0, "sampling_seed": 0})
    tokens = [5, 6, 7, *found.tokens]
    with torch.no_grad():
        log_probs = learner.model(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)
    expected = [log_probs[i - 1, tokens[i]].item() for i in range(3, len(tokens))]
    assert found.log_probs == pytest.approx(expected, abs=1e-5)
    assert found.weight_version == "1"


def test_a_folder_of_an_adapter_is_a_model(make_config, tmp_path):
    learner = make(make_config)
    save_model(tiny_model(seed=0), tiny_tokenizer(), tmp_path / "base")
    learner.model.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    save_model(learner.model, tiny_tokenizer(), tmp_path / "adapter")

    names = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json"} <= names
    assert "model.safetensors" not in names
    again = load_model(str(tmp_path / "adapter"))
    assert torch.equal(logits(again), logits(learner.model))
    half = load_model(str(tmp_path / "adapter"), dtype="bfloat16")
    assert (half.dtype, {p.dtype for p in half.parameters()}) == (torch.bfloat16, {torch.bfloat16})
    assert load_tokenizer(str(tmp_path / "adapter")).get_vocab() == tiny_tokenizer().get_vocab()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("weight", "its adapter does not fit the base model at base_model.model.model.layers.0"),
        ("base", r"is a LoRA adapter, and its base model is missing: unknown model '.*gone'"),
        ("config", "adapter_config.json: not readable as JSON"),
        ("no name", "names no base_model_name_or_path"),
    ],
)
def test_a_damaged_adapter_is_refused(tmp_path, damage, says):
    model, folder = adapted(), tmp_path / "adapter"
    save_model(tiny_model(seed=0), tiny_tokenizer(), tmp_path / "base")
    names = {"base": str(tmp_path / "gone"), "no name": None}
    model.peft_config["default"].base_model_name_or_path = names.get(damage, str(tmp_path / "base"))
    save_model(model, tiny_tokenizer(), folder)
    if damage == "weight":
        file = folder / "adapter_model.safetensors"
        save_file(dict(list(load_file(file).items())[1:]), file)
    if damage == "config":
        (folder / "adapter_config.json").write_text("{")
    with pytest.raises(ConfigError, match=says) as error:
        load_model(str(folder))
    assert "\n" not in str(error.value)


def test_settings_and_their_defaults(make_config, demonstrations):
    config = make_config(lora={"rank": 8})
    assert (config.lora.alpha, config.lora.targets, config.learning_rate) == (16, "all-linear", 1e-4)
    assert make_config(lora={}, model="tiny").learning_rate == 3e-3
    assert [make_config(model=model).learning_rate for model in ("tiny", "Qwen/Qwen3-4B")] == [3e-4, 1e-5]
    assert make_config(lora={}, learning_rate=0.5).learning_rate == 0.5
    warm = make_config(model="tiny", lora={}, warm_start={"demonstrations": demonstrations}).warm_start
    assert (warm.optimizer, warm.steps, warm.batch_size) == ("adamw", 300, 16)
    again = type(config).make(**json.loads(config.model_dump_json()))
    assert again == config
    for values, says in (
        ({"lora": {"dora": True}}, "unknown key lora.dora; the keys are rank, alpha, targets"),
        ({"lora": {"rank": "big"}}, "lora.rank must be a valid integer"),
        (
            {"lora": {}, "warm_start": {"demonstrations": demonstrations, "optimizer": "muon"}},
            "warm_start.optimizer: muon is for whole matrices, not for those of lora: take adamw",
        ),
    ):
        with pytest.raises(ConfigError) as error:
            make_config(**values)
        assert str(error.value) == f"training configuration: {says}" or says in str(error.value)
        assert "alpha' is missing" not in str(error.value)


@pytest.mark.parametrize(
    ("targets", "says"),
    [(["nowhere"], "lora.targets: Target modules {'nowhere'} not found"), (["lm_head"], "embeddings and head are not")],
)
def test_layers_that_cannot_be_adapted_are_refused(targets, says):
    with pytest.raises(ConfigError, match=says):
        adapted(targets=targets)


def test_peft_missing_is_told_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"needs peft: pip install 'agentrl-sdk\[lora\]'"):
        adapted()


class Crash(BaseException):
    pass


class Crashing(Trainer):
    def update(self, groups, step):
        if step == 3:
            raise Crash
        return super().update(groups, step)


@pytest.mark.thorough
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "after a warm start"])
def test_a_run_resumes_to_the_bit_and_can_be_read_everywhere(make_config, demonstrations, tmp_path, warm):
    def config(name):
        more = {"warm_start": {"demonstrations": demonstrations, "steps": 2, "batch_size": 4}} if warm else {}
        lora = {"lora": {"rank": 2}, "learning_rate": 1e-2, "kl_coef": 0.05, "model": "tiny" if warm else folder}
        return make_config(out=tmp_path / name, checkpoint_every=2, **lora, **more, **{**SMALL, "steps": 3})

    folder = make_config().model
    whole, broken = config("whole"), config("broken")
    train(whole, console=quiet())
    with pytest.raises(Crash):
        train(broken, trainer=Crashing, console=quiet())
    train(broken, resume=True, console=quiet())

    assert lines(broken.out) == lines(whole.out)
    assert played(broken.out) == played(whole.out)
    kl = [line["kl"] for line in lines(whole.out)]
    assert kl[0] == pytest.approx(0.0, abs=1e-6)
    assert kl[-1] > kl[0]
    assert (whole.out / "reference").exists() == warm, "the base model is the reference of a new adapter"
    found = [load_model(str(model_folder(config.out))) for config in (whole, broken)]
    assert torch.equal(*(weights_of(model) for model in found))
    assert not changes_nothing(found[0])
    if not warm:
        assert found[0].peft_config["default"].base_model_name_or_path == folder
        assert not list(whole.out.rglob("model.safetensors")), "the base is not copied"


@pytest.mark.thorough
def test_a_run_goes_on_from_the_adapter_of_another(make_config, tmp_path):
    lora = {"lora": {"rank": 2}, "learning_rate": 1e-2, **SMALL}
    train(make_config(**lora), console=quiet())
    second = make_config(**lora, model=str(tmp_path / "run"), out=tmp_path / "second", kl_coef=0.1)
    train(second, console=quiet())

    first, later = (load_model(str(model_folder(tmp_path / name))) for name in ("run", "second"))
    assert not torch.equal(weights_of(first), weights_of(later))
    assert (tmp_path / "second" / "reference").exists(), "KL is measured against the adapter at its start"
    for lora, says in ((None, "is a LoRA adapter: train it further with lora.rank=2"), ({"rank": 4}, "give these")):
        with pytest.raises(ConfigError, match=says):
            train(make_config(lora=lora, model=str(tmp_path / "run"), out=tmp_path / "third"), console=quiet())


@pytest.mark.thorough
def test_merge_makes_one_model_of_a_run(make_config, tmp_path):
    train(make_config(lora={"rank": 2}, learning_rate=1e-2, **SMALL), console=quiet())
    run, out = tmp_path / "run", tmp_path / "merged"

    done = CliRunner().invoke(app, ["merge", str(run), str(out)])
    assert done.exit_code == 0, done.output
    expected = load_model(str(model_folder(run)))
    merged = load_model(str(out))
    assert type(merged).__name__ == "Qwen2ForCausalLM"
    assert torch.allclose(logits(merged), logits(expected), atol=1e-5)
    with torch.no_grad(), expected.disable_adapter():
        assert not torch.allclose(logits(merged), expected(input_ids=IDS).logits, atol=1e-3)
    assert load_tokenizer(str(out)).chat_template == load_tokenizer(str(run / "model")).chat_template

    half = CliRunner().invoke(app, ["merge", str(run / "model"), str(tmp_path / "half"), "--dtype", "bfloat16"])
    assert half.exit_code == 0, half.output
    assert {t.dtype for t in load_file(tmp_path / "half" / "model.safetensors").values()} == {torch.bfloat16}
    for arguments, says in (
        ((run, out), "is not an empty folder; choose another folder"),
        ((out, tmp_path / "more"), "holds no LoRA adapter: there is nothing to merge"),
        (("nowhere", tmp_path / "more"), "nowhere"),
    ):
        refused = CliRunner().invoke(app, ["merge", *map(str, arguments)])
        assert (refused.exit_code, refused.output.count("\n")) == (2, 1)
        assert says in refused.output
    assert not (tmp_path / "more").exists()

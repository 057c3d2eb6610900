"""SGLang as the engine of a training run with images: what it is given, and what is refused before the start.

tests/engine/test_trained_sglang.py has the real one.
"""

from __future__ import annotations

import json
import logging

import pytest

torch = pytest.importorskip("torch", reason="the embedded trainer needs the extra `train`")
pytest.importorskip("PIL", reason="images need Pillow")

from PIL import Image as Pillow  # noqa: E402

from agentrl import ConfigError, Image, load_renderer  # noqa: E402
from agentrl.engine.sglang.training.trained import TrainedSGLang  # noqa: E402
from agentrl.engine.sglang.training.weights import save_whole  # noqa: E402
from agentrl.engine.table import EngineParts, TrainingParts, open_engine  # noqa: E402
from agentrl.models import load_model, tiny_tokenizer, tiny_vl_model, tiny_vl_tokenizer  # noqa: E402
from agentrl.models.adapter import import_peft, quiet_peft  # noqa: E402
from agentrl.models.vision import load_vision  # noqa: E402
from agentrl.train.config import LoRAConfig  # noqa: E402
from agentrl.train.lora import attach  # noqa: E402
from tests.doubles.sglang import Fake, answer  # noqa: E402
from tests.engine.launched import executable, logged  # noqa: E402, F401

VISION = load_vision("tiny-vl")
READ_BY_VISION = {"preprocessor_config.json", "config.json", "model.safetensors", "tokenizer.json"}


@pytest.fixture(scope="module")
def model():
    return tiny_vl_model(0)


@pytest.fixture(scope="module")
def adapted():
    pytest.importorskip("peft", reason="adapters need the extra `lora`")
    changed = attach(tiny_vl_model(0), LoRAConfig(rank=4), base="somewhere", seed=0)
    with torch.no_grad():
        for name, parameter in changed.named_parameters():
            if ".lora_B." in name:
                parameter.add_(0.05)
    return changed


@pytest.fixture
def training(tmp_path):
    return TrainingParts(tmp_path / "run", "cpu", "float32", lambda line: None)


def engine_of(model, training, **config):
    return TrainedSGLang(model, tiny_vl_tokenizer(), training, vision=VISION, **config)


def parts(tokenizer, model, training, vision):
    return EngineParts(tokenizer, load_renderer(tokenizer, vision=vision), lambda: model, training=training)


async def test_images_go_to_the_server_with_the_processor_that_reads_them(model, training, caplog):
    image = Image.from_pil(Pillow.new("RGB", (64, 64)))
    fake = Fake(answer([5], weight_version="0"))
    async with fake.serve() as url:
        given = parts(tiny_vl_tokenizer(), model, training, VISION)
        engine = open_engine("sglang", given, {"url": url})
        assert engine.takes_images
        with caplog.at_level(logging.WARNING, "agentrl"):
            await engine.update(model, "0")
        await engine.generate([1, VISION.pad, 2], {}, images=[image])
        await engine.close()
    assert set(fake.commands[0][1]["files"]) >= READ_BY_VISION
    assert fake.bodies[0]["input_ids"].count(VISION.pad) == 1
    assert fake.bodies[0]["image_data"] == [image.uri]
    assert f"{url} must have been started with SGLANG_VLM_CACHE_SIZE_MB=0" in caplog.text


def test_a_model_of_text_takes_no_images(training):
    given = parts(tiny_tokenizer(), load_model("tiny"), training, None)
    assert not open_engine("sglang", given, {"url": "http://127.0.0.1:9"}).takes_images


@pytest.mark.parametrize(("kind", "cache"), [("model", "0"), ("adapted", "70")])
async def test_its_own_server_keeps_no_image_that_old_weights_have_read(
    kind, cache, training, tmp_path, monkeypatch, request
):
    """An adapter changes nothing of how images are read, so the user's size stays."""
    monkeypatch.setenv("SGLANG_VLM_CACHE_SIZE_MB", "70")
    engine = engine_of(request.getfixturevalue(kind), training, python=str(tmp_path / "python"))
    assert await engine.context_length() == 99
    await engine.close()
    [line] = [line for line in logged(training).splitlines() if line.startswith("model ")]
    _, *files, size = line.split()
    assert set(files) >= READ_BY_VISION
    assert size == cache


def test_a_base_without_its_adapter_is_written_with_its_image_side(adapted, model, tmp_path):
    save_whole(adapted, tiny_vl_tokenizer(), tmp_path, VISION)
    assert load_vision(str(tmp_path)).reads_as(VISION)
    written, base = load_model(str(tmp_path)).state_dict(), model.state_dict()
    assert written.keys() == base.keys()
    assert all(torch.equal(written[name], base[name]) for name in base)


def test_an_adapter_of_the_image_side_is_refused(training):
    pytest.importorskip("peft", reason="adapters need the extra `lora`")
    peft = import_peft()
    with quiet_peft():
        adapted = peft.get_peft_model(tiny_vl_model(0), peft.LoraConfig(r=2, target_modules=["qkv", "q_proj"]))
    with pytest.raises(ConfigError, match=r"the adapter changes .*visual\..*qkv, which reads pixels, .*engine: local"):
        engine_of(adapted, training)


async def refused(model, training, **about):
    """The reason why a server at a URL is not taken, or None."""
    fake = Fake()
    fake.about |= about
    async with fake.serve() as url:
        engine = engine_of(model, training, url=url)
        try:
            await engine.wake()
        except ConfigError as exc:
            return str(exc)
        finally:
            await engine.close()


async def test_a_server_that_was_started_for_text_is_refused(model, training):
    said = await refused(model, training, model_type="qwen3_vl", has_image_understanding=False)
    assert "reads text only: start it with --enable-multimodal" in said
    assert await refused(model, training, model_type="qwen3_vl", has_image_understanding=True) is None


async def test_the_sizes_of_the_language_side_are_compared(model, training, tmp_path):
    """Older folders have them beside the image side's, newer ones in text_config."""
    text = {"vocab_size": 1028, "hidden_size": 128}
    for config, wrong in (
        ({**text, "model_type": "qwen3_vl"}, None),
        ({"text_config": {**text, "model_type": "qwen3_vl_text"}, "model_type": "qwen3_vl"}, None),
        ({"text_config": {**text, "hidden_size": 64}}, "its hidden_size is 64, and that of the model in training 128"),
        ({**text, "vocab_size": 7}, "its vocab_size is 7"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        said = await refused(model, training, model_path=str(tmp_path))
        assert (said is None) if wrong is None else (wrong in said)

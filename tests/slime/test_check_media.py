"""Images of a data set: refused only where the checkpoint does not read them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from agentrl.models import load_model, load_tokenizer, save_model
from agentrl.models.vision import vision_of
from agentrl.slime.check.media import media


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Folders of a model that reads images, and of one that does not."""
    pytest.importorskip("torch", reason="models need the extra `train`")

    def make(name):
        folder, model = tmp_path_factory.mktemp("model") / name, load_model(name)
        save_model(model, load_tokenizer(name), folder, vision_of(model, name))
        return str(folder)

    return {name: make(name) for name in ("tiny", "tiny-vl")}


@pytest.mark.parametrize(
    ("name", "keys", "text"),
    [
        ("tiny-vl", {"image": "images"}, None),
        ("tiny-vl", '{"image": "images"}', None),
        ("tiny", {"image": "images"}, "x: remove multimodal_keys: the model is not known to read images"),
        (
            "tiny-vl",
            {"image": "i", "audio": "a"},
            "x: remove audio from multimodal_keys: agentrl shows text and images",
        ),
        ("tiny-vl", "images", "x: multimodal_keys is 'images', not an object"),
    ],
)
def test_images_of_an_evaluation(checkpoint, name, keys, text):
    setup = SimpleNamespace(args=SimpleNamespace(hf_checkpoint=checkpoint[name]))
    findings = [finding.message for finding in media(setup, keys, "x")]
    assert len(findings) == (text is not None)
    assert text is None or findings[0].startswith(text)

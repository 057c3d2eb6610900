"""Engines by name: each is given what it asks for, and what it cannot take is refused by name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl.engine import Generation, SGLangEngine
from agentrl.engine.base import TrainedEngine
from agentrl.engine.table import EngineParts, open_engine
from agentrl.errors import ConfigError
from tests.engine.inside import worker_of

OWN = """
class Mine:
    def __init__(self, renderer, colour, *, max_batch=3, size=1):
        self.given = (renderer, colour, max_batch, size)

def weighing(model, tokenizer):
    return ("made of", model, tokenizer)

not_callable = 3
"""


def parts(chars: Any, **changes: Any) -> EngineParts:
    def no_model() -> Any:
        raise AssertionError("this engine asked for no model")

    return EngineParts(**{"tokenizer": "the tokenizer", "renderer": chars, "model": no_model, **changes})


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "own_engine.py"
    file.write_text(OWN)
    return str(file)


async def test_scripted_plays_turns_from_the_configuration_or_a_function(chars: Any, tmp_path: Path) -> None:
    engine = open_engine("scripted", parts(chars), {"turns": ["ab"], "context_length": 9})
    answer = await engine.generate([1], {})
    assert (chars.decode(answer.tokens), await engine.context_length()) == ("ab$", 9)
    file = tmp_path / "script_of_a_test.py"
    file.write_text("def play(ids):\n    return 'x' * len(ids)\n")
    engine = open_engine("scripted", parts(chars), {"turns": f"{file}:play"})
    assert chars.decode((await engine.generate([1, 2, 3], {})).tokens) == "xxx$"


async def test_sglang_takes_its_url_and_no_model(chars: Any) -> None:
    engine = open_engine("sglang", parts(chars), {"url": "http://127.0.0.1:9/"})
    assert isinstance(engine, SGLangEngine)
    assert engine.url == "http://127.0.0.1:9"
    assert not isinstance(engine, TrainedEngine)
    await engine.close()


async def test_local_is_given_model_tokenizer_and_the_size_of_its_batch(chars: Any) -> None:
    pytest.importorskip("torch", reason="the embedded engine needs the extra `train`")
    from agentrl.models import tiny_model, tiny_tokenizer

    given = parts(chars, tokenizer=tiny_tokenizer(), model=tiny_model, max_batch=5)
    engine: Any = open_engine("local", given, {"max_context": 100})
    assert (await engine.context_length(), worker_of(engine).batch.room) == (100, 5)
    assert isinstance(engine, TrainedEngine)
    await engine.close()
    engine = open_engine("local", given, {"max_batch": 7})
    assert worker_of(engine).batch.room == 7, "what is configured wins"
    await engine.close()


def test_your_own_is_found_by_its_path_and_given_what_it_asks_for(chars: Any, own: str) -> None:
    engine: Any = open_engine(f"{own}:Mine", parts(chars, max_batch=8), {"colour": "red"})
    assert engine.given == (chars, "red", 8, 1)
    engine = open_engine(f"{own}:Mine", parts(chars), {"colour": "red", "size": 2})
    assert engine.given == (chars, "red", 3, 2)
    engine = open_engine(f"{own}:weighing", parts(chars, model=lambda: "the model"), {})
    assert engine == ("made of", "the model", "the tokenizer")


@pytest.mark.parametrize(
    ("name", "config", "says"),
    [
        ("vllm", {}, "unknown engine 'vllm'; use local, sglang, scripted or a path"),
        ("no.such.module:Engine", {}, "no module"),
        (
            "sglang",
            {},
            "engine sglang: engine_config.url is missing; name a server that runs: --set engine_config",
        ),
        ("sglang", {"URL": 1}, "engine sglang: unknown key engine_config.URL; did you mean url?"),
        ("OWN:Mine", {}, "engine_config.colour is missing"),
        ("OWN:not_callable", {}, "3 is neither a class nor a function"),
    ],
)
def test_what_names_no_engine_is_refused(chars: Any, own: str, name: str, config: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        open_engine(name.replace("OWN", own), parts(chars), config)


def test_an_engine_of_your_own_that_takes_weights_is_one_to_train_with() -> None:
    class Mine:
        async def generate(self, input_ids: Sequence[int], sampling_params: Any, **_: str) -> Generation:
            raise NotImplementedError

        async def abort(self, rid: str | None = None) -> None: ...

        async def context_length(self) -> int:
            return 1

        async def close(self) -> None: ...

    assert not isinstance(Mine(), TrainedEngine)
    for name in ("update", "sleep", "wake"):
        setattr(Mine, name, lambda *_: None)
    assert isinstance(Mine(), TrainedEngine)

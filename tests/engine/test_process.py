"""LocalEngine in a separate process: the same tokens to the bit, and no process that outlives its trainer."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec

import pytest
import torch

from agentrl.engine.local import LocalEngine
from agentrl.engine.local.process import ProcessEngine
from agentrl.engine.local.shared_weights import SharedWeights
from agentrl.engine.table import TrainingParts
from agentrl.errors import ConfigError, EngineLostError, RequestError
from agentrl.models import load_model, save_model, tiny_model, tiny_tokenizer
from agentrl.train import lora
from agentrl.train.config import LoRAConfig
from tests.engine.inside import process_of

TOKENIZER = tiny_tokenizer()
FORM = '{"type": "structural_tag", "format": {"type": "regex", "pattern": "[a-z]+!"}}'


def made(folder, model, tokenizer=TOKENIZER, dtype="float32", **more):
    return ProcessEngine(model, tokenizer, TrainingParts(folder, "cpu", dtype, print, own_weights=True), **more)


@asynccontextmanager
async def running(folder, model, **more):
    engine = made(folder, model, **more)
    try:
        await engine.wake()
        yield engine
    finally:
        await engine.close()


@pytest.fixture(scope="module")
def model():
    return tiny_model()


class LogProbs(tuple):
    """Log-probs that are equal within 1e-5: two processes may add up the same floats in different orders."""

    __hash__ = None

    def __eq__(self, other):
        return tuple(self) == pytest.approx(tuple(other), abs=1e-5)

    def __ne__(self, other):
        return not self == other


async def play(engine, episodes=8, **more):
    """Tokens, log-probs and versions of some episodes of three turns, one after another: a batch has one request."""
    replies = []
    for number in range(episodes):
        ids = [(7 * number + i) % 300 for i in range(20 + number)]
        for _ in range(3):
            params = {"max_new_tokens": 6, "sampling_seed": number, **more}
            reply = await engine.generate(ids, params, session_id=str(number))
            replies.append((tuple(reply.tokens), LogProbs(reply.log_probs), *reply.constrained, reply.weight_version))
            ids = [*ids, *reply.tokens, 1, 2]
    return replies


def changed(model, factor):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.mul_(factor)


@pytest.mark.thorough
async def test_it_samples_the_same_as_an_engine_in_this_process(tmp_path):
    model = tiny_model()
    async with running(tmp_path, model) as apart, LocalEngine(model, TOKENIZER) as inside:
        assert await apart.context_length() == await inside.context_length()
        assert await play(apart) == await play(inside)
        assert await play(apart, temperature=0.0, stop=["a"]) == await play(inside, temperature=0.0, stop=["a"])
        if find_spec("xgrammar") is not None:
            assert await play(apart, structural_tag=FORM) == await play(inside, structural_tag=FORM)
        before = await play(apart)
        changed(model, 1.5)
        assert await play(apart) == before != await play(inside), "it has separate weights"
        await apart.update(model, "7")
        await inside.update(model, "7")
        after = await play(apart)
        assert after == await play(inside)
        assert {version for *_, version in after} == {"7"}
    assert [path.name for path in tmp_path.iterdir()] == ["engine.log"]


@pytest.mark.thorough
async def test_an_adapter_is_all_that_travels(tmp_path):
    pytest.importorskip("peft")
    base = str(tmp_path / "base")
    save_model(tiny_model(), TOKENIZER, base)
    model = lora.attach(load_model(base, dtype="bfloat16"), LoRAConfig(rank=4), base=base, seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    async with running(tmp_path / "run", model, dtype="bfloat16") as apart, LocalEngine(model, TOKENIZER) as inside:
        sent = [slot.name for slot in process_of(apart).weights.slots]
        assert sent
        assert all("lora_" in name for name in sent)
        first = await play(apart)
        assert first == await play(inside)
        changed(model, 1.3)
        await apart.update(model, "1")
        await inside.update(model, "1")
        assert await play(apart) == await play(inside) != first


@pytest.mark.thorough
async def test_errors_aborts_and_signals_are_those_of_local_engine(tmp_path, model):
    async with running(tmp_path, model) as engine:
        for ids, params, says in (
            ([], {}, "the prompt is empty"),
            ([1] * 1024, {}, "the prompt has 1024 tokens; the context holds 1024"),
            ([10**6], {}, "outside the model's vocabulary"),
            (["a"], {}, "the prompt must be a list of token ids"),
            ([1], {"top_p": 2}, "sampling parameter top_p must be"),
        ):
            with pytest.raises(RequestError, match=says):
                await engine.generate(ids, params)
        assert (await engine.generate([1], {"max_new_tokens": 0})).tokens == []
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(process_of(engine).pid, number)  # a terminal sends them to all
        endless = {"ignore_eos": True}
        aborted, dropped = (asyncio.create_task(engine.generate([1, 2], endless, rid=rid)) for rid in "ab")
        await asyncio.sleep(0.1)
        dropped.cancel()
        await engine.abort("a")
        found = await aborted
        assert found.finish_reason == "abort"
        assert 0 < len(found.tokens) < 1000
        with pytest.raises(asyncio.CancelledError):
            await dropped
        assert not process_of(engine).requests._answers
        assert len((await engine.generate([1, 2], {"max_new_tokens": 3, **endless})).tokens) == 3


@pytest.mark.thorough
async def test_a_model_that_cannot_be_batched_is_refused(tmp_path, model):
    with pytest.raises(ConfigError, match="max_context is 9999, but the model holds only 1024 positions"):
        async with running(tmp_path, model, max_context=9999):
            pass


@pytest.mark.thorough
async def test_a_killed_engine_is_told_with_its_log(tmp_path, model):
    async with running(tmp_path, model) as engine:
        waiting = asyncio.create_task(engine.generate([1, 2], {"ignore_eos": True}))
        await asyncio.sleep(0.05)
        (tmp_path / "engine.log").write_text("out of memory\n\n")
        os.kill(process_of(engine).pid, signal.SIGKILL)
        with pytest.raises(EngineLostError, match=r"by signal SIGKILL; the log .*engine.log ends: out of memory$"):
            await waiting
        with pytest.raises(EngineLostError):
            await engine.generate([1, 2], {})
        with pytest.raises(EngineLostError):
            await engine.update(model, "1")
    with pytest.raises(EngineLostError):
        await engine.generate([1, 2], {})


async def test_an_engine_that_was_never_used_has_no_process(tmp_path, model):
    engine = made(tmp_path, model)
    await engine.close()
    assert not list(tmp_path.iterdir())


PARENT = """
import asyncio, sys
from pathlib import Path
from agentrl.engine.local.process import ProcessEngine
from agentrl.engine.table import TrainingParts
from agentrl.models import tiny_model, tiny_tokenizer

async def main():
    parts = TrainingParts(Path(sys.argv[1]), "cpu", "float32", print, own_weights=True)
    engine = ProcessEngine(tiny_model(), tiny_tokenizer(), parts)
    await engine.wake()
    print(engine._process.pid, flush=True)
    busy = [asyncio.create_task(engine.generate([1, i], {"ignore_eos": True, "sampling_seed": i})) for i in range(32)]
    await asyncio.gather(*busy)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def lives(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@pytest.mark.thorough
def test_the_process_ends_with_its_killed_parent(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    child = int(parent.stdout.readline())
    assert lives(child)
    parent.kill()
    parent.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while lives(child):
        assert time.monotonic() < deadline, "the engine outlives its trainer"
        time.sleep(0.05)


def test_shared_weights_hold_every_type_and_shape():
    tensors = {
        "scalar": torch.tensor(1.5),
        "half": torch.arange(7, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 3),
        "matrix": torch.arange(12.0).reshape(3, 4).T,
    }
    shared = SharedWeights.like(tensors)
    other = SharedWeights(os.dup(shared.descriptor), shared.slots)
    shared.write(tensors)
    assert set(other.tensors) == {"scalar", "half", "matrix"}
    for name, found in other.tensors.items():
        assert torch.equal(found, tensors[name])
        assert found.data_ptr() % 64 == 0
    other.close()
    shared.close()
    shared.close()

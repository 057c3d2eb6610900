"""slime's own weight updaters and its client of an engine, against LocalEngine's server."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from agentrl.engine.local import LocalEngine  # noqa: E402
from agentrl.engine.sglang.server import running_server  # noqa: E402
from agentrl.models import save_model, tiny_model, tiny_tokenizer  # noqa: E402
from tests.doubles import sglang_package  # noqa: E402

TRAINER = Path(__file__).with_name("weight_trainer.py")
ROOT = TRAINER.parents[3]


@pytest.mark.skipif("SLIME_SRC" not in os.environ, reason="SLIME_SRC is not set (docs/slime.md says how)")
@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("offload", [False, True])
async def test_slimes_updaters_bring_every_weight(tmp_path, monkeypatch, offload):
    sglang_package.install(monkeypatch)
    new, tokenizer = tiny_model(1).bfloat16(), tiny_tokenizer()
    save_model(new, tokenizer, tmp_path)
    engine = LocalEngine(tiny_model(0), tokenizer)
    prompt = tokenizer.encode("capital of")
    before = await engine.generate(prompt, {"max_new_tokens": 4, "temperature": 0})
    async with running_server(engine, server_args={"enable_memory_saver": offload}) as url:
        trainer = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.slime.contract.weight_trainer", url, str(tmp_path), *["--offload"] * offload),
            cwd=ROOT,
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await asyncio.wait_for(trainer.communicate(), 240)
        assert trainer.returncode == 0, errors.decode()
    weights = engine.copy_weights()
    for name, parameter in new.named_parameters():
        assert torch.equal(weights[name], (parameter + 1).float()), name
    after = await engine.generate(prompt, {"max_new_tokens": 4, "temperature": 0})
    await engine.close()
    assert (before.weight_version, after.weight_version) == ("0", "2")
    assert before.log_probs[0] != after.log_probs[0]

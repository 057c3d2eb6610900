"""The server of a rehearsal's engine: started as slime starts it, asked by slime's requests."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
import time
import urllib.request

import pytest

torch = pytest.importorskip("torch")

from agentrl.engine.local import LocalEngine  # noqa: E402
from agentrl.models import save_model, tiny_model, tiny_tokenizer  # noqa: E402
from agentrl.rehearse.standins import ENGINE, events, serving  # noqa: E402
from agentrl.rehearse.standins.server_args import ServerArgs  # noqa: E402


async def test_generations_are_logged(tmp_path):
    async with LocalEngine(tiny_model(0), tiny_tokenizer()) as engine:
        serving.log_generations(engine, tmp_path / "engine/1.jsonl")
        generation = await engine.generate([1, 2, 3], {"max_new_tokens": 2}, session_id="a")
    (line,) = map(json.loads, (tmp_path / "engine/1.jsonl").read_text().splitlines())
    assert line["input_ids"] == [1, 2, 3]
    assert line["output_ids"] == list(generation.tokens)
    assert line["log_probs"] == list(generation.log_probs)
    assert line["finish"] == generation.finish_reason


def ask(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        text = response.read()
    return json.loads(text) if text else None


@pytest.fixture
def server(tmp_path, monkeypatch):
    save_model(tiny_model(0), tiny_tokenizer(), tmp_path / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv(events.FOLDER_VARIABLE, str(tmp_path / "rehearsal"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ENGINE), *sys.path]))
    monkeypatch.syspath_prepend(ENGINE)
    from sglang.srt.entrypoints.http_server import launch_server  # as slime imports it

    arguments = ServerArgs(model_path=str(tmp_path / "model"), port=port, enable_memory_saver=True)
    process = multiprocessing.get_context("spawn").Process(target=launch_server, args=(arguments,))
    process.start()
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and process.is_alive():
        try:
            ask(f"{arguments.url()}/health_generate")
            break
        except OSError:
            time.sleep(0.1)
    yield arguments.url(), tmp_path
    serving.kill_process_tree(process.pid)
    process.join(10)
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        del sys.modules[name]


@pytest.mark.thorough
def test_slimes_bucket_of_tensors_reaches_the_engine(server):
    pytest.importorskip("psutil")
    url, folder = server
    from sglang.srt.utils import MultiprocessingSerializer
    from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket

    assert ask(f"{url}/server_info")["enable_memory_saver"] is True
    weights = [(name, tensor.bfloat16()) for name, tensor in tiny_model(1).named_parameters()]
    bucket = FlattenedTensorBucket(named_tensors=weights)
    tensors = {"flattened_tensor": bucket.get_flattened_tensor(), "metadata": bucket.get_metadata()}
    text = MultiprocessingSerializer.serialize(tensors, output_str=True)
    body = {"serialized_named_tensors": [text], "load_format": "flattened_bucket", "weight_version": "4"}
    assert ask(f"{url}/update_weights_from_tensor", body)["success"]
    assert ask(f"{url}/get_weight_version") == {"weight_version": "4"}
    sampling = {"max_new_tokens": 3, "temperature": 0.0}
    answer = ask(f"{url}/generate", {"input_ids": [5, 6], "sampling_params": sampling, "return_logprob": True})
    (file,) = (folder / "rehearsal/engine").iterdir()
    line = json.loads(file.read_text())
    assert line["output_ids"] == answer["output_ids"]
    assert line["weight_version"] == "4"
    model = tiny_model(1).bfloat16().float()
    with torch.no_grad():
        scores = model(torch.tensor([[5, 6, *answer["output_ids"]]])).logits[0].log_softmax(-1)
    expected = [float(scores[1 + i, token]) for i, token in enumerate(answer["output_ids"])]
    assert line["log_probs"] == pytest.approx(expected, abs=1e-4)

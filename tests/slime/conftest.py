from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from agentrl.engine.sglang.server import running_server
from agentrl.env.factory import load_env
from agentrl.testing import tiny_renderer
from tests.slime.player import Player

ENV_FILE = Path(__file__).parent / "lookup_env.py"


@dataclass
class Sample:
    """The fields of slime's Sample that agentrl reads and writes."""

    group_index: int | None = None
    index: int | None = None
    prompt: Any = ""
    tokens: list[int] = field(default_factory=list)
    multimodal_inputs: dict[str, Any] | None = None
    response: str = ""
    response_length: int = 0
    label: Any = None
    reward: Any = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    session_id: str | None = None
    custom_rm_path: str | None = None
    non_generation_time: float = 0.0

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    status: Status = Status.PENDING

    @dataclass
    class SpecInfo:
        verified: int = 0

        def add(self, meta_info: dict[str, Any]) -> None:
            self.verified += meta_info["spec_verify_ct"]

    spec_info: SpecInfo = field(default_factory=SpecInfo)

    @dataclass
    class PrefixCacheInfo:
        cached_tokens: int = 0
        total_prompt_tokens: int = 0

        def add(self, meta_info: dict[str, Any]) -> None:
            self.cached_tokens += meta_info["cached_tokens"]
            self.total_prompt_tokens += meta_info["prompt_tokens"]

    prefix_cache_info: PrefixCacheInfo = field(default_factory=PrefixCacheInfo)


def slime_args(
    url: str = "http://127.0.0.1:1", *, args: dict[str, Any] | None = None, **config: Any
) -> SimpleNamespace:
    """slime's args, as far as adapt reads them: `slime_args(url, limits={...})`; `args={...}` overrides args' own."""
    ip, port = url.removeprefix("http://").split(":")
    given = {
        "hf_checkpoint": "tiny",
        "sglang_router_ip": ip,
        "sglang_router_port": int(port),
        "rollout_max_context_len": None,
        "apply_chat_template": False,
        "rollout_top_p": 1.0,
        "rm_type": None,
        "custom_rm_path": None,
        "agentrl": {"env": f"{ENV_FILE}:Lookup", **config},
    }
    return SimpleNamespace(**{**given, **(args or {})})


@pytest.fixture(name="Sample")
def sample_class() -> type[Sample]:
    return Sample


@pytest.fixture(scope="session")
def renderer() -> Any:
    return tiny_renderer()


@pytest.fixture
def env_path() -> Callable[[str], str]:
    return lambda name: f"{ENV_FILE}:{name}"


@pytest.fixture
def lookup() -> ModuleType:
    """lookup_env.py as agentrl imports it."""
    return sys.modules[load_env(f"{ENV_FILE}:Lookup").__module__]


@pytest.fixture
def events(lookup: ModuleType) -> list[str]:
    """What the Envs of lookup_env.py record."""
    found: list[str] = lookup.EVENTS
    found.clear()
    return found


@pytest.fixture
def player(renderer: Any) -> Callable[..., Player]:
    return lambda **kwargs: Player(renderer, **kwargs)


@pytest.fixture
def serve(player: Any, renderer: Any) -> Callable[..., Any]:
    """`async with serve() as (engine, url)`: a Player behind SGLang's HTTP protocol."""

    @asynccontextmanager
    async def running(engine: Any = None, **kwargs: Any) -> AsyncIterator[tuple[Any, str]]:
        engine = engine or player(**kwargs)
        async with running_server(engine, decode=renderer.decode) as url:
            yield engine, url

    return running


@pytest.fixture
def make_args() -> Callable[..., SimpleNamespace]:
    return slime_args


@pytest.fixture
def host(monkeypatch) -> SimpleNamespace:
    """A stand-in for slime's package: its Sample, and its GenerateState with the abort flag."""
    state = SimpleNamespace(aborted=False)
    module = ModuleType("fakehost.rollout.sglang_rollout")
    module.GenerateState = lambda args: state
    monkeypatch.setitem(sys.modules, module.__name__, module)
    hosted = type("Sample", (Sample,), {"__module__": "fakehost.utils.types"})
    return SimpleNamespace(Sample=hosted, state=state)

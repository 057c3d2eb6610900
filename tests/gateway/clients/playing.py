"""A session of a real client with a scripted engine, and what must hold of every session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from agentrl import Endpoint
from agentrl.chat.options import SessionOptions
from agentrl.engine.scripted import ScriptedEngine, scripted_log_prob
from agentrl.episode.gateway_config import GatewayConfig
from agentrl.episode.options import EpisodeOptions
from agentrl.gateway.serving.server import Gateway
from agentrl.gateway.session.session import Session
from agentrl.render import load_renderer
from agentrl.sandbox import ExecResult
from agentrl.trajectory.segment import Segment
from agentrl.trajectory.trajectory import Trajectory, total_ledger
from agentrl.types import Generation, Limits
from agentrl_envs.agents.start import Start
from agentrl_sandbox.local.sandbox import LocalSandbox
from agentrl_sandbox.spec import SandboxSpec
from tests.doubles.faulty_proxy import Fault, Proxy, proxied
from tests.gateway.clients.said import Script
from tests.render.conftest import chatml_tokenizer

_TEMPLATE = Path(__file__).parents[2] / "render" / "templates" / "real" / "Qwen-Qwen3-0.6B.jinja"
_MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_KEY = "sk-of-this-session"
LIMIT_S = 100.0


@cache
def thinking_model() -> tuple[Any, Any]:
    """Qwen3's own template, with thoughts; a small tokenizer, so that no model is needed."""
    tokenizer = chatml_tokenizer(*_MARKERS, template=_TEMPLATE.read_text())
    return tokenizer, load_renderer(tokenizer)


class ScriptEngine(ScriptedEngine):
    """Plays a script by what the prompt shows, and keeps what it was sent with what it returned."""

    def __init__(self, script: Script, *, context_length: int = 1 << 20, model: tuple[Any, Any] | None = None) -> None:
        self._tokenizer, self.renderer = model or thinking_model()
        super().__init__(self._say, self.renderer, context_length=context_length)
        self.script = script
        self.calls: list[tuple[list[int], list[int]]] = []
        self.params: list[Any] = []
        self.delay: Callable[[int], float] = lambda number: 0.0
        """Seconds that a turn takes, by its number from 1."""

    async def generate(
        self, input_ids: Any, sampling_params: Any, *, session_id: str = "", rid: str = "", images: Any = ()
    ) -> Generation:
        await asyncio.sleep(self.delay(len(self.calls) + 1))
        more = {"images": images} if images else {}
        made = await super().generate(input_ids, sampling_params, session_id=session_id, rid=rid, **more)
        self.calls.append((self.expanded(input_ids, images), list(made.tokens)))
        self.params.append(sampling_params)
        return made

    def expanded(self, input_ids: Any, images: Any) -> list[int]:
        """The ids as a trainer reads them: one pad for each merged patch of each image."""
        left, vision = iter(images), self.renderer.vision
        counts = [vision.count(next(left)) if vision and token == vision.pad else 1 for token in input_ids]
        assert next(left, None) is None, "there are as many pads as images"
        return [token for token, count in zip(input_ids, counts, strict=True) for _ in range(count)]

    def read(self, tokens: Any) -> str:
        """Tokens as text."""
        return str(self._tokenizer.decode(tokens))

    def _say(self, input_ids: Any) -> Generation:
        raw = self.script.next(self.read(input_ids)).raw()
        tokens = [*self._tokenizer.encode(raw, add_special_tokens=False), self._tokenizer.eos_token_id]
        return Generation(tokens, [scripted_log_prob(token) for token in tokens], "stop")


@dataclass
class Played:
    """What a session was, as all who took part in it saw it."""

    engine: ScriptEngine
    session: Session
    proxy: Proxy
    trajectory: Trajectory = field(default_factory=Trajectory)
    ended: list[ExecResult] = field(default_factory=list)

    @property
    def output(self) -> str:
        return "".join(one.stdout + one.stderr for one in self.ended)

    @property
    def texts(self) -> list[str]:
        """Each segment as text."""
        return [self.engine.read(segment.tokens) for segment in self.trajectory.segments]

    def audits(self) -> list[str]:
        return [str(line["kind"]) for line in self.session.log.lines if line["event"] == "audit"]


@asynccontextmanager
async def playing(
    script: Script,
    *,
    faults: Mapping[int, Fault] | None = None,
    options: SessionOptions | None = None,
    limits: Limits | None = None,
    context_length: int = 1 << 20,
    always: Fault | None = None,
    config: GatewayConfig | None = None,
    delay: Callable[[int], float] | None = None,
    model: tuple[Any, Any] | None = None,
) -> AsyncIterator[tuple[Played, Endpoint]]:
    """A gateway with one session, behind a proxy that does `faults`. At the end it is written as a trajectory.

    With `config` the client is given that gateway's own address, and the proxy is left out. `model`: the tokenizer and
    renderer; those of `thinking_model` by default.
    """
    engine = ScriptEngine(script, context_length=context_length, model=model)
    engine.delay = delay or engine.delay
    session = Session(_KEY, options=options)
    async with Gateway(config) as gateway, proxied(gateway.url, faults or {}, always=always) as proxy:
        gateway.add(session)
        session.play(engine, engine.renderer, EpisodeOptions(limits=limits or Limits(turns=100)), None, "s")
        played = Played(engine, session, proxy)
        yield played, Endpoint(key=_KEY, url=gateway.url if config else proxy.url, socket=str(gateway.socket_path))
        session.close("the episode is over")
        await session.quiet()
    assert session.error is None, session.error
    session.write(played.trajectory)


async def play(
    script: Script,
    *starts: Callable[[Endpoint], Start],
    fails: bool = False,
    unclaimed: int = 0,
    timeout: float = LIMIT_S,
    through: Callable[[Sequence[str]], Sequence[str]] = tuple,
    **more: Any,
) -> Played:
    """A session of one client: each of `starts` is a process, one after the other, in the same folder and home.

    `through` makes the command that runs a command elsewhere.
    """
    async with (
        LocalSandbox(SandboxSpec(workdir="/work", memory_mb=1 << 15, file_mb=1024), trusted=True) as box,
        playing(script, **more) as (played, endpoint),
    ):
        home = box.root / "home"
        home.mkdir()
        await box.exec("git init -q .", check=True)
        for start in starts:
            said = start(endpoint)
            said = Start(through(said.argv), {**said.env, "HOME": str(home)})
            played.ended.append(await said.run(box, timeout=timeout))
            assert not played.ended[-1].timed_out, played.output[-3000:]
            assert fails or played.ended[-1].exit_code == 0, played.output[-3000:]
    check(played, unclaimed)
    return played


def check(played: Played, unclaimed: int = 0) -> None:
    """Nothing is lost and nothing is trained twice: the engine's own record is the oracle.

    Each call of the engine, prompt and answer, begins some segment, and its answer is trained there and nowhere else.
    Each segment is what one call was sent and returned. Nothing is masked but the last `unclaimed` replies, of which a
    client never got the whole.
    """
    segments, calls = played.trajectory.segments, played.engine.calls
    whole = [[*sent, *returned] for sent, returned in calls]
    trained = [0] * len(calls)
    for segment in segments if calls else ():
        ids, mask = segment.tokens, _mask(segment)
        assert any(ids == one for one in whole), "a segment is not what the engine was sent and returned"
        for number, (sent, returned) in enumerate(calls):
            if ids[: len(whole[number])] == whole[number]:
                trained[number] += sum(mask[len(sent) : len(sent) + len(returned)]) == len(returned)
    kept = len(calls) - unclaimed
    expected = [1] * kept + [0] * unclaimed
    assert trained == expected, f"times that each of the engine's answers is trained: {trained}"
    assert sum(sum(_mask(segment)) for segment in segments) == sum(len(returned) for _, returned in calls[:kept])
    lost = sum(len(returned) for _, returned in calls[kept:])
    assert total_ledger(segments).masked == ({"undelivered": lost} if unclaimed else {})


def _mask(segment: Segment) -> list[int]:
    return [*[0] * (segment.length - segment.response_length), *segment.loss_mask]

"""An episode in a sandbox under the host's own partial rollout: aborted while a command runs, and gone on with later.

The Env is the one of docs/environments.md, "Sandboxes", as it stands there.
"""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agentrl import SandboxError
from agentrl.env.factory import load_env
from agentrl.testing import call
from agentrl_sandbox import open_backend
from agentrl_sandbox.owners import current
from tests.sandbox.engine import entered
from tests.slime.contract.aborts import PARTIAL
from tests.slime.player import Player

WATCHED = """
BOXES = []


class Watched(Terminal):
    async def reset(self, task):
        first = await super().reset(task)
        BOXES.append(self.shell.box)
        return first
"""
GUIDE = Path(__file__).parents[3] / "docs" / "environments.md"
LISTING = "find . -mindepth 1 ! -name before ! -name after -printf '%p %y %m %s %l\\n' | sort"
FIRST = (
    "mkdir -p sub && cd sub && export N=42 && echo begun >> log && ln -s log link && chmod 640 log && "
    f"{{ WAIT; echo ended >> log; {LISTING} > before; }}"
)
HELD = "touch ../held; while [ ! -e ../go ]; do sleep 0.02; done"
SECOND = (
    f'{LISTING} > after; [ "$(cat before)" = "$(cat after)" ] && '
    'basename "$PWD" && cat log && echo "$N" > ../answer.txt'
)


class Worker(Player):
    """Runs one command, slowly if it is asked to, then looks at what it left. Stateless, so it plays any number."""

    def _say(self, input_ids: Any) -> Any:
        text = self.decode(input_ids)
        if "> after" in text and "ended" in text.rpartition("answer.txt")[2]:
            return "Done."
        if "before" in text:
            return call("bash", command=SECOND)
        return call("bash", command=FIRST.replace("WAIT", HELD if "slowly" in text else "true"))


@pytest.fixture(params=["local", "bubblewrap", "docker"])
def backend(request: pytest.FixtureRequest) -> str:
    async def probe() -> None:
        async with entered(request.param):
            pass

    asyncio.run(probe())
    return request.param


@pytest.fixture
def terminal(tmp_path: Path) -> str:
    code = re.search(r"```python\n(# terminal\.py\n.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)[1]
    (tmp_path / "terminal.py").write_text(code + WATCHED)
    return f"{tmp_path}/terminal.py:Watched"


@pytest.fixture
def let_go(host: Any, terminal: str) -> Iterator[Callable[[Any], None]]:
    """`let_go(run)`: once the host has enough, the command that is held may end."""
    over = threading.Event()

    def go_on(state: Any) -> None:
        while not (state.aborted or over.wait(0.005)):
            pass
        for box in sys.modules[load_env(terminal).__module__].BOXES:
            with suppress(SandboxError, CancelledError):  # it is closed
                host.run(box.write_file("go", ""))

    def start(run: Any) -> None:
        state = host.rollout.GenerateState(run.args)  # made here: a race would make two of it
        threading.Thread(target=go_on, args=(state,), daemon=True).start()

    yield start
    over.set()


async def left_over(backend: str) -> list[str]:
    async with open_backend(backend) as opened:
        return [found.sandbox_id for found in await opened.list() if found.owner == current()]


def test_a_command_under_way_may_end_and_the_episode_goes_on_in_another_sandbox(
    host, start, renderer, terminal, backend, let_go
):
    rows = [{"prompt": f"{how}, find out the number", "label": "42"} for how in ("slowly", "quickly", "now", "soon")]
    config = {"env": terminal, "env_config": {"backend": backend}}
    run = start(rows, engine=Worker(renderer), agentrl=config, rollout_max_response_len=2000, **PARTIAL)
    let_go(run)
    samples, _, _ = run.train()
    assert [s.group_index for s in samples] == [1, 1, 2, 2]
    (waiting,) = run.data_source.buffer
    assert {s.status for s in waiting} == {host.Status.ABORTED}
    tickets = [s.metadata["agentrl"]["resume"]["how"] for s in waiting]
    assert tickets == ["snapshot", "snapshot"], "it was parked after the command, not in it"
    before = [list(s.tokens) for s in waiting]
    run.args.over_sampling_batch_size = 2
    samples, data, _ = run.train(1)
    assert [s.group_index for s in samples] == [0, 0, 3, 3]
    assert data["raw_reward"] == [1.0] * 4, "the environment variable and the working directory are back"
    for sample, tokens in zip(samples[:2], before, strict=True):
        account = sample.metadata["agentrl"]
        assert (account["resumes"], account.get("restarts")) == (1, None)
        assert sample.tokens[: len(tokens)] == tokens, "what was sampled is kept"
        said = renderer.decode(sample.tokens)
        assert said.count("sub\nbegun\nended") == 1, "the command ran once; the folder is what it was"
        assert (account["ledger"]["sampled"], account["ledger"]["masked"]) == (sum(sample.loss_mask), {})
    host.reset()
    assert asyncio.run(left_over(backend)) == []

"""An Env over MCP servers (anyio task groups, a process for each episode) in a host's own rollout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.episode.mcp_env import ENV, FAST, children

pytest.importorskip("mcp")


def test_a_rollout_and_an_evaluation_over_mcp_servers(host, start, rows):
    run = start(rows(), agentrl={"env": ENV, "env_config": FAST})
    samples, data, _ = run.train()
    assert {s.status for s in samples} == {host.Status.COMPLETED}
    assert [s.metadata["agentrl"].get("info", {}) for s in samples] == [{}] * 8, "no error in closing"
    assert data["raw_reward"] == [1.0] * 2 + [0.0] * 4 + [1.0] * 2, "this server knows France alone"
    assert all(sum(mask) for mask in data["loss_masks"])
    assert run.evaluate()["rewards"] == [1.0] * 2 + [0.0] * 4 + [1.0] * 2
    assert children() == set()


def test_a_host_that_aborts_leaves_no_server(host, start, rows, tmp_path):
    Path(tmp_path / "slow.py").write_text(SLOW)
    run = start(
        rows(),
        agentrl={"env": f"{tmp_path}/slow.py:Slow", "env_config": FAST},
        rollout_batch_size=2,
        global_batch_size=4,
        over_sampling_batch_size=4,
    )
    samples, _ = run.samples()
    assert len(samples) == 4
    host.run(_forgotten())
    assert children() == set()


SLOW = f"""
import asyncio
from agentrl.env.factory import load_env


class Slow(load_env({ENV!r})):
    async def exec_tool(self, call):
        if self.task.label != "Paris":
            await asyncio.sleep(0.5)
        return await super().exec_tool(call)
"""


async def _forgotten() -> None:
    from agentrl.episode.shared import loop_resources

    await loop_resources().close()

"""Two processes on one folder: whichever is killed, the other goes on with its episodes.

pytest -s tests/slime/test_nodes.py        prints what was aborted, killed, sampled and trained
AGENTRL_SOAK=64 pytest ...                 64 episodes, 20 kills
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import sys
import time
from collections import defaultdict
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from agentrl._util.owners import Owner
from agentrl.episode.saved import SavedEpisodes
from agentrl.testing import call
from tests.slime.node import Queue, Sample
from tests.slime.player import Player

SOAK = "AGENTRL_SOAK" in os.environ
EPISODES, TURNS, KILLS = (64, 24, 20) if SOAK else (12, 10, 4)
_DEAD = ("Z", "X", "")


class Boss(Player):
    """Has line after line written. Stateless, but it remembers what it was asked and what it handed out."""

    def __init__(self, renderer, log, **kwargs):
        super().__init__(renderer, context_length=32768, **kwargs)
        self.log = log
        self.asked: dict[tuple[str, int], float] = {}
        """When the first request for a turn came, by episode and turn."""
        self.handed_out: dict[str, list] = defaultdict(list)
        self._unique = count(1)

    def _say(self, input_ids):
        text = self.decode(input_ids)
        turn = _turn(text)
        if turn > TURNS:
            return "All is written."
        name = re.search(r"Episode (\S+):", text)[1]
        said = (
            f"echo {turn} >> work.txt; echo {name} {turn} $(date +%s.%N) >> {self.log}; echo lines: $(wc -l <work.txt)"
        )
        return {**call("bash", command=said), "content": "The next line is written now."}

    async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
        self.asked.setdefault((session_id, _turn(self.decode(input_ids))), time.time())
        said = await super().generate(input_ids, sampling_params, session_id=session_id, rid=rid)
        said = replace(said, log_probs=[-next(self._unique) / 2**20 for _ in said.tokens])
        self.handed_out[session_id].append(said)
        return said


def _turn(text: str) -> int:
    return len(re.findall(r"lines: \d+", text)) + 1


@asynccontextmanager
async def nodes(queue_file, url, parking):
    """`await start(seed)` starts a process, and returns its id."""
    forker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.slime.node",
        str(queue_file),
        url,
        json.dumps(parking),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert await forker.stdout.readline() == b"ready\n"
    alive = set()

    async def start(seed: int) -> int:
        forker.stdin.write(b"%d\n" % seed)
        pid = int(await forker.stdout.readline())
        alive.add(pid)
        return pid

    try:
        yield start
    finally:
        for pid in alive:
            if _lives(pid):
                os.kill(pid, signal.SIGKILL)
        forker.kill()
        await forker.wait()


async def _kill(pid: int) -> None:
    """Kill a process with its commands, as a machine that fails does. In a sandbox without isolation they would go on,
    and write into the log when their turn has been played again elsewhere."""
    tree = [pid]
    for found in tree:
        while _state(found) not in ("T", *_DEAD):  # then it starts no other
            with suppress(ProcessLookupError):
                os.kill(found, signal.SIGSTOP)
            await asyncio.sleep(0)
        tree += [
            int(name) for name in os.listdir("/proc") if name.isdecimal() and _stat(int(name))[1:2] == [str(found)]
        ]
    for found in reversed(tree):  # else the kernel would wake them
        with suppress(ProcessLookupError):
            os.kill(found, signal.SIGKILL)
    for found in tree:
        while _state(found) not in _DEAD:  # noqa: ASYNC110 - it is no child of this process
            await asyncio.sleep(0.002)
    await _gone(pid)


def _state(pid: int) -> str:
    return (_stat(pid) or [""])[0]


def _stat(pid: int) -> list[str]:
    """State, parent and more of a process; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


async def _gone(pid: int) -> None:
    while _lives(pid):  # noqa: ASYNC110 - it is no child of this process
        await asyncio.sleep(0.002)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.thorough
async def test_whichever_process_is_killed_each_episode_ends_once(serve, renderer, tmp_path):
    log, folder, chance = tmp_path / "log", tmp_path / "parked", random.Random(5)
    log.touch()
    boss = Boss(renderer, log, seconds=0.04)
    queue = Queue(tmp_path / "queue")
    for i in range(EPISODES):
        queue.put(Sample(prompt=f"Episode s-{i}: write.", label=TURNS, index=i, session_id=f"s-{i}"))
    killed = lost = 0
    part = EPISODES * TURNS // (KILLS + 2)
    kill_at = [part * i + chance.randrange(part) for i in range(1, KILLS + 1)]  # so many turns have been asked for
    parking = {"folder": str(folder), "every_turn": True}
    async with serve(boss) as (_, url), nodes(tmp_path / "queue", url, parking) as start, asyncio.timeout(900):
        pids = [await start(seed) for seed in (1, 2)]
        while set(queue.states()) != {"done"}:
            await asyncio.sleep(0.005)
            if killed < KILLS and len(boss.asked) >= kill_at[killed]:
                which = chance.randrange(2)
                await _kill(pids[which])
                lost += queue.left_by(pids[which])
                killed += 1
                pids[which] = await start(10 + killed)
        for pid in pids:
            await _gone(pid)
    sampled = trained = 0
    for sample, _ in queue.samples():
        account = sample.metadata["agentrl"]
        assert (sample.status, sample.reward) == (Sample.Status.COMPLETED, 1.0), account
        assert account.get("restarts", 0) == 0, account["restart_reason"]
        check_tokens(boss.handed_out[sample.session_id], sample)
        sampled += sum(len(said.tokens) for said in boss.handed_out[sample.session_id])
        trained += sum(sample.loss_mask)
    runs = check_tools(boss, log)
    assert killed == KILLS
    left = list(folder.iterdir())
    suffixes = {path.suffix for path in left if not Owner.parse(path.name)}
    assert suffixes <= {".ended", ".unfinished"}, "no episode is left"
    for path in left:  # killed processes had ended or begun to write these, and nobody can know that the queue has them
        os.utime(path, (0, 0))
    SavedEpisodes(folder, shared=True).close()
    assert list(folder.iterdir()) == [], "they go when their time is over"
    aborts = [aborts for _, aborts in queue.samples()]
    resumed = sum(sample.metadata["agentrl"].get("resumes", 0) for sample, _ in queue.samples())
    print(
        f"\nepisodes {EPISODES}, aborts {sum(aborts)} (fewest {min(aborts)}), kills {killed}, episodes in killed "
        f"processes {lost}, resumed {resumed}, restarts 0, tool calls {runs} for {EPISODES * TURNS}, tokens sampled "
        f"{sampled}, trained {trained}"
    )


def check_tokens(handed_out, sample) -> None:
    """What is trained was sampled: each token once, with its log-prob. What is missing was lost with a process."""
    response = sample.tokens[-sample.response_length :]
    own = [(t, p) for t, p, m in zip(response, sample.rollout_log_probs, sample.loss_mask, strict=True) if m]
    given = [pair for said in handed_out for pair in zip(said.tokens, said.log_probs, strict=True)]
    rest = iter(given)
    assert all(pair in rest for pair in own), "in the order in which they were sampled"
    assert len(own) == sample.metadata["agentrl"]["ledger"]["sampled"]


def check_tools(boss, log) -> int:
    """No tool call of a finished turn ran again: not after the next turn was asked for."""
    lines = log.read_text().split("\n")[:-1]
    for line in lines:
        name, turn, at = line.split()
        following = boss.asked[name, int(turn) + 1]
        assert float(at) <= following, f"turn {turn} of {name} ran {float(at) - following:.3f} s after it had ended"
    assert len({tuple(line.split()[:2]) for line in lines}) == EPISODES * TURNS
    return len(lines)

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
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count

from agentrl._util.owners import Owner
from agentrl.episode.saved import SavedEpisodes
from agentrl.testing import call
from tests.slime.node import Queue, Sample
from tests.slime.player import Player

SOAK = "AGENTRL_SOAK" in os.environ
EPISODES, TURNS, KILLS = (64, 24, 20) if SOAK else (12, 10, 4)
PAUSE_S = (0.5, 2.0) if SOAK else (0.2, 0.8)


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


async def _gone(pid: int) -> None:
    while _lives(pid):  # noqa: ASYNC110 - it is no child of this process
        await asyncio.sleep(0.002)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_whichever_process_is_killed_each_episode_ends_once(serve, renderer, tmp_path):
    log, folder, chance = tmp_path / "log", tmp_path / "parked", random.Random(5)
    log.touch()
    boss = Boss(renderer, log, seconds=0.04)
    queue = Queue(tmp_path / "queue")
    for i in range(EPISODES):
        queue.put(Sample(prompt=f"Episode s-{i}: write.", label=TURNS, index=i, session_id=f"s-{i}"))
    killed = lost = 0
    parking = {"folder": str(folder), "every_turn": True}
    async with serve(boss) as (_, url), nodes(tmp_path / "queue", url, parking) as start, asyncio.timeout(900):
        pids = [await start(seed) for seed in (1, 2)]
        while set(queue.states()) != {"done"}:
            await asyncio.sleep(chance.uniform(*PAUSE_S) if killed < KILLS else 0.1)
            if killed < KILLS and set(queue.states()) != {"done"}:
                which = chance.randrange(2)
                os.kill(pids[which], signal.SIGKILL)
                await _gone(pids[which])
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
    assert {path.suffix for path in left if not Owner.parse(path.name)} <= {".ended"}, "no episode is left"
    for path in left:  # killed processes had ended these, and nobody can know that the queue has them
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

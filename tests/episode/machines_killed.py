"""python -m tests.episode.machines_killed FOLDER: owners are killed between any two steps, and others go on.

For each step a child plays an episode with a machine until that step, and is killed there. Then this process does what
the next one would. It prints the name of each step after which all was well.
"""

import asyncio
import os
import signal
import sys
import time
from unittest import mock

from agentrl import EnvFactory, EpisodeOptions, ResumeError, StopReason, Task, run_episode
from agentrl.episode.options import EpisodeHooks
from agentrl.episode.parking import Parking
from agentrl.episode.resume import resume_episode
from agentrl.episode.saved import SavedEpisodes
from agentrl.models import load_tokenizer
from agentrl.render import load_renderer
from agentrl_sandbox.reaper import sweep
from tests.episode.machines import ENDS_AT, FolderSnapshot, Keeping, Ticking, folder, ticker

FOUND_AT = {"kept": 0, "parked": 1, "taken": 1, "restored": 1, "saved": 2, "ended": 0, "released": 0}
"""Step -> the ticks that the next process finds counted. 0: it starts over."""
RENDERER = load_renderer(load_tokenizer("tiny"))
PARTS = {"engine": ticker(RENDERER), "renderer": RENDERER, "options": EpisodeOptions()}
OWNER = Keeping.keep, FolderSnapshot.release, SavedEpisodes.remove


async def play(place, key, parked=None, *, turns=99):
    """Play that many turns, then park."""
    played = 0

    def on_turn(*_):
        nonlocal played
        played += 1

    hooks = EpisodeHooks(aborted=lambda: played >= turns, on_turn=on_turn, park=lambda one: place.park(one, 60, key))
    async with EnvFactory(Ticking) as envs:
        if parked is None:
            return await run_episode(envs.make(), Task(prompt="Tick."), session_id=key, hooks=hooks, **PARTS)
        return await resume_episode(parked, envs.make(), hooks=hooks, **PARTS)


def die(*_) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def owner(step: str, place: Parking, key: str) -> None:
    async def keep(*args):
        await OWNER[0](*args)
        die()

    if step == "kept":
        Keeping.keep = keep
    await play(place, key, turns=1)
    if step == "parked":
        die()
    parked = await place.take_key(key, 60)
    if step == "taken":
        die()
    if step == "restored":
        with mock.patch.object(Ticking, "step", die):
            await play(place, key, parked)
    if step == "saved":
        await place.save(key, parked, 60)
        with mock.patch.object(FolderSnapshot, "release", die):
            await play(place, key, parked, turns=1)
    await play(place, key, parked)
    await _ended(place, key, step)


async def _ended(place: Parking, key: str, step: str) -> None:
    def remove(*args):
        if OWNER[2](*args):
            die()

    async def release(self):
        await OWNER[1](self)
        die()

    if step == "ended":
        SavedEpisodes.remove = remove
    else:
        FolderSnapshot.release = release
    await place.ended(key)
    await place.close()


async def heir(step: str, place: Parking, key: str) -> None:
    try:
        parked = await place.take_key(key, 60)
    except ResumeError:
        parked = None
    assert bool(parked) == bool(FOUND_AT[step]), (step, parked)
    if parked is not None:
        assert f"{FOUND_AT[step]} ticks" in str(parked.episode.trajectory.messages), step
        assert len(parked.episode.trajectory.turns) == FOUND_AT[step], step
        done = await play(place, key, parked)
        assert (done.stop, done.reward) == (StopReason.DONE, ENDS_AT), (step, done)
        await place.ended(key)
    await place.close()
    await sweep(Keeping())
    left = [one.name for one in folder().iterdir()]
    assert all(name.startswith("kept-") for name in left), (step, "machines of the killed owner are left", left)
    assert len(left) <= 1, (step, left)
    later = time.time() + 4000
    with mock.patch.object(time, "time", return_value=later):  # beyond spec.lifetime_s
        await sweep(Keeping())
    assert not list(folder().iterdir()), (step, "a kept machine outlives its time")


for name in FOUND_AT:
    where = f"{sys.argv[1]}/{name}"
    child = os.fork()
    if not child:
        asyncio.run(owner(name, Parking(where), f"{5:032x}"))
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, name
    asyncio.run(heir(name, Parking(where), f"{5:032x}"))
    print(name, flush=True)

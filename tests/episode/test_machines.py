"""Running machines in parked episodes and in branches: each goes on in a machine of its own, and none is left."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from agentrl import ConfigError, EnvFactory, EpisodeOptions, ResumeError, SandboxError, StopReason, Task, run_episode
from agentrl.episode.machines import machines_in
from agentrl.episode.options import EpisodeHooks
from agentrl.episode.parking import Parking
from agentrl.episode.resume import resume_episode
from agentrl.rollout import Budget, EpisodeTree, Rollout
from agentrl_sandbox import SandboxPool, SandboxSpec
from tests.episode.machines import ENDS_AT, FOLDER, FolderSnapshot, Keeping, Ticking, TickingFiles, ticker

TASK = Task(prompt="Tick.", id="t", seed=1)


@pytest.fixture(autouse=True)
def service(tmp_path, monkeypatch):
    folder = tmp_path / "service"
    folder.mkdir()
    monkeypatch.setenv(FOLDER, str(folder))
    return folder


def kept(service):
    return sorted(file.name for file in service.iterdir() if file.name.startswith("kept-"))


def running(service):
    return sorted(file.name for file in service.iterdir() if not file.name.startswith("kept-"))


class Host:
    """Plays an episode that is aborted after each of its turns, with a parking place of its own each time."""

    def __init__(self, envs, renderer, folder, save=False):
        self.envs, self.renderer, self.folder, self.save = envs, renderer, folder, save
        self.turns = 0
        self.ticket = None

    def parking(self):
        return Parking(str(self.folder))

    async def play(self, place, parked=None, aborts=True):
        env, key, turns = self.envs.make(), self.ticket["key"] if parked else place.key("s"), 0

        async def park(one):
            self.ticket = await place.park(one, 60, key)

        def on_turn(*_):
            nonlocal turns
            turns += 1

        hooks = EpisodeHooks(
            aborted=lambda: aborts and turns > 0,
            on_turn=on_turn,
            park=park,
            save=(lambda one: place.save(key, one, 60)) if self.save else None,
        )
        parts = {"engine": ticker(self.renderer), "renderer": self.renderer, "options": EpisodeOptions()}
        if parked is None:
            played = await run_episode(env, TASK, session_id="s", hooks=hooks, **parts)
        else:
            played = await resume_episode(parked, env, hooks=hooks, **parts)
        assert "not_parked" not in played.info, played.info
        assert "not_saved" not in played.info, played.info
        return played


@pytest.mark.parametrize("save", [False, True])
async def test_an_aborted_episode_goes_on_in_its_machine(renderer, tmp_path, service, save):
    async with EnvFactory(Ticking) as envs:
        host = Host(envs, renderer, tmp_path / "parked", save)
        place = host.parking()
        played = await host.play(place)
        for turn in range(1, ENDS_AT + 1):
            await place.close()
            assert (played.stop, len(kept(service))) == (StopReason.ABORTED, 1), "only what the file needs is kept"
            place = host.parking()  # as another process does
            played = await host.play(place, await place.take(host.ticket), aborts=turn < ENDS_AT)
        assert (played.stop, played.reward) == (StopReason.DONE, ENDS_AT), "the process has counted all ticks"
        await place.ended(host.ticket["key"])
        await place.close()
        assert kept(service) == []
    assert running(service) == []


async def test_a_state_that_comes_back_twice_is_two_machines(renderer, tmp_path, service):
    async with EnvFactory(Ticking) as envs:
        host = Host(envs, renderer, tmp_path / "parked")
        place = host.parking()
        await host.play(place)
        first = await place.take(host.ticket)
        done = await host.play(place, first, aborts=False)
        await place.give_back(host.ticket["key"])
        await place.close()
        assert len(kept(service)) == 1, "another process may need it"
        place = host.parking()
        again = await host.play(place, await place.take(host.ticket), aborts=False)
        assert (done.reward, again.reward) == (ENDS_AT, ENDS_AT)
        await place.ended(host.ticket["key"])
        await place.close()
        assert kept(service) == []


async def test_without_a_folder_what_is_taken_and_given_up_is_removed(renderer, service):
    async with EnvFactory(Ticking) as envs:
        host = Host(envs, renderer, None)
        host.parking = Parking
        place = Parking()
        await host.play(place)
        await place.take(host.ticket)
        assert len(kept(service)) == 1
        await place.give_back(host.ticket["key"])
        await place.close()
        assert kept(service) == []


async def test_a_file_that_cannot_be_written_leaves_no_machine_but_the_earlier_one(
    renderer, tmp_path, service, monkeypatch
):
    async with EnvFactory(Ticking) as envs:
        host = Host(envs, renderer, tmp_path / "parked")
        place = host.parking()
        await host.play(place)
        before, parked = kept(service), await place.take(host.ticket)

        def full(self, target):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("pathlib.Path.replace", full)
        with pytest.raises(AssertionError, match="No space left"):
            await host.play(place, parked)
        await asyncio.sleep(0.05)
        assert kept(service) == before, "the file on the disk still needs it"
        await place.ended(host.ticket["key"])
        await place.close()
        assert kept(service) == []


async def test_an_episode_that_another_process_took_keeps_its_machine(renderer, tmp_path, service):
    async with EnvFactory(Ticking) as envs:
        host = Host(envs, renderer, tmp_path / "parked")
        place = host.parking()
        await host.play(place)
        parked = await place.take(host.ticket)
        (mine,) = (tmp_path / "parked").glob("*.taken")
        mine.rename(tmp_path / "parked" / "gone")  # as a process does that holds this one for dead
        with pytest.raises(ResumeError, match="another process has resumed it"):
            await place.save(host.ticket["key"], parked, 60)
        await place.ended(host.ticket["key"])
        await place.close()
        assert len(kept(service)) == 1


async def test_a_service_that_fails_while_it_keeps_a_machine(renderer, tmp_path, service, monkeypatch):
    async def dies(self, sandbox):
        raise SandboxError("the service cannot be reached")

    monkeypatch.setattr(Keeping, "keep", dies)
    async with EnvFactory(Ticking) as envs:
        with pytest.raises(AssertionError, match=r"not_parked.*cannot be reached"):
            await Host(envs, renderer, tmp_path / "parked").play(Parking(str(tmp_path / "parked")))
    assert (kept(service), running(service)) == ([], [])


async def test_a_machine_that_is_gone_is_said(renderer, tmp_path, service, monkeypatch):
    monkeypatch.setattr("agentrl_sandbox.lanes._FIRST_PAUSE_S", 0.001)
    async with EnvFactory(Ticking) as envs:
        host = Host(envs, renderer, tmp_path / "parked")
        place = host.parking()
        await host.play(place)
        (service / kept(service)[0]).unlink()
        with pytest.raises(ResumeError, match="there is no machine kept-"):
            await host.play(place, await place.take(host.ticket))
        await place.close()
        assert running(service) == []


async def test_machines_of_another_back_end_and_old_ones_are_refused():
    async with SandboxPool(Keeping(), SandboxSpec(), size=1, warm=0) as pool:
        with pytest.raises(ConfigError, match="kept by back end e2b, and this is folder"):
            async with pool.acquire(restore=FolderSnapshot("e2b", "x", 1e12)):
                pass
        with pytest.raises(SandboxError, match=r"older than spec\.lifetime_s"):
            async with pool.acquire(restore=FolderSnapshot("folder", "x", 1.0)):
                pass


async def test_a_back_end_that_keeps_none_gives_the_files(renderer, tmp_path, service):
    async with EnvFactory(TickingFiles) as envs:
        host = Host(envs, renderer, tmp_path / "parked")
        place = host.parking()
        await host.play(place)
        assert (kept(service), (await place.take(host.ticket)).machines) == ([], ())
        await place.close()


async def test_no_sandbox_is_kept_ready_of_a_machine_that_was_restored(service):
    backend = Keeping()
    async with SandboxPool(backend, SandboxSpec(), size=4, warm=2) as pool:
        async with pool.acquire() as box:
            kept_one = await pool.snapshot(box)
        async with pool.acquire(restore=kept_one):
            await asyncio.sleep(0.1)
            copies = [file for file in service.iterdir() if file.name.startswith("fake-")]
            assert len(copies) <= 1 + 2 + 2, "itself, and those that are warm for episodes and for grading"
            assert pool.lanes["episode"].recent.count(SandboxSpec(image=kept_one.image)) == 0


def test_machines_are_found_wherever_they_are():
    one, two = FolderSnapshot("folder", "a", 1.0), FolderSnapshot("folder", "b", 2.0)
    assert machines_in({"x": (1, [one]), "y": {"z": two}, "again": one}) == (one, two)
    assert machines_in([one, lambda: 0]) == (one,), "what cannot be pickled is reported where it is written"
    assert machines_in(b"x" * (1 << 20)) == ()


def rollout_of(envs, renderer):
    return Rollout(envs=envs, engine=ticker(renderer), renderer=renderer, options=EpisodeOptions())


async def test_leaves_go_on_in_copies_of_the_machine(renderer, service):
    async with EnvFactory(Ticking) as envs:
        tree = await EpisodeTree.play(rollout_of(envs, renderer), TASK, Budget(episodes=9), session_id="root")
        assert tree.root.reward == ENDS_AT
        async with tree:
            for turn in (1, 3):
                leaves = await tree.branch(turn, 3)
                assert [leaf.reward for leaf in leaves] == [ENDS_AT] * 3, "each counts on from the same number"
                assert [len(leaf.turns) for leaf in leaves] == [ENDS_AT + 1 - turn] * 3
            assert len(kept(service)) == ENDS_AT
        assert kept(service) == []
        assert len(await tree.branch(0, 2)) == 2, "the beginning needs none"
    assert running(service) == []


async def test_a_root_that_fails_or_is_cancelled_leaves_no_machine(renderer, service):
    class Breaks(Ticking):
        async def step(self, action):
            if kept(service):
                raise KeyError("a bug")
            return await super().step(action)

    async with EnvFactory(Breaks) as envs:
        with pytest.raises(Exception, match="a bug"):
            await EpisodeTree.play(rollout_of(envs, renderer), TASK, Budget(episodes=9), session_id="root")
        assert kept(service) == []

    hangs = asyncio.Event()

    class Hangs(Ticking):
        async def step(self, action):
            if kept(service):
                hangs.set()
                await asyncio.Event().wait()
            return await super().step(action)

    async with EnvFactory(Hangs) as envs:
        playing = asyncio.create_task(
            EpisodeTree.play(rollout_of(envs, renderer), TASK, Budget(episodes=9), session_id="root")
        )
        await hangs.wait()
        playing.cancel()
        await asyncio.wait([playing])
        assert kept(service) == []
    assert running(service) == []


@pytest.mark.thorough
def test_kill_9_between_any_two_steps(service, tmp_path):
    """`machines_killed.py` says what must come back after each. Its imports take two seconds, so it plays all."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.episode.machines_killed", str(tmp_path / "parked")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["kept", "parked", "taken", "restored", "saved", "ended", "released"]

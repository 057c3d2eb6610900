"""Partial rollout: aborted samples come back and go on where they stopped.

pytest -s tests/slime/test_partial.py -k storm        prints what was aborted, sampled and trained
"""

from __future__ import annotations

import asyncio
import copy
import os
import random
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from agentrl import ConfigError, adapt
from agentrl.engine import Generation
from agentrl.episode import shared as _loop_resources
from agentrl.episode.host_config import ParkingConfig
from agentrl.episode.parking import VERSION
from agentrl.episode.state import EpisodeState, Parked
from agentrl.errors import ResumeError
from agentrl.render import Rendered, RenderedSpan
from agentrl.slime.host import HostArgs
from agentrl.slime.resumption import Resumption, _warn_of_lost_ticket
from agentrl.slime.sample import to_sample
from agentrl.slime.task import from_sample
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import StopReason
from tests.slime.conftest import Sample
from tests.slime.partial import ENV_FILE, PARAMS, Accounted, Slime, account, check, script
from tests.slime.partial import slime as slime
from tests.slime.partial import world as world

ENVS = ["Adding", "Saved", "Replayed"]


# The storm: episodes aborted at random moments, ten times over

STORM = 64 if "AGENTRL_SOAK" in os.environ else 24
"""Episodes at once; `make soak` has more of them."""


@pytest.mark.thorough
@pytest.mark.parametrize("env", ENVS)
async def test_storm(slime, world, tmp_path, env):
    turns, chance = 12, random.Random(7)
    async with slime(env, turns, seconds=0.06, parking={"folder": str(tmp_path / "parked")}) as host:
        host.engine.queue_s = 0.06
        samples = [host.sample(i, turns, slow=0.06) for i in range(STORM)]
        in_a_turn = 0
        for _ in range(10):
            aborted = await host.rollout(samples, chance.uniform(0.05, 0.2))
            assert len(aborted) == STORM
            assert {sample.reward for sample in aborted} == {0.0}
            last = [host.engine.handed_out[sample.session_id][-1:] for sample in aborted]
            in_a_turn += sum(said[0].finish_reason == "abort" for said in last if said)
        assert await host.rollout(samples) == []
    for sample in samples:
        check(host, sample)
        assert account(sample).get("restarts", 0) == 0
        assert sum(sample.loss_mask) == account(sample)["ledger"]["sampled"]
        if env != "Replayed":
            assert world.ADDED[str(sample.index)] == list(range(1, turns)), "each side effect happened once"
    assert not world.OPEN
    assert list((tmp_path / "parked").iterdir()) == []
    trained = sum(sum(s.loss_mask) for s in samples)
    handed_out = sum(len(said.tokens) for all_of in host.engine.handed_out.values() for said in all_of)
    assert trained == handed_out
    calls = sum(map(len, world.ADDED.values()))
    print(
        f"\n{env}: episodes {len(samples)}, ended {len(samples)}, aborts {host.aborts} ({in_a_turn} in a turn), "
        f"resumed {sum(account(s).get('resumes', 0) for s in samples)}, restarts 0, tokens sampled {handed_out}, "
        f"trained {trained}, tool calls {calls} for {STORM * (turns - 1)}"
    )


@pytest.mark.thorough
async def test_storm_with_mask_offpolicy(slime, world):
    turns, chance = 8, random.Random(3)
    flags = {"mask_offpolicy_in_partial_rollout": True}
    async with slime("Saved", turns, seconds=0.05, args=flags) as host:
        samples = [host.sample(i, turns, slow=0.02) for i in range(16)]
        for _ in range(4):
            await host.rollout(samples, chance.uniform(0.05, 0.15))
        last = host.engine.version
        await host.rollout(samples)
    for sample in samples:
        assert "restarts" not in account(sample), account(sample)["restart_reason"]
        check(host, sample)
        fresh = sum(len(g.tokens) for g in host.engine.handed_out[sample.session_id] if g.weight_version == str(last))
        ledger = account(sample)["ledger"]
        # On a busy machine an episode may play in the last rollout alone, and then all of it is fresh.
        assert ledger["trained"] == fresh
        assert ledger["masked"].keys() <= {"off_policy"}
    masked = sum(account(sample)["ledger"]["masked"].get("off_policy", 0) for sample in samples)
    assert masked
    print(f"\nmask_offpolicy: {masked} tokens off_policy")


# One sample, aborted in each phase


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("phase", ["tool", "turn"])
async def test_aborted_in_each_phase(slime, world, env, phase):
    async with slime(env, seconds=0.2 if phase == "turn" else 0.0) as host:
        sample = host.sample(slow=0.3 if phase == "tool" else 0)
        begun = {
            "tool": lambda: world.OPEN and host.engine.handed_out[sample.session_id],
            "turn": lambda: host.engine.requests,
        }
        await host.rollout([sample], until=begun[phase])
        assert sample.status is sample.Status.ABORTED
        ticket = account(sample)["resume"]
        assert set(ticket) == {"version", "how", "key", "until"}
        assert ticket["how"] == {"Adding": "alive", "Saved": "snapshot", "Replayed": "replay"}[env]
        assert len(world.OPEN) == (env == "Adding"), "what is not kept alive is closed"
        sample.reward = 0.7  # stale: to be forgotten
        await host.rollout([sample])
        check(host, sample)
    assert account(sample)["resumes"] == 1
    assert account(sample)["stop"] == "done"


async def test_an_abort_before_anything_was_played_is_no_restart(slime, host):
    async with slime("Adding") as slime_:
        sample = slime_.sample()
        host.state.aborted = True
        await slime_.play(sample)
        assert (sample.status, slime_.engine.requests) == (sample.Status.ABORTED, [])
        assert "resume" not in account(sample)
        assert (sample.response_length, sample.loss_mask) == (1, [0])
        await slime_.rollout([sample])
        check(slime_, sample)
    assert not {"restarts", "resumes", "restart_reason"} & set(account(sample))


async def aborted_once(host, world, **metadata):
    """A sample that was aborted in its first tool."""
    sample = host.sample(slow=0.1, **metadata)
    world.BEGUN.clear()
    await host.rollout([sample], until=lambda: world.BEGUN)
    assert sample.status is sample.Status.ABORTED
    return sample


async def restarted(host, sample, reason):
    """It begins anew, says why, and ends."""
    asked = len(host.engine.requests)
    del host.engine.handed_out[sample.session_id], host.engine.asked[sample.session_id]
    host.engine.positions.clear()
    await host.rollout([sample])
    check(host, sample)
    assert host.engine.requests[asked] == host.engine.requests[0]
    said = account(sample)
    assert said["restarts"] == 1
    assert "resumes" not in said
    assert reason in said["restart_reason"]


async def test_an_env_is_open_for_a_bounded_time(slime, world):
    async with slime("Adding", parking={"keep_s": 0.2}) as host:
        sample = await aborted_once(host, world)
        assert world.OPEN
        await asyncio.sleep(0.4)
        assert not world.OPEN
        await restarted(host, sample, "its environment is not open here")


@pytest.mark.parametrize("env", ["Saved", "Replayed"])
async def test_a_file_is_kept_for_a_bounded_time(slime, world, tmp_path, env):
    async with slime(env, parking={"keep_s": 0.2, "folder": str(tmp_path)}) as host:
        sample = await aborted_once(host, world)
        await asyncio.sleep(0.3)
        await restarted(host, sample, "parked for longer than parking.keep_s")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("env", ENVS)
async def test_a_ticket_is_good_for_one_use(slime, world, env):
    async with slime(env) as host:
        sample = await aborted_once(host, world)
        twin = copy.deepcopy(sample)
        await host.rollout([sample])
        check(host, sample)
        await restarted(host, twin, "is not open here" if env == "Adding" else "used before")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda s: account(s)["resume"].update(version=VERSION - 1),
            f"its ticket has version {VERSION - 1}; this agentrl reads {VERSION}",
        ),
        (lambda s: account(s)["resume"].update(key="../../etc/passwd"), "its ticket names nothing"),
        (lambda s: s.tokens.__setitem__(3, 7), "its tokens are not those that were parked"),
        (lambda s: s.loss_mask.pop(), "its tokens are not those that were parked"),
    ],
)
async def test_a_sample_that_somebody_changed(slime, world, change, reason):
    async with slime("Adding") as host:
        sample = await aborted_once(host, world)
        change(sample)
        await restarted(host, sample, reason)


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ("Fickle", "replay: the environment diverged: it answered turn 1"),
        ("Gone", "snapshot: InfraError: the snapshot's machine is gone"),
        ("Locked", "it was not parked: TypeError: cannot pickle '_thread.lock' object"),
    ],
)
async def test_what_cannot_come_back_restarts(slime, world, env, reason):
    async with slime(env) as host:
        sample = await aborted_once(host, world)
        assert not world.OPEN
        await restarted(host, sample, reason)


async def test_an_env_that_declares_nothing_is_never_replayed(slime, world):
    async with slime("Adding", parking={"keep_s": 0.1}) as host:
        sample = await aborted_once(host, world)
        assert world.ADDED["0"] == [1]
        await asyncio.sleep(0.2)
        del world.ADDED["0"]
        await restarted(host, sample, "not open here")
        assert world.ADDED["0"] == [1, 2], "what it adds now, a model has asked for anew"


async def test_a_full_disk_is_no_error_of_the_episode(slime, world, monkeypatch, caplog):
    def write(self, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("agentrl.episode.parking._unparked", set())
    monkeypatch.setattr(Path, "write_bytes", write)
    async with slime("Saved") as host:
        samples = [host.sample(i, slow=0.1) for i in range(4)]
        await host.rollout(samples, until=lambda: len(host.engine.requests) >= 4)
        assert {account(s)["info"]["not_parked"] for s in samples} == {"OSError: [Errno 28] No space left on device"}
        assert caplog.text.count("cannot be kept") == 1
        assert not world.OPEN
        await restarted(host, samples[0], "it was not parked: OSError: [Errno 28]")


async def test_a_folder_that_others_can_write_to_is_refused(slime, tmp_path):
    tmp_path.chmod(0o777)
    async with slime("Saved", parking={"folder": str(tmp_path)}) as host:
        with pytest.raises(ConfigError, match=r"parking.folder .*: others can write to it"):
            await host.play(host.sample())


async def test_a_folder_that_cannot_be_made(slime, tmp_path):
    (tmp_path / "file").touch()
    async with slime("Saved", parking={"folder": str(tmp_path / "file" / "x")}) as host:
        with pytest.raises(ConfigError, match=r"parking.folder .*: Not a directory; name a folder of your own"):
            await host.play(host.sample())


@pytest.mark.parametrize(
    ("args", "config", "how"),
    [
        ({"partial_rollout": False}, {}, None),
        ({}, {"parking": {"keep_s": 0}}, None),
        ({"partial_rollout": False, "rollout_function_path": "slime.rollout.fully_async_rollout.f"}, {}, "alive"),
    ],
)
async def test_parked_only_where_the_sample_comes_back(slime, world, args, config, how):
    async with slime("Adding", args=args, **config) as host:
        sample = await aborted_once(host, world)
        assert account(sample).get("resume", {}).get("how") == how
        assert bool(world.OPEN) == (how is not None)
        if how is None:
            await restarted(host, sample, "it was not parked: parking.keep_s is 0, or slime did not say")


async def test_zeros_of_the_host_stay(slime, world):
    """Somebody's hook, not slime's flag: token by token."""
    async with slime("Saved") as host:
        sample = await aborted_once(host, world)
        first = sample.loss_mask.index(1)
        sample.loss_mask[first] = sample.loss_mask[first + 2] = 0
        await host.rollout([sample])
        check(host, sample)
    assert account(sample)["ledger"]["masked"] == {"host": 2}
    assert sample.loss_mask[first : first + 4] == [0, 1, 0, 1]


@pytest.mark.parametrize("env", ENVS)
async def test_cancelled_on_return(slime, world, env):
    async with slime(env, turns=4) as host:
        sample = await aborted_once(host, world)
        host.engine.turn_seconds = 30.0
        playing = asyncio.create_task(host.play(sample))
        async with asyncio.timeout(10):
            while len(host.engine.requests) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        assert not world.OPEN


def test_the_end_of_a_loop_closes_what_is_parked_there(serve, make_args, host, renderer, world):
    """And another loop of the process, where an evaluation runs meanwhile, notices nothing."""

    async def train(evaluated):
        async with serve(Accounted(script(3), renderer)) as (engine, url):
            args = {"partial_rollout": True, "mask_offpolicy_in_partial_rollout": False}
            slime = Slime(host, make_args(url, env=f"{ENV_FILE}:Adding", args=args), engine)
            sample = await aborted_once(slime, world)
            assert len(world.OPEN) == 1
            other = threading.Thread(target=lambda: evaluated.append(asyncio.run(evaluate(copy.deepcopy(sample)))))
            other.start()
            await asyncio.to_thread(other.join)
            assert len(world.OPEN) == 1, "the evaluation has closed its own"
            return sample

    async def evaluate(foreign):
        async with serve(Accounted(script(3), renderer)) as (engine, url):
            args = {"partial_rollout": True, "mask_offpolicy_in_partial_rollout": False}
            slime = Slime(host, make_args(url, env=f"{ENV_FILE}:Adding", args=args), engine)
            sample = slime.sample(7)
            await adapt(slime.args, sample, PARAMS, evaluation=True)
            await slime.play(foreign)
            return sample.reward, account(foreign)["restart_reason"]

    evaluated = []
    asyncio.run(train(evaluated))
    assert evaluated[0][0] == 1.0
    assert "in another loop or process" in evaluated[0][1]
    assert not world.OPEN
    assert not _loop_resources.loops


# Metadata that is not as agentrl left it


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("left", [{}, {"of": "a hook"}, None])
async def test_a_hook_that_replaces_the_metadata_loses_no_episode(slime, world, caplog, env, left):
    _warn_of_lost_ticket.cache_clear()
    async with slime(env, seconds=0.05) as host:
        samples = [host.sample(i, slow=0.02) for i in range(2)]
        aborted = await host.rollout(samples, 0.1)
        assert aborted
        for sample in aborted:
            sample.metadata = copy.deepcopy(left)
        assert await host.rollout(samples) == []
        for sample in samples:
            check(host, sample)
        assert [account(sample).get("resumes", 0) for sample in aborted] == [1] * len(aborted)
        assert not world.OPEN, "no Env stays open until parking.keep_s"
    assert caplog.text.count("a hook has replaced its metadata") == 1


async def test_an_episode_that_starts_anew_takes_no_old_ticket(slime, world):
    """A hook that also cleared the tokens wants another episode."""
    async with slime("Adding", seconds=0.05) as host:
        sample = host.sample(0, slow=0.02)
        assert await host.rollout([sample], 0.1)
        sample.metadata, sample.tokens, sample.response_length, sample.loss_mask = {}, [], 0, None
        host.engine.handed_out.clear()
        assert await host.rollout([sample]) == []
        assert (account(sample)["restarts"], "resumes" in account(sample)) == (1, False)
        assert not world.OPEN


@pytest.mark.parametrize("own", ["mine", 3, {}, {"difficulty": 2}, {"resumes": 9}, [1]])
async def test_a_row_may_use_agentrls_key(slime, world, own):
    async with slime("Adding", seconds=0.05) as host:
        sample = host.sample(0, slow=0.02, agentrl=copy.deepcopy(own))
        assert await host.rollout([sample], 0.1) == [sample]
        assert await host.rollout([sample]) == []
    assert (account(sample)["stop"], account(sample)["resumes"], account(sample)["row"]) == ("done", 1, own)
    assert world.SEEN["0"]["agentrl"] == own, "the Env has it as the row gave it"
    assert from_sample(SimpleNamespace(), sample).metadata["agentrl"] == own


async def test_what_an_earlier_run_wrote_into_a_row_is_not_this_runs(slime):
    async with slime("Adding") as host:
        old = {"stop": "aborted", "session_id": "of another run", "turns": 2, "restarts": 4, "resume": {"key": "x"}}
        sample = host.sample(0, agentrl=old)
        assert await host.rollout([sample]) == []
    assert {"restarts", "resumes"} & account(sample).keys() == set()
    check(host, sample)


@pytest.mark.parametrize("session", ["s-0", "another"])
async def test_a_sample_aborted_before_its_prompt_takes_what_a_dead_process_left(session):
    """slime had sent it again, without a ticket, to a process that saved each turn and was killed."""
    never = Trajectory(session_id="s-0")
    never.stop = StopReason.ABORTED
    sample = to_sample(never, Sample(session_id="s-0"), decode=lambda _: "")
    assert sample.tokens == [0, 0], "slime's loss needs a token"
    played = Trajectory(session_id="s-0")
    played.append_prompt(Rendered((5, 6), (RenderedSpan("prompt", 0, 2),)))
    played.append_model(Generation((7, 8), (-1.0, -1.0), "stop"))
    left = Parked("replay", EpisodeState(played), None)

    class Folder:
        shared = True

        def key(self, name):
            return name

        def noted(self, name):
            return None

        async def take_key(self, key, seconds, stopped):
            if key != "s-0":
                raise ResumeError("its saved state is gone")
            return left

    resumption = Resumption(Folder(), ParkingConfig(), "s-0", session)
    found = await resumption.take(HostArgs(), sample)
    assert found is (left if session == "s-0" else None)
    assert (resumption.resumes, resumption.restarts) == (int(session == "s-0"), 0)

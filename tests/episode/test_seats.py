"""Episodes of an Env with seats: who reads what, whose turn it is, rewards, ends, failures, resuming."""

from __future__ import annotations

import pickle

import pytest

from agentrl import (
    ConfigError,
    Env,
    EnvFactory,
    EpisodeHooks,
    EpisodeOptions,
    InfraError,
    Limits,
    ResumeError,
    StepResult,
    StopReason,
    Task,
    resume_seats,
    run_episode,
    run_seats,
)
from agentrl.engine import ScriptedEngine
from agentrl.testing import call
from tests.episode.seat_envs import Duel, Kept, Shop


async def play(renderer, left, right, env=None, **given):
    engines = {"left": ScriptedEngine(left, renderer), "right": ScriptedEngine(right, renderer)}
    return await run_seats(
        env or Duel(), Task(id="t"), engine=engines["left"], renderer=renderer, players=engines, **given
    )


def texts(trajectory):
    return [message["content"] for message in trajectory.messages]


async def test_each_seat_has_its_own_conversation_and_reward(renderer):
    played = await play(renderer, ["1", "3"], ["2"])
    left, right = played["left"], played["right"]
    assert texts(left) == ["Say numbers.\n\nYou are left. Said: nothing.", "1", "You are left. Said: 1 2.", "3"]
    assert texts(right) == ["Say numbers.\n\nYou are right. Said: 1.", "2"]
    assert [turn.reward for turn in left.turns] == [0.25, 1.0]
    assert (left.reward, right.reward) == (1.25, -0.75)
    assert {t.stop for t in played.values()} == {StopReason.DONE}
    assert (left.seat, right.seat) == ("left", "right")
    for trajectory in played.values():
        trajectory.verify()
        assert trajectory.ledger.trained == trajectory.ledger.sampled > 0


async def test_tools_belong_to_a_seat_and_reset_chooses_who_begins(renderer):
    seller = ScriptedEngine([call("price", item="tea"), "It costs 3."], renderer)
    buyer = ScriptedEngine(["Yes."], renderer)
    played = await run_seats(Shop(), Task(), engine=seller, renderer=renderer, players={"buyer": buyer})
    assert texts(played["seller"])[1:] == ["", "tea: 3", "It costs 3."]
    assert texts(played["buyer"]) == ["It costs 3.", "Yes."]
    assert [len(t.tools) for t in played.values()] == [0, 1]
    assert {seat: t.reward for seat, t in played.items()} == {"buyer": 0.5, "seller": 1.0}


async def test_a_seats_bad_calls_end_the_episode_for_all(renderer):
    bad = {"role": "assistant", "content": "<tool_call>\n{broken\n</tool_call>"}
    seller = ScriptedEngine([bad["content"]] * 5, renderer)
    played = await run_seats(Shop(), Task(), engine=seller, renderer=renderer)
    assert {seat: str(t.stop) for seat, t in played.items()} == {"buyer": "done", "seller": "bad_calls"}
    assert played["seller"].info["ended_by"] == "seller"
    assert [turn.bad_call for turn in played["seller"].turns] == ["structural"] * 3
    assert played["buyer"].turns == []


async def test_a_limit_of_one_seat_is_its_own_reason(renderer):
    played = await play(renderer, ["1", "3"], ["2"], options=EpisodeOptions(limits=Limits(turns=1)))
    assert {seat: str(t.stop) for seat, t in played.items()} == {"left": "max_turns", "right": "done"}
    assert {t.info["ended_by"] for t in played.values()} == {"left"}


async def test_a_broken_environment_fails_every_seat(renderer):
    played = await play(renderer, ["1"], ["break"])
    assert {t.stop for t in played.values()} == {StopReason.FAILED}
    assert {t.failure.kind for t in played.values()} == {"environment"}


async def test_the_deadline_is_the_episodes(renderer):
    played = await play(renderer, ["1"], ["2"], options=EpisodeOptions(limits=Limits(episode_s=1e-4)))
    assert {t.stop for t in played.values()} == {StopReason.DEADLINE}


async def test_a_seat_that_the_env_does_not_have(renderer):
    class Lost(Duel):
        def step(self, action):
            return StepResult(next_seat="middle")

    played = await play(renderer, ["1"], [], env=Lost())
    assert "names the seat 'middle'" in played["left"].failure.error
    engine = ScriptedEngine([], renderer)
    with pytest.raises(ConfigError, match="no seat 'middle'"):
        await run_seats(Duel(), Task(), engine=engine, renderer=renderer, players={"middle": engine})


async def test_rewards_before_a_seats_first_turn(renderer):
    class AtOnce(Duel):
        def step(self, action):
            return StepResult(done=True, rewards={"left": 1.0, "right": -1.0})

    played = await play(renderer, ["1"], [], env=AtOnce())
    assert [t.reward for t in played.values()] == [1.0, -1.0]
    assert played["right"].turns == []


class Open(Duel):
    deterministic = False


@pytest.mark.parametrize("cls", [Duel, Kept, Open])
@pytest.mark.parametrize("when", range(1, 12))
async def test_an_aborted_episode_resumes_at_the_same_token(renderer, cls, when):
    """The flag goes up at the n-th time that it is read, and down again before the episode resumes."""
    whole = await play(renderer, ["1", "3"], ["2"], session_id="s")
    asked, kept = 0, []

    def aborted():
        nonlocal asked
        asked += 1
        return asked == when or bool(kept)

    async def park(parked):
        kept.append(pickled(parked) if parked.env is None else parked)

    hooks = EpisodeHooks(aborted=aborted, park=park)
    engines = {"left": ScriptedEngine(["1", "3"], renderer), "right": ScriptedEngine(["2"], renderer)}
    given = {"engine": engines["left"], "renderer": renderer, "players": engines}
    played = await run_seats(cls(), Task(id="t"), session_id="s", hooks=hooks, **given)
    if not kept:
        assert played["left"].stop in (StopReason.DONE, StopReason.ABORTED)
        return
    assert {t.stop for t in played.values()} == {StopReason.ABORTED}
    played = await resume_seats(kept[0], kept[0].env or cls(), **given)
    for seat, trajectory in played.items():
        assert (trajectory.tokens, trajectory.reward) == (whole[seat].tokens, whole[seat].reward)
        assert trajectory.stop is StopReason.DONE
        trajectory.verify()


def pickled(parked):
    return pickle.loads(pickle.dumps(parked))


async def test_another_world_is_not_resumed(renderer):
    class Other(Duel):
        def observe(self, seat):
            return "Another world."

    kept = []

    async def park(parked):
        kept.append(pickled(parked))

    engines = {"left": ScriptedEngine(["1", "3"], renderer), "right": ScriptedEngine(["2"], renderer)}
    given = {"engine": engines["left"], "renderer": renderer, "players": engines}
    turns = []
    hooks = EpisodeHooks(aborted=lambda: len(turns) > 1, park=park, on_turn=turns.append)
    await run_seats(Duel(), Task(id="t"), hooks=hooks, **given)
    with pytest.raises(ResumeError, match="diverged"):
        await resume_seats(kept[0], Other(), **given)


async def test_equal_prompts_of_two_seats_get_different_seeds(renderer):
    seeds = {}

    class Seen(ScriptedEngine):
        async def generate(self, ids, params, *, session_id="", rid=""):
            seeds.setdefault(session_id, params["sampling_seed"])
            return await super().generate(ids, params, session_id=session_id, rid=rid)

    options = EpisodeOptions(sampling_params={"sampling_seed": 5})
    for _ in range(2):
        engine = Seen([], renderer)
        given = {"left": Seen(["1", "3"], renderer), "right": Seen(["2"], renderer)}
        before = dict(seeds)
        await run_seats(
            Duel(), Task(), engine=engine, renderer=renderer, players=given, options=options, session_id="s"
        )
        assert before in ({}, seeds)
    assert seeds["s-left"] != seeds["s-right"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"seats": ("one",)}, "two or more"),
        ({"seats": ("a", "a")}, "two or more"),
        ({"seats": ("a", "b")}, "write observe"),
    ],
)
def test_classes_with_bad_seats_are_refused(body, said):
    with pytest.raises(ConfigError, match=said):
        EnvFactory(type("Bad", (Env,), {**body, "step": lambda self, action: None}))


async def test_run_episode_names_the_function_to_use(renderer):
    with pytest.raises(ConfigError, match="run_seats"):
        await run_episode(Duel(), Task(), engine=ScriptedEngine([], renderer), renderer=renderer)


async def test_what_a_step_tells_is_in_every_seats_record(renderer):
    class Told(Duel):
        def step(self, action):
            return StepResult(done=True, info={"end": "early"})

    played = await play(renderer, ["1"], [], env=Told())
    assert {t.info["end"] for t in played.values()} == {"early"}


class Forgetful(ScriptedEngine):
    """Notes the sessions that it is told have ended."""

    def __init__(self, turns, renderer):
        super().__init__(turns, renderer)
        self.forgotten = []

    def forget(self, session_id):
        self.forgotten.append(session_id)


async def test_every_seats_session_is_forgotten_at_the_end(renderer):
    engine = Forgetful(["one", "two", "three"], renderer)
    played = await run_seats(Duel(), Task(id="t"), engine=engine, renderer=renderer)
    assert sorted(engine.forgotten) == sorted(trajectory.session_id for trajectory in played.values())


async def test_an_episodes_session_is_forgotten_however_it_ends(renderer):
    class Single(Env):
        async def step(self, action):
            raise InfraError("gone")

    engine = Forgetful(["one"], renderer)
    trajectory = await run_episode(Single(), Task(prompt="x"), engine=engine, renderer=renderer)
    assert trajectory.failure is not None
    assert engine.forgotten == [trajectory.session_id]

"""Summaries in the embedded trainer: each segment is a row, and the reward of the episode counts once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from agentrl import Limits, run_episode
from agentrl.episode.options import EpisodeOptions
from agentrl.testing import call, rollout
from agentrl.train import Trainer, train
from agentrl.trajectory.trajectory import Trajectory, total_ledger
from tests.episode import compacting
from tests.episode.compacting import TASK, Corridor, Short, Walker, coins_in, oracle
from tests.train.toy_runs import lines, quiet

SHORT = {"turns": 13, "context": 780, "compact_at": 330}


async def test_the_rows_are_those_of_the_oracle_and_the_reward_counts_once(make_config, renderer):
    """Two walks of sixty turns: the first finds the sum, the second gives up after five segments."""

    def give_up(text):
        said = compacting.next_turn(text)
        return said if isinstance(said, str) or text.count("coins.") < 60 else "0"

    async def walk(say):
        engine = Walker(renderer, say)
        options = EpisodeOptions(limits=Limits(**compacting.TWELVE))
        t = await run_episode(Corridor(), TASK, engine=engine, renderer=renderer, options=options)
        return t, oracle(engine.log)

    walks = [await walk(compacting.next_turn), await walk(lambda text: "0" if "I have" in text else give_up(text))]
    config = make_config(algorithm="grpo", limits=compacting.TWELVE)
    rows, flat = Trainer(config).rows([[t for t, _ in walks]])

    assert flat == 0
    expected = [row for _, of_walk in walks for row in of_walk]
    assert [t.reward for t, _ in walks] == [1.0, 0.0]
    assert [[*row.tokens] for row in rows] == [row.ids for row in expected]
    for row, wanted_row in zip(rows, expected, strict=True):
        trained = [len(wanted_row.prompt) + i for i, mask in enumerate(wanted_row.mask) if mask]
        assert [*row.positions] == trained
        assert [*row.log_probs] == [wanted_row.log_probs[i - len(wanted_row.prompt)] for i in trained]
    weights = [[weight for row in rows[: len(walks[0][1])] for weight in row.weights]]
    weights.append([weight for row in rows[len(walks[0][1]) :] for weight in row.weights])
    for values, sign in zip(weights, (1, -1), strict=True):
        assert len(set(values)) == 1, "one advantage for all tokens of an episode, in any segment"
        assert values[0] * sign > 0
    assert abs(weights[0][0]) == pytest.approx(abs(weights[1][0])), "both count as one member of the group"


def player(task):
    for _ in range(12):
        yield call("walk")
    yield str(sum(map(coins_in, range(1, 13))))


def notes(trajectory):
    return f"I have {sum(coins_in(i) for i in range(1, trajectory.turn_count + 1 - trajectory.summaries))} coins."


@pytest.mark.thorough
def test_a_run_learns_from_every_segment(make_config, renderer, tmp_path):
    """`tiny` imitates players with summaries, then samples, summarizes and learns by itself."""
    demos = [
        asyncio.run(rollout(Short(), TASK, player(TASK), renderer=renderer, limits=Limits(**SHORT), summary=notes))
        for _ in range(4)
    ]
    assert {t.summaries for t in demos} == {2}
    file = tmp_path / "demos.jsonl"
    file.write_text("".join(json.dumps(t.to_json()) + "\n" for t in demos))
    (tmp_path / "one.jsonl").write_text(json.dumps({"prompt": TASK.prompt, "label": 0, "id": "corridor"}) + "\n")
    config = make_config(
        env=f"{Path(compacting.__file__)}:Short",
        model="tiny",
        data=tmp_path / "one.jsonl",
        steps=2,
        prompts_per_step=1,
        limits={**SHORT, "max_tokens_per_turn": 60},
        warm_start={"demonstrations": file, "steps": 130, "batch_size": 6},
        keep={"groups": 2},
    )

    train(config, console=quiet())

    episodes = [
        Trajectory.from_json(json.loads(line))
        for stored in sorted((config.out / "trajectories").glob("*.jsonl"))
        for line in stored.read_text().splitlines()
    ]
    summarized = [t for t in episodes if t.summaries]
    assert any(len(t.segments) == 3 and t.reward == 1.0 for t in summarized), "the model went on after two summaries"
    for t in episodes:
        t.verify()
        assert len(t.segments) == t.summaries + (not t.turns[-1].summary)
    by_step = lines(config.out)
    ledger = total_ledger(segment for t in episodes for segment in t.segments)
    assert sum(line["sampled_tokens"] for line in by_step) == ledger.sampled
    assert max(line["logprob_diff_mean"] for line in by_step) < 1e-4, "the trainer reads what the engine sampled"

"""fact_search: the facts are real, the splits are apart, gold scores 1 and noop 0, and only what was found counts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from pydantic import ValidationError

from agentrl import ConfigError, EnvFactory, StopReason, Task
from agentrl.testing import call, rollout
from agentrl_envs.fact_search import FactSearch, gold, load_facts, make_tasks, mediocre, noop, write_tasks


@pytest.fixture(scope="module")
def tasks():
    return make_tasks("train", 300), make_tasks("eval", 300)


async def scores(player, tasks):
    async with EnvFactory(FactSearch) as envs:
        return [(await rollout(envs.make(), task, player(task))).reward for task in tasks]


def test_the_facts_are_the_worlds():
    facts = load_facts()
    assert (len(facts.countries), len(facts.cities)) == (len(set(facts.countries)), len(set(facts.cities)))
    passages = facts.passages()
    assert "France is a country in Europe. The capital of France is Paris." in passages
    assert any(p.startswith("Lyon is a city in France. Population ") for p in passages)
    assert len(facts.cities) > 5000


@pytest.mark.thorough
def test_training_and_held_out_questions_share_no_entity_asked_about(tasks):
    train, held_out = ({t.metadata["searches"][0] for t in split} for split in tasks)
    assert not train & held_out
    assert {t.metadata["kind"] for t in tasks[0]} == {"country", "capital", "two_hop"}
    two_hops = [t for t in tasks[1] if t.metadata["kind"] == "two_hop"]
    assert all(len(t.metadata["searches"]) == 2 for t in two_hops)
    assert re.fullmatch(r"What is the capital of the country that .+ is in\?", two_hops[0].prompt)


@pytest.mark.thorough
async def test_gold_scores_one_and_noop_zero(tasks):
    for split in tasks:
        assert set(await scores(gold, split[:40])) == {1.0}
        assert set(await scores(noop, split[:40])) == {0.0}


@pytest.mark.thorough
async def test_the_mediocre_player_mostly_guesses_and_then_wins_nothing(tasks):
    played = tasks[0][:150]
    won = await scores(mediocre, played)
    assert 0.25 < sum(won) / len(won) < 0.45
    guesses = [task for task, reward in zip(played, won, strict=True) if reward == 0.0]
    assert next(mediocre(guesses[0])).startswith("Answer: ")
    assert next(mediocre(guesses[0])) == next(mediocre(guesses[0]))


async def test_a_right_guess_and_a_wrong_search_are_worth_nothing():
    task = Task(prompt="What is the capital of France?", label="Paris")
    async with EnvFactory(FactSearch) as envs:
        guessed = await rollout(envs.make(), task, ["Answer: Paris"])
        elsewhere = await rollout(envs.make(), task, [call("search", query="Peru"), "Answer: Paris"])
        unformatted = await rollout(envs.make(), task, [call("search", query="France"), "Paris"])
        found = await rollout(envs.make(), task, [call("search", query="France"), "Answer: Paris"])
    assert [t.reward for t in (guessed, elsewhere, unformatted, found)] == [0.0, 0.0, 0.0, 1.0]
    assert found.stop is StopReason.DONE


async def test_search_says_when_it_finds_nothing_and_returns_as_many_as_configured():
    async with EnvFactory(FactSearch, {"passages": 3}) as envs:
        env = envs.make()
        assert await env.search("qqqq zzzz") == "No result."
        assert len((await env.search("capital of France")).splitlines()) == 3
    with pytest.raises(ConfigError, match="passages"):
        EnvFactory(FactSearch, {"passages": 0})
    assert not issubclass(ConfigError, ValidationError)


@pytest.mark.thorough
def test_written_tasks_are_rows_for_agentrl_and_slime(tmp_path):
    train, held_out = write_tasks(tmp_path / "data", train=5, held_out=3)
    rows = [json.loads(line) for line in train.read_text().splitlines()]
    assert [set(row) for row in rows] == [{"id", "prompt", "label", "metadata"}] * 5
    assert len(held_out.read_text().splitlines()) == 3
    again, _ = write_tasks(tmp_path / "again", train=5, held_out=3)
    assert again.read_text() == train.read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("imported", [False, True], ids=["installed", "imported"])
def test_the_index_does_not_start_jax(tmp_path, imported):
    """bm25s calls JAX where it is installed, and JAX takes 75 % of a GPU's memory at its first call."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("")
    (tmp_path / "jax" / "lax.py").write_text("def top_k(*_): raise SystemExit('JAX was started')\n")
    program = (
        f"import sys\n{'import jax.lax' if imported else ''}\nfrom agentrl_envs.fact_search.facts import Index\n"
        "print(Index(['one city', 'two towns']).search('city', 1))\n"
        f"assert ('jax' in sys.modules) is {imported}"
    )
    paths = [str(tmp_path), *filter(None, sys.path)]
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.stdout, ran.returncode) == ("('one city',)\n", 0), ran.stderr

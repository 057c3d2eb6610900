"""A part of `make gpu`: what it is asked to do, and its figures. The training itself is run by tests/chain."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the parts train")
pytest.importorskip("bm25s", reason="the parts search")

from agentrl.train import TrainConfig
from agentrl.types import Task
from agentrl_envs.search_r1 import searcher
from benchmarks import gpu_parts
from benchmarks.gpu_data import Data, demonstrations, search_data
from benchmarks.gpu_parts import (
    Job,
    Kept,
    arithmetic,
    cannot_run,
    chain_figures,
    gain,
    make_config,
    score,
    scores,
    teaching,
    told_gain,
)

JOB = {"seconds": 1.0, "small": False, "device": "cuda", "model": "smollm2-135m", "data": None}
DATA = Data(
    Path("train.jsonl"),
    Path("held_out.jsonl"),
    Path("shown.jsonl"),
    Path("corpus.jsonl"),
    lambda task: iter(()),
    "a corpus",
)


def config(part, **changes):
    job = Job(part=part, folder=Path("somewhere"), **{**JOB, **changes})
    return make_config(job, replace(DATA, corpus=None) if part == "demo" else DATA)


@pytest.mark.parametrize("part", ["demo", "search-full"])
@pytest.mark.parametrize("model", ["tiny", "smollm2-135m"])
@pytest.mark.parametrize("data", [None, "given"])
@pytest.mark.parametrize("small", [False, True])
def test_every_configuration_is_one(part, model, data, small, tmp_path):
    keys = config(part, model=model, data=data, small=small)
    keys["warm_start"]["demonstrations"] = tmp_path
    made = TrainConfig.make(**keys)
    assert made.steps == (2 if small else {"demo": 80, "search-full": 100}[part])
    assert made.reward == ("benchmarks.gpu_data:even" if small else None)


def test_lora_differs_from_full_by_its_adapters_and_learning_rates():
    full, lora = config("search-full"), config("search-lora")
    assert {key for key in full | lora if lora.get(key) != full.get(key)} == {"lora", "learning_rate", "warm_start"}
    assert "learning_rate" not in lora  # its own default
    assert lora["warm_start"]["learning_rate"] == pytest.approx(5 * full["warm_start"]["learning_rate"])


def test_a_seed_is_part_of_the_name():
    first, second = config("search-lora"), config("search-lora-seed-2")
    assert {key for key in first if first[key] != second[key]} == {"seed"}
    assert (first["seed"], second["seed"]) == (0, 2)


def test_intervals():
    found = score([1.0] * 50 + [0.0] * 50)
    assert (found["mean"], found["tasks"]) == (0.5, 100)
    low, high = found["interval"]
    assert 0.38 < low < 0.42 < 0.58 < high < 0.62  # 0.5 -+ 1.96 x 0.05
    assert score([1.0] * 9)["interval"] == [1.0, 1.0]


def test_scores_by_source(tmp_path):
    rows = [("nq", 1.0), ("nq", 0.0), ("hotpot", None)]
    episodes = [{"reward": reward, "task": {"metadata": {"data_source": source}}} for source, reward in rows]
    file = tmp_path / "eval.jsonl"
    file.write_text("".join(json.dumps(episode) + "\n" for episode in episodes))
    found = scores(file)
    assert (found["mean"], found["tasks"]) == (0.3333, 3)
    assert {name: part["mean"] for name, part in found["by_source"].items()} == {"nq": 0.5, "hotpot": 0.0}


def test_a_gain_is_the_mean_difference_of_the_same_tasks(tmp_path):
    before = [(str(n), float(n % 2)) for n in range(40)]
    after = [(name, 1.0) for name, _ in before[::-1]]  # in another order
    for file, rewards in (("eval_warm", before), ("eval_final", after)):
        rows = [json.dumps({"task": {"id": name}, "reward": reward}) for name, reward in rewards]
        (tmp_path / f"{file}.jsonl").write_text("\n".join(rows) + "\n")
    found = gain(tmp_path)
    assert (found["mean"], found["tasks"]) == (0.5, 40)
    assert 0.3 < found["interval"][0] < 0.4 < 0.6 < found["interval"][1] < 0.7


def test_the_share_of_groups_that_teach():
    steps = [{"zero_advantage_groups": zero, "groups": 4} for zero in (0, 1, 2, 2, 3, 4, 4, 4, 3, 4)]
    assert teaching(steps) == {"first": 0.875, "last": 0.125}


def test_the_price_is_the_runs(tmp_path):
    keys = config("demo", usd_per_hour=2.5)
    keys["warm_start"]["demonstrations"] = tmp_path
    made = TrainConfig.make(**keys)
    assert made.usd_per_hour == 2.5
    held_out = {"before": {"mean": 0.0}, "after RL": {"mean": 0.5}}
    bill = {"total_seconds": 600.0, "usd": 0.4167}
    assert told_gain(made, held_out, bill) == "held out 0.000 -> 0.500 in 10.0 minutes, $0.42"


def test_what_is_measured_adds_up_over_calls(tmp_path):
    for seconds, gib in ((3.0, 2.0), (4.0, 1.0)):
        kept = Kept(tmp_path / "kept.json")
        kept.add("rollout_s", seconds)
        kept.most("rollout_gib", gib)
        kept.write()
    assert Kept(tmp_path / "kept.json").values == {"rollout_s": 7.0, "rollout_gib": 2.0}


def test_memory_by_arithmetic(tmp_path):
    keys = config("demo", small=True, device="cpu")
    keys["warm_start"]["demonstrations"] = tmp_path
    found = arithmetic(TrainConfig.make(**keys))
    assert found["weights"] == pytest.approx(508_000 * 4 / 2**30, abs=1e-3)
    assert found["learning"] >= found["weights"] + found["optimizer"] > 2.9 * found["weights"]
    assert "fixed" not in found


def test_the_chain_says_why_it_cannot_run(monkeypatch):
    monkeypatch.delenv("SLIME_SRC", raising=False)
    assert cannot_run() == "SLIME_SRC is not set: give the root of slime's source"
    monkeypatch.setenv("SLIME_SRC", "/slime")
    monkeypatch.setattr(gpu_parts, "_CHAIN_NEEDS", ("json", "no_such.module", "neither"))
    assert cannot_run().startswith("no_such.module, neither not installed: pip install megatron-core==0.16.1 ray ")


def test_figures_of_the_chain():
    step = {"sampled_tokens": 100, "rollout_s": 2.0, "read_tokens": 300, "train_s": 3.0, "handover_s": 1.0}
    steps = [{**step, "reward": 0.25 * n, "gap_mean": 0.001 * n, "gap_max": 0.01, "peak_gib": n} for n in (1, 2)]
    found = chain_figures({"steps": 2, "held_out_rewards": {"before": [0.0], "after": [1.0]}}, steps, small=False)
    assert (found["rollout_tokens_per_second"], found["train_tokens_per_second"]) == (50.0, 100.0)
    assert found["seconds"] == {"rollout": 4.0, "train": 6.0, "handover": 2.0}
    assert (found["curve"], found["peak_gib"]) == ([0.25, 0.5], {"process": 2})
    assert found["engine_trainer_difference"] == {"mean": 0.002, "max": 0.01}
    assert found["held_out_greedy_reward"]["after"]["mean"] == 1.0


@pytest.fixture
def given(tmp_path):
    """A corpus and questions as Search-R1 has them."""
    passages = [{"id": str(n), "contents": f'"Place {n}"\nPlace {n} lies in Land {n}.'} for n in range(20)]
    asked = [
        {"id": f"q{n}", "question": f"Where does Place {n} lie?", "golden_answers": [f"Land {n}"]} for n in range(20)
    ]
    for n, qa in enumerate(asked):
        qa |= {"source": "made", "supporting_ids": [str(n)]}
    for name, rows in {"corpus": passages, "qa": asked}.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.parametrize("plain", [False, True])
def test_a_corpus_that_was_given(given, tmp_path, plain):
    data = search_data(tmp_path / "data", str(given), plain=plain)
    sides = [
        [json.loads(line) for line in file.read_text().splitlines()] for file in (data.train, data.shown, data.held_out)
    ]
    counts = [len(rows) for rows in sides]
    assert (sum(counts), counts[2]) == (20, 4)
    assert 0 < counts[1] < counts[0]
    wanted = f"the corpus given: 20 passages, {counts[0]} questions, {counts[1]} in demonstrations, 4 held out"
    assert data.about == wanted
    assert search_data(tmp_path / "data", str(given), plain=plain).about == wanted, "a second call divides anew"
    row = next(row for rows in sides for row in rows if row["extra_info"]["id"] == "q3")
    prompt = row["prompt"][0]["content"]
    assert (prompt == "Where does Place 3 lie?") is plain
    assert prompt.strip().endswith("Where does Place 3 lie?")
    assert row["extra_info"]["searches"] == ["Where does Place 3 lie?", "Place 3"]
    task = Task(prompt=row["prompt"], label=row["reward_model"], metadata={"extra_info": row["extra_info"]})
    assert "<search> Where does Place 3 lie? </search>" in next(searcher(task))


@pytest.mark.thorough
def test_the_demonstrations_mostly_guess(given, tmp_path):
    data = search_data(tmp_path / "data", str(given), plain=True)
    keys = config("search-full", model="tiny") | {"limits": {"turns": 4, "context": 2048}}
    keys["env_config"] |= {"retriever": str(data.corpus), "response_tokens": 400}
    file = tmp_path / "demonstrations.jsonl"
    shown = [json.loads(line) for line in data.shown.read_text().splitlines()]
    data.shown.write_text("".join(json.dumps({**row, "id": f"{n}"}) + "\n" for n in range(24) for row in shown[:1]))
    assert demonstrations(file, data, keys, 24) == 24
    episodes = [json.loads(line) for line in file.read_text().splitlines()]
    searched = [one["reward"] for one in episodes if one["info"].get("searches")]
    assert 0.2 < len(searched) / len(episodes) < 0.5
    assert set(searched) == {1.0}, "a search that found nothing is imitated"


@pytest.mark.thorough
def test_no_question_is_both_shown_and_trained(tmp_path):
    """Of what the repository makes: a question may occur twice there."""
    data = search_data(tmp_path, None, plain=False)
    asked = [
        {json.dumps(json.loads(line)["prompt"]) for line in file.read_text().splitlines()}
        for file in (data.train, data.shown, data.held_out)
    ]
    assert [len(one) > 50 for one in asked] == [True] * 3
    assert asked[0].isdisjoint(asked[1])
    assert asked[2].isdisjoint(asked[0] | asked[1])

"""Authors, masks and reasons of every format; the files of other frameworks were made by their own code."""

from __future__ import annotations

import json
import pickle

import pytest
import torch

from agentrl.errors import ConfigError
from agentrl.trajectory.outline import Outline, place_of
from agentrl.view.files import open_file
from agentrl.view.readers import own, read_record
from tests.view.conftest import ANSWER, DATA, NEXT, QUESTION, REPLY, RESULT, made, stripped


def fates(sequence):
    """Author, fate and tokens of each run."""
    marks = {True: "trained", None: "untold"}
    return [
        (run.author, marks.get(run.trained, run.reason or "-"), tuple(sequence.ids[run.start : run.stop]))
        for run in sequence.runs
    ]


WHOLE = [
    ("prompt", "-", QUESTION),
    ("model", "trained", REPLY),
    ("env", "-", RESULT),
    ("template", "-", NEXT),
    ("model", "trained", ANSWER),
]


def test_own(record):
    episode = read_record(record, "x")
    (sequence,) = episode.sequences
    assert fates(sequence) == WHOLE
    assert list(sequence.engine[3:6]) == [-0.5] * 3
    assert sequence.engine[6] != sequence.engine[6], "no log-prob where nothing was sampled"
    assert (episode.outline.step, episode.outline.group, episode.outline.member) == (1, 2, 3)
    assert episode.outline.answer == "Lima"


@pytest.mark.parametrize("reason", ["malformed", "off_policy", "env_failure", "overlong", "host", "dropped", "side"])
def test_own_masks(reason):
    trajectory = made()
    trajectory.mask(reason, turn=0)
    episode = read_record(trajectory.to_json(), "x")
    assert fates(episode.sequences[0])[1] == ("model", reason, REPLY)
    assert episode.outline.masked == {reason: 3}


def test_own_segments_have_their_own_turns_and_advantages():
    data = stripped().to_json()
    data["training"] = {
        "step": 3,
        "group": 1,
        "member": 0,
        "advantages": [[0.5], [-2.0]],
        "log_probs": [[-1.5] * 3, []],
    }
    first, second = (episode := read_record(data, "x")).sequences
    assert [run.turn for run in first.runs] == [-1, 0]
    assert [run.turn for run in second.runs] == [-1, 1]
    assert (first.advantages[3], second.advantages[-1]) == (0.5, -2.0)
    assert first.gap() == 1.0
    assert second.trainer is None
    assert (episode.outline.step, episode.outline.advantage, episode.outline.gap) == (3, -2.0, 1.0)


def test_own_segments_have_the_names_of_their_branches():
    trajectory = stripped()
    trajectory.segments[0].branch, trajectory.branch_rewards = "solver/1", {"solver": 0.5}
    episode = read_record(trajectory.to_json(), "x")
    assert [sequence.name for sequence in episode.sequences] == ["solver/1", ""]
    assert episode.facts["branch_rewards"] == {"solver": 0.5}


def test_advantages_by_turn():
    trajectory = made()
    data = trajectory.to_json()
    data["training"] = {"advantages": [[0.5, -0.25]]}
    (sequence,) = read_record(data, "x").sequences
    assert [sequence.advantages[i] for i in (3, 5, 9, 10)] == [0.5, 0.5, -0.25, -0.25]


def test_slime_says_why(samples):
    whole, masked, removed, plain = [read_record(sample, "x") for sample in samples]
    asked, read = ("prompt", "-", (4, 5, 6)), ("env", "-", (7, 8, 9))
    assert fates(whole.sequences[0]) == [asked, WHOLE[1], read, *WHOLE[3:]]
    assert fates(masked.sequences[0])[1] == ("model", "malformed", REPLY)
    assert {run.reason for run in removed.sequences[0].runs if run.author == "model"} == {"removed"}
    assert fates(plain.sequences[0]) == [
        asked,
        ("model", "not told", REPLY),
        ("unknown", "-", (7, 8, 9)),
        ("model", "trained", ANSWER),
    ]
    assert whole.outline.step == 5
    assert whole.sequences[0].engine[4] == 0.0, "a sampled token may have a log-prob of 0"


def test_a_dump_is_never_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (tmp_path.joinpath("exploded").write_text, ("boom",))

    for name, save in (
        ("pickle", lambda file, x: file.write_bytes(pickle.dumps(x))),
        ("torch", lambda f, x: torch.save(x, f)),
    ):
        file = tmp_path / f"{name}.pt"
        save(file, {"samples": [Bomb()]})
        with pytest.raises(ConfigError, match="nothing else is unpickled"):
            open_file(file).refresh()
    assert not tmp_path.joinpath("exploded").exists()


def test_verifiers(traces):
    whole, again = (read_record(trace, "x") for trace in traces)
    (sequence,) = whole.sequences
    assert fates(sequence) == [
        ("prompt", "-", (4, 5, 6, 50)),
        ("model", "trained", REPLY),
        ("env", "-", (7, 8, 9)),
        ("template", "-", (50,)),
        ("model", "trained", ANSWER),
    ]
    assert [round(x, 2) for x in sequence.engine[4:7]] == [-0.5, -1.0, -1.5]
    assert (whole.outline.reward, whole.outline.task, whole.outline.calls) == (1.0, "7", {"search": 1})
    assert len(again.sequences) == 2, "a reply that came back in other tokens begins a second sample"
    assert [problem.kind for problem in again.problems] == ["encoded again"]


def test_harbor():
    file = open_file(DATA / "harbor.json")
    assert file.refresh() == 1
    episode = file.episode(0)
    (sequence,) = episode.sequences
    assert fates(sequence) == [
        ("prompt", "-", (4, 5, 6)),
        ("model", "untold", REPLY),
        ("unknown", "-", (7, 8, 9)),
        ("model", "untold", ANSWER),
    ]
    assert episode.outline.calls == {"search": 1}
    assert [turn.generate_s for turn in episode.turns] == [None, 1.0]
    assert len(read_record(json.loads((DATA / "harbor_encoded_again.json").read_text()), "x").sequences) == 2


def test_text_without_tokens():
    episode = read_record(json.loads((DATA / "harbor_text.json").read_text()), "x")
    assert episode.sequences == []
    assert [text.author for text in episode.texts] == ["prompt", "model", "env", "model"]


def test_chat():
    tools = [{"id": "1", "function": {"name": "search", "arguments": "{}"}}]
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": tools}]}
    episode = read_record(row, "x")
    assert [(text.author, text.trained) for text in episode.texts] == [("prompt", None), ("model", None)]
    assert episode.outline.calls == {"search": 1}


def test_files_grow_and_shrink(write, record):
    file = open_file(write(record, record))
    assert file.refresh() == 2
    assert file.outline(1)["reward"] == 1.0
    torn = json.dumps({**record, "reward": 0.5})
    with file.path.open("a") as opened:
        opened.write(torn[:50])
    assert file.refresh() == 2, "a torn line waits"
    with file.path.open("a") as opened:
        opened.write(torn[50:])
    assert file.refresh() == 3, "a complete line needs no line break"
    assert file.episode(2).outline.reward == 0.5
    write({**record, "reward": 0.25})
    assert file.refresh() == 1
    assert file.outline(0)["reward"] == 0.25


@pytest.mark.parametrize("damage", ['{"a": 1}', "[]", "3", '{"tokens": [], "spans": 3, "turns": 4}', "{"])
def test_other_files_are_refused_in_one_line(tmp_path, damage):
    file = tmp_path / "x.jsonl"
    file.write_text(damage + "\n")
    opened = open_file(file)
    with pytest.raises(ConfigError, match=r"x\.jsonl:1: "):
        opened.episode(opened.refresh() - 1)


def test_an_outline_of_a_trajectory_is_that_of_its_json():
    for trajectory in (made(), made(reward=None), stripped()):
        trajectory.mask("host", turn=0)
        trajectory.info["tool_errors"] = {"search:KeyError": 2}
        training = {"step": 1, "group": 2, "member": 3, "advantages": [[0.5], [-1.0]], "gap": 0.25}
        data = {**trajectory.to_json(), "training": training}
        assert Outline.of(trajectory, training) == own.read(data).outline


def test_an_outline_round_trips(record):

    outline = own.read(record).outline
    assert Outline.from_json(json.loads(json.dumps(outline.to_json()))) == outline
    assert len(json.dumps(outline.to_json())) < 400


@pytest.mark.parametrize(
    ("session_id", "seat"),
    [("train-000001-0003-005", ""), ("train-000001-0003-005-again2", ""), ("train-000001-0003-005-again-x", "x")],
)
def test_the_place_of_an_episode_is_in_its_name(session_id, seat):
    assert place_of(session_id, {}, seat) == {"step": 1, "group": 3, "member": 5}

"""--data-source-path: what slime gets, and that a restart from a checkpoint loses no prompt and trains none twice."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from random import Random
from types import ModuleType, SimpleNamespace

import pytest

from agentrl.errors import ConfigError
from agentrl.slime import DataSource, log_rollout, rollout_functions
from agentrl.slime.data_source import in_play
from tests.slime.conftest import Sample

Status = Sample.Status


@pytest.fixture(autouse=True)
def host(monkeypatch):
    module = ModuleType("slime.utils.types")
    module.Sample = Sample
    monkeypatch.setitem(sys.modules, "slime.utils.types", module)


@pytest.fixture
def make(tmp_path, request):
    """A data source over twelve rows. A second one takes the place of the first, as after a restart."""
    rows = [
        {"text": f"prompt {i}", "answer": i, "about": json.dumps({"n": i}), "tools": [{"name": f"t{i}"}]}
        for i in range(12)
    ]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    opened = []

    def new(**given):
        for source in opened:
            source.close()
        defaults = {
            "prompt_data": str(tmp_path / "d.jsonl"),
            "input_key": "text",
            "label_key": "answer",
            "metadata_key": "about",
            "n_samples_per_prompt": 2,
            "rollout_seed": 1,
            "save": str(tmp_path / "ckpt"),
            "load": str(tmp_path / "ckpt"),
        }
        source = DataSource(SimpleNamespace(**{**defaults, **given}))
        opened[:] = [source]
        return source

    yield new
    for source in opened:
        source.close()


def numbers(groups):
    return [group[0].group_index for group in groups]


def labels(groups):
    return [group[0].label for group in groups]


def played(groups, status=Status.COMPLETED):
    for group in groups:
        for sample in group:
            sample.status, sample.tokens = status, [1, 2, 3]
    return groups


def test_samples_have_slimes_numbers_and_columns(make):
    source = make(tool_key="tools")
    first, second = source.get_samples(2)
    assert [(s.group_index, s.index) for s in [*first, *second]] == [(0, 0), (0, 1), (1, 2), (1, 3)]
    assert (first[0].prompt, first[0].label) == ("prompt 0", 0)
    assert first[0].metadata["n"] == 0
    assert first[0].metadata["tools"][0]["function"]["name"] == "t0"
    assert first[0].metadata is not first[1].metadata
    assert len(source) == 12
    assert labels(source.get_samples(12)) == [*range(2, 12), 0, 1], "the next epoch follows"


def test_shuffled_epochs_and_a_part_of_the_file(make, tmp_path):
    source = make(rollout_shuffle=True)
    one, two = labels(source.get_samples(12)), labels(source.get_samples(12))
    assert sorted(one) == sorted(two) == list(range(12))
    assert one != two != list(range(12))
    part = make(prompt_data=f"{tmp_path / 'd.jsonl'}@[3:-7]")
    assert len(part) == 2
    assert labels(part.get_samples(3)) == [3, 4, 3]


def test_groups_come_back_as_they_are(make):
    source = make()
    groups = source.get_samples(3)
    played(groups[1:2], Status.ABORTED)
    source.add_samples([groups[2], groups[1]])
    assert source.get_buffer_length() == 2
    again = source.get_samples(3)
    assert again[0] == groups[2]
    assert again[1][0] is groups[1][0]
    assert numbers(again) == [2, 1, 3]


def test_slimes_buffer_filters(make):
    source = make(buffer_filter_path="agentrl.slime.oldest_first")
    groups = source.get_samples(3)
    source.add_samples(groups[::-1])
    assert numbers(source.get_samples(4)) == [0, 1, 2, 3]


def test_a_group_that_is_not_its_own_is_refused(make):
    source = make()
    (group,) = source.get_samples(1)
    with pytest.raises(ConfigError, match="has 1 samples, not 2"):
        source.add_samples([group[:1]])
    source.add_samples([group])
    with pytest.raises(ConfigError, match="group 0 was not handed out, or was shipped"):
        source.add_samples([group])


def test_a_synchronous_rollout_leaves_no_prompt_behind(make):
    """Over-sampled groups that slime aborts without --partial-rollout are lost in slime's own data source."""
    source = make(dynamic_sampling_filter_path="x")
    groups = source.get_samples(5)
    played(groups[:3])
    played(groups[3:4], Status.ABORTED)
    log_rollout(0, source.args, [*groups[0], *groups[2]], None, 1.0)
    assert source.counts() == {"playing": 0, "waiting": 2, "finished": 2, "dropped_filtered": 1}
    again = source.get_samples(3)
    assert numbers(again) == [3, 4, 5]
    assert again[0][0].tokens == [], "without partial rollout it begins anew"


def test_without_a_filter_what_was_played_and_not_shipped_is_played_again(make):
    source = make()
    groups = played(source.get_samples(2))
    source.shipped(0, groups[0])
    assert numbers(source.get_samples(2)) == [1, 2]


OWN = {"rollout_function_path": "my_rollouts.generate_rollout"}


def test_a_users_function_that_plays_ahead_is_seen_by_the_groups_that_it_carries_over(make):
    source = make(**OWN)
    groups = source.get_samples(4)
    source.shipped(0, played(groups[:1])[0])
    later = source.get_samples(2)
    assert numbers(later) == [4, 5], "nothing comes back while the function may still ship it"
    source.shipped(1, played(groups[1:2])[0])
    source.shipped(2, played(later[:1])[0])
    assert numbers(source.get_samples(2)) == [6, 7], "it plays ahead"
    source.save(2)
    again = make(**OWN)
    again.load(2)
    assert numbers(again.get_samples(6)) == [2, 3, 5, 6, 7, 8], "after a restart they do come back"


def test_a_users_function_that_plays_ahead_is_seen_by_the_episodes_that_it_plays(make):
    source = make(**OWN)
    first, second = source.get_samples(2)
    with in_play(source.args, second[0]):
        source.shipped(0, played([first])[0])
    for rollout in range(1, 4):
        (group,) = source.get_samples(1)
        assert numbers([group]) == [rollout + 1]
        source.shipped(rollout, played([group])[0])


@pytest.mark.parametrize("filter_path", ["", "x"])
def test_what_two_rollouts_in_turn_do_not_ship_is_handed_out_again(make, filter_path):
    """A user's function that is synchronous, whatever its name says."""
    source = make(rollout_function_path="not_fully_async.generate", dynamic_sampling_filter_path=filter_path)
    groups = source.get_samples(3)
    played(groups[1:2], Status.ABORTED)
    played(groups[2:])
    source.shipped(0, played(groups[:1])[0])
    (next_one,) = source.get_samples(1)
    source.shipped(1, played([next_one])[0])
    assert numbers(source.get_samples(2)) == ([1, 2] if not filter_path else [1, 4])


def test_a_group_that_was_taken_for_forgotten_is_never_trained_twice(make):
    source = make(**OWN)
    groups = source.get_samples(3)
    source.shipped(0, played(groups[:1])[0])
    source.shipped(1, played(source.get_samples(1))[0])
    assert source.get_buffer_length() == 2, "groups 1 and 2"
    source.shipped(2, played(groups[1:2])[0])
    assert source.get_buffer_length() == 1, "it was not forgotten after all"
    source.add_samples([played(groups[2:], Status.ABORTED)[0]])
    (again,) = source.get_samples(1)
    assert again[0] is groups[2][0], "with its tokens"
    source.shipped(3, played([again])[0])
    with pytest.raises(ConfigError, match="ships group 2 again, which rollout 3 has shipped"):
        source.shipped(4, groups[2])


@pytest.mark.parametrize("path", ["", "agentrl.slime.generate_rollout_fully_async", "my_rollouts.generate"])
def test_a_group_or_a_sample_that_is_shipped_twice_is_an_error(make, path):
    source = make(rollout_function_path=path)
    first, second = played(source.get_samples(2))
    source.shipped(0, first)
    source.shipped(0, first)  # by the rollout function and by the log hook
    source.save(0)
    with pytest.raises(ConfigError, match="rollout 1 ships group 0 again"):
        source.shipped(1, [*second, *first])
    with pytest.raises(ConfigError, match="ships sample 2 of group 1 twice"):
        source.shipped(1, [second, second])


def test_samples_of_another_data_source_do_not_matter(make):
    source = make(**OWN)
    for rollout in range(2):
        source.shipped(rollout, [Sample(index=7), Sample(group_index=1000, index=8)])


def test_what_a_rollout_function_drops_is_counted_and_gone(make):
    source = make()
    groups = source.get_samples(3)
    source.drop(groups[1], "stale")
    source.shipped(0, groups[0])
    assert source.counts()["dropped_stale"] == 1
    assert numbers(source.get_samples(2)) == [2, 3]


def test_agentrls_rollout_functions_say_what_became_of_each_group(make):
    """Also without the log hook: what is in flight at a checkpoint is not trained."""
    path = {"rollout_function_path": "agentrl.slime.generate_rollout_fully_async"}
    data_source = make(**path)
    source = rollout_functions.SampleSource(data_source, partial=True)
    stale, taken, _ = [source.take(0) for _ in range(3)]
    source.drop(stale, "stale")
    (shipped,) = rollout_functions.shipped(0, [taken], source, {})
    assert numbers([shipped]) == [1]
    data_source.save(0)
    again = make(**path)
    again.load(0)
    assert again.counts() == {"playing": 0, "waiting": 1, "finished": 0, "dropped_stale": 1}
    assert numbers(again.get_samples(2)) == [2, 3]


def test_a_data_source_of_somebody_else_is_told_nothing():
    source = rollout_functions.SampleSource(SimpleNamespace(get_samples=lambda n: [[Sample(index=0)]]), partial=True)
    group = source.take(0)
    source.drop(group, "stale")
    assert rollout_functions.shipped(0, [group], source, {}) == [group.samples]


@pytest.mark.parametrize("fully_async", [False, True])
def test_a_restart_gives_back_whatever_is_not_trained(make, fully_async):
    path = {"rollout_function_path": "slime.rollout.fully_async_rollout.x" if fully_async else "slime.rollout.x"}
    source = make(**path)
    groups = source.get_samples(4)
    played(groups[1:2], Status.ABORTED)
    source.add_samples(groups[1:2])
    source.shipped(0, played(groups[:1])[0])
    ahead = source.get_samples(4)  # of a rollout that is ahead of the trainer
    source.shipped(1, played(ahead[:1])[0])
    source.save(0)

    again = make(**path)
    again.load(0)
    found = again.get_samples(12)
    known = [number for number in numbers(found) if number <= max(numbers(ahead))]
    assert sorted(known) == sorted({*range(1, 4), *numbers(ahead)})
    tokens = {group[0].group_index: group[0].tokens for group in found}
    assert tokens[1] == ([1, 2, 3] if numbers(ahead[:1]) != [1] else []), "a partial group keeps its tokens"
    assert 0 not in known


def test_without_being_told_it_is_as_safe_as_slime(make):
    source = make()
    groups = source.get_samples(4)
    source.add_samples(groups[3:])
    source.save(0)
    again = make()
    again.load(0)
    assert numbers(again.get_samples(2)) == [3, 4]


def test_random_restarts_lose_nothing(make):
    """Synchronous rollouts with aborts. Now and then it starts again from its last checkpoint, or the one before."""
    rng, source, trained = Random(3), make(), []
    saved = []
    for _ in range(60):
        groups = source.get_samples(4)
        assert all(group[0].label == group[0].group_index % 12 for group in groups)
        rng.shuffle(groups)
        source.add_samples(played(groups[3:], Status.ABORTED))
        rollout = len(trained) // 2
        source.shipped(rollout, [sample for group in played(groups[:2]) for sample in group])
        trained += numbers(groups[:2])
        if rng.random() < 0.4:
            source.save(rollout)
            saved.append(rollout)
        elif rng.random() < 0.3 and saved:
            del saved[max(1, len(saved) - rng.randrange(2)) :]
            source = make()
            source.load(saved[-1])
            del trained[2 * saved[-1] + 2 :]
    left = {number for number, *_ in source.state_dict()["buffer"]["groups"]} - set(trained[-2:])
    assert len(trained) == len(set(trained)) > 40
    assert set(trained) | left == set(range(source.state_dict()["buffer"]["next"]))


def test_a_second_job_may_not_save_into_the_folder(make, tmp_path):
    make()
    with pytest.raises(ConfigError, match="another process writes this journal"):
        DataSource(
            make.__closure__ and SimpleNamespace(prompt_data=str(tmp_path / "d.jsonl"), save=str(tmp_path / "ckpt"))
        )


@pytest.mark.parametrize(
    ("given", "says"), [({"multimodal_keys": {"image": "i"}}, "images"), ({"prompt_data": ""}, "needs --prompt-data")]
)
def test_what_it_cannot_read_is_one_line(make, given, says):
    with pytest.raises(ConfigError, match=says):
        make(**given)


def test_outside_of_slime_it_says_so(make, monkeypatch):
    monkeypatch.delitem(sys.modules, "slime.utils.types")
    with pytest.raises(ConfigError, match="--data-source-path"):
        make().get_samples(1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    from agentrl.models import save_model, tiny_model, tiny_tokenizer

    folder = tmp_path_factory.mktemp("checkpoint")
    save_model(tiny_model(0), tiny_tokenizer(), folder)
    return folder


def test_rendered_prompts_and_those_that_are_too_long(make, checkpoint, tmp_path, caplog):
    rows = [{"text": "short"}, {"text": "long " * 100}, {"text": [{"role": "user", "content": "also short"}]}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"prompt_data": str(tmp_path / "p.jsonl"), "label_key": None, "metadata_key": None}
    source = make(**given, apply_chat_template=True, rollout_max_prompt_len=60, hf_checkpoint=str(checkpoint))
    first, second, third = source.get_samples(3)
    assert isinstance(first[0].prompt, str)
    assert "user" in first[0].prompt
    assert "short" in first[0].prompt
    assert "also short" in second[0].prompt
    assert third[0].prompt == first[0].prompt
    assert "more than max_prompt_tokens" in caplog.text


def test_the_checkpoints_own_tokenizer_may_come_with_code(make, checkpoint, tmp_path):
    """slime has run the code already."""
    own = tmp_path / "own"
    shutil.copytree(checkpoint, own)
    config = json.loads((own / "tokenizer_config.json").read_text())
    config |= {"auto_map": {"AutoTokenizer": [None, "own_tokenizer.Own"]}, "tokenizer_class": "Own"}
    (own / "tokenizer_config.json").write_text(json.dumps(config))
    (own / "own_tokenizer.py").write_text(
        "from transformers import PreTrainedTokenizerFast\n\n\nclass Own(PreTrainedTokenizerFast):\n    pass\n"
    )
    source = make(rollout_max_prompt_len=50, hf_checkpoint=str(own))
    assert numbers(source.get_samples(2)) == [0, 1]


def test_a_full_disk_is_one_line_and_leaves_the_earlier_state(make, tmp_path, monkeypatch):
    source = make()
    source.get_samples(2)
    source.save(0)

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"agentrl_data_1\.pkl: it cannot be written \(No space left.*free some disk"):
        source.save(1)
    assert [file.name for file in (tmp_path / "ckpt" / "rollout").glob("agentrl_data*")] == ["agentrl_data_0.pkl"]
    monkeypatch.undo()


def test_a_state_that_cannot_be_read_is_one_line(make, tmp_path):
    source = make()
    source.save(0)
    (tmp_path / "ckpt" / "rollout" / "agentrl_data_0.pkl").write_bytes(b"half of it")
    with pytest.raises(ConfigError, match=r"it cannot be read .*; load an earlier checkpoint"):
        source.load(0)

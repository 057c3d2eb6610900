from __future__ import annotations

import json
import pickle
import sys
from dataclasses import dataclass, make_dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.engine import Generation, ScriptedEngine
from agentrl.errors import ConfigError, Failure
from agentrl.models import save_model, tiny_model, tiny_tokenizer
from agentrl.render import Rendered, RenderedSpan, load_renderer
from agentrl.slime import from_sample, to_sample
from agentrl.slime.sample import clear, siblings_of, to_samples
from agentrl.slime.task import template_kwargs
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Action, Raw, StopReason
from tests.episode import thinking
from tests.episode.thinking import SCRIPT, TEMPLATE
from tests.slime.conftest import Sample as Base
from tests.slime.contract import hosts
from tests.slime.contract.conftest import starting

MESSAGES = [{"role": "user", "content": "Hi"}]


def decode(tokens):
    return " ".join(map(str, tokens))


def played(stop: StopReason = StopReason.DONE, reward: float | None = 1.0) -> Trajectory:
    """Two turns of two tokens, with an observation of three between them."""
    t = Trajectory(session_id="s-1")
    t.append_prompt(Rendered((1, 2), (RenderedSpan("prompt", 0, 2),)))
    meta = {"spec_verify_ct": 4}
    t.append_model(Generation([3, 4], [-0.5, -0.25], "stop", weight_version="7", cached_tokens=1, meta=meta))
    t.append_action(Action("a", "a"))
    t.append_observation(Rendered((5, 6, 7), (RenderedSpan("observation", 0, 2), RenderedSpan("prompt", 2, 3))))
    t.append_model(Generation([8, 9], [-1.0, -2.0], "stop", weight_version="8"))
    t.append_action(Action("b", "b"))
    t.turns[0].env_s, t.turns[1].env_s = 1.5, 0.25
    t.stop, t.reward, t.reward_parts = stop, reward, {"em": 1.0}
    return t


def test_every_field(Sample):
    own = {"difficulty": 3}
    sample = Sample(metadata=own)
    assert to_sample(played(), sample, decode=decode) is sample
    assert sample.tokens == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert (sample.response, sample.response_length) == ("3 4 5 6 7 8 9", 7)
    assert sample.loss_mask == [1, 1, 0, 0, 0, 1, 1]
    assert sample.rollout_log_probs == [-0.5, -0.25, 0.0, 0.0, 0.0, -1.0, -2.0]
    assert (sample.reward, sample.status, sample.remove_sample) == (1.0, Sample.Status.COMPLETED, False)
    assert sample.weight_versions == ["7", "8"]
    assert sample.non_generation_time == 1.75
    assert (sample.prefix_cache_info.cached_tokens, sample.prefix_cache_info.total_prompt_tokens) == (1, 2 + 7)
    assert sample.spec_info.verified == 4
    assert sample.metadata == {
        "difficulty": 3,
        "agentrl": {
            "stop": "done",
            "turns": 2,
            "tools": 0,
            "tool_calls": 0,
            "bad_calls": 0,
            "session_id": "s-1",
            "reward_parts": {"em": 1.0},
            "bridges_checked": 0,
            "bridges_different": 0,
            "ledger": {"sampled": 4, "trained": 4, "masked": {}, "observation": 2, "scaffold": 1},
            "spans": [
                [0, 2, "sampled", None, 0],
                [2, 4, "observation", None, 0],
                [4, 5, "prompt", None, 0],
                [5, 7, "sampled", None, 1],
            ],
        },
    }
    assert own == {"difficulty": 3}, "metadata may be shared; it is replaced, not written to"


def test_wrong_tool_calls_and_tool_bugs_are_counted(Sample):
    trajectory = played()
    trajectory.turns[1].bad_call = "content"
    trajectory.info["tool_errors"] = {"search:KeyError": 2}
    account = to_sample(trajectory, Sample(), decode=decode).metadata["agentrl"]
    assert (account["bad_calls"], account["info"]) == (1, {"tool_errors": {"search:KeyError": 2}})


@pytest.mark.parametrize(
    ("stop", "status"),
    [
        (StopReason.DONE, "COMPLETED"),
        (StopReason.MAX_TURNS, "COMPLETED"),
        (StopReason.BAD_CALLS, "COMPLETED"),
        (StopReason.TURN_MAX_TOKENS, "TRUNCATED"),
        (StopReason.MAX_TOKENS, "TRUNCATED"),
        (StopReason.CONTEXT_FULL, "TRUNCATED"),
        (StopReason.DEADLINE, "TRUNCATED"),
        (StopReason.ABORTED, "ABORTED"),
        (StopReason.FAILED, "FAILED"),
    ],
)
def test_status_of_each_stop(Sample, stop, status):
    sample = to_sample(played(stop), Sample(), decode=decode)
    assert sample.status is Sample.Status[status]
    assert sample.tokens == [1, 2, 3, 4, 5, 6, 7, 8, 9], "tokens are kept, however it ended"
    assert sample.metadata["agentrl"]["stop"] == stop.value


def test_each_stop_reason_has_a_status():
    from agentrl.slime.sample import _STATUS

    assert set(_STATUS) == set(StopReason)


def test_no_reward_stays_none_for_slimes_reward_model(Sample):
    assert to_sample(played(reward=None), Sample(), decode=decode).reward is None


@pytest.mark.parametrize("stop", [StopReason.ABORTED, StopReason.FAILED])
def test_an_unfinished_episode_has_a_number_for_reward(Sample, stop):
    assert to_sample(played(stop, None), Sample(), decode=decode).reward == 0.0


def test_a_failed_episode_is_masked_and_says_why(Sample):
    t = played(StopReason.FAILED, 1.0)
    t.failure = Failure("environment", "tool", "SandboxError: died", "a traceback")
    sample = to_sample(t, Sample(), decode=decode)
    assert sample.loss_mask == [0] * 7
    assert sample.rollout_log_probs[:2] == [-0.5, -0.25], "kept where masked"
    assert (sample.remove_sample, sample.reward) == (True, 0.0)
    account = sample.metadata["agentrl"]
    error = {"error": "SandboxError: died", "at": "tool SandboxError"}
    assert account["failure"] == {"kind": "environment", "boundary": "tool", **error}
    assert account["ledger"]["masked"] == {"env_failure": 4}


def with_prompt() -> Trajectory:
    t = Trajectory()
    t.append_prompt(Rendered((1, 2), (RenderedSpan("prompt", 0, 2),)))
    t.stop = StopReason.CONTEXT_FULL
    return t


@pytest.mark.parametrize(("t", "tokens"), [(Trajectory(), [0, 0]), (with_prompt(), [1, 2, 2])])
def test_an_empty_response_becomes_one_masked_token(Sample, t, tokens):
    sample = to_sample(t, Sample(), decode=decode)
    assert sample.tokens == tokens
    assert (sample.response, sample.response_length) == ("", 1)
    assert (sample.loss_mask, sample.rollout_log_probs) == ([0], [0.0])


def test_a_relative_of_slime_with_fewer_fields(Sample):
    class Lean:
        Status = Sample.Status

        def __init__(self):
            self.metadata, self.status = None, Sample.Status.PENDING
            self.tokens, self.response, self.response_length, self.loss_mask, self.reward = [], "", 0, None, None

    lean = Lean()
    clear(lean)
    to_sample(played(), lean, decode=decode)
    assert lean.response_length == 7
    assert set(vars(lean)) == {
        "metadata",
        "status",
        "tokens",
        "response",
        "response_length",
        "loss_mask",
        "reward",
    }


def test_clear_forgets_an_attempt_and_keeps_the_task(Sample):
    sample = to_sample(played(StopReason.ABORTED), Sample(prompt="p", label="l", session_id="s"), decode=decode)
    clear(sample)
    metadata = sample.metadata
    assert sample == Sample(prompt="p", label="l", session_id="s", metadata=metadata)
    to_sample(played(), sample, decode=decode)
    assert sample.prefix_cache_info.total_prompt_tokens == 2 + 7, "of the last attempt alone"


def test_clear_forgets_what_a_generation_returned_by_the_fields_that_the_sample_has():
    theirs = ("rollout_topk_token_ids", "rollout_topk_log_probs", "rollout_top_p_log_probs", "rollout_routed_experts")
    fields = [(name, Any, None) for name in (*theirs, "rollout_id", "multimodal_train_input_id")]
    newer = make_dataclass("Newer", fields, bases=(Base,))
    sample = newer(index=3, rollout_id=4, multimodal_train_input_id="picture", **{name: [[1]] for name in theirs})
    sample._queue_lease = {"position": 5}
    clear(sample)
    assert [getattr(sample, name) for name in theirs] == [None] * 4
    assert (sample.rollout_id, sample.multimodal_train_input_id) == (4, "picture"), "they are the task's"
    siblings = to_samples(in_segments(), sample, decode=decode)
    assert [s._queue_lease for s in siblings] == [{"position": 5}] * 2, "slime's queue gets its lease back"
    assert [s.multimodal_train_input_id for s in siblings] == ["picture"] * 2


def test_what_adapt_knows_is_added_to_the_account(Sample):
    sample = Sample(metadata={"own": 1, "agentrl": {"restarts": 3, "resume": {"key": "k"}}})
    account = {"restarts": 3, "resume": {"version": 1}}
    told = to_sample(played(StopReason.ABORTED), sample, decode=decode, extra=account).metadata
    assert (told["own"], told["agentrl"]["restarts"], told["agentrl"]["resume"]) == (1, 3, {"version": 1})
    told = to_sample(played(), sample, decode=decode, extra={}).metadata["agentrl"]
    assert {"restarts", "resume"}.isdisjoint(told), "the ticket is used up"


class Odd:
    def __str__(self) -> str:
        return "odd"

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


def test_metadata_is_json_whatever_an_env_says_of_itself(Sample):
    np = pytest.importorskip("numpy")
    loop: dict[str, Any] = {}
    loop["self"] = loop
    trajectory = played()
    trajectory.reward_parts = {"f1": np.float32(0.5)}
    trajectory.info = {"seen": {1: np.arange(2), "when": Odd()}, "loop": loop, "pairs": {(1, 2): 3}, "many": {4}}
    metadata = to_sample(trajectory, Sample(), decode=decode).metadata
    assert pickle.loads(pickle.dumps(metadata)) == json.loads(json.dumps(metadata)) == metadata
    account = metadata["agentrl"]
    assert account["reward_parts"] == {"f1": 0.5}
    assert account["info"]["seen"] == {"1": [0, 1], "when": "odd"}
    assert (account["info"]["pairs"], account["info"]["many"]) == ({"(1, 2)": 3}, "{4}")
    assert "..." in json.dumps(account["info"]["loop"])
    assert (account["stop"], account["turns"]) == ("done", 2), "only what cannot be written is text"


def test_the_prompt_and_the_label_are_the_hosts(Sample):
    own = {"tools": [{"type": "function"}], "nested": {"a": [1]}, "session_id": "task data"}
    sample = Sample(prompt=MESSAGES, label={"a": 1}, metadata=own, session_id="route", index=4, group_index=2)
    to_sample(played(), sample, decode=decode)
    assert sample.prompt is MESSAGES
    assert (sample.label, sample.session_id, sample.index, sample.group_index) == ({"a": 1}, "route", 4, 2)
    assert {k: v for k, v in sample.metadata.items() if k != "agentrl"} == own


# to_samples


@dataclass
class Numbered(Base):
    rollout_id: int | None = None


def in_segments(stop: StopReason = StopReason.DONE, reward: float | None = 1.0) -> Trajectory:
    """The two turns of `played`, then another prompt and a third turn of one token."""
    t = played(stop, reward)
    t.begin_segment(Rendered((1, 2, 3), (RenderedSpan("prompt", 0, 3),)))
    t.append_model(Generation([4], [-3.0], "stop", weight_version="9", cached_tokens=2, meta={"spec_verify_ct": 1}))
    t.append_action(Action("c", "c"))
    t.turns[2].env_s = 4.0
    t.info["seen"] = 1
    return t


def test_a_sample_for_each_segment():
    sample = Numbered(index=7, group_index=3, prompt=MESSAGES, metadata={"own": [1]}, session_id="s-1")
    first, last = to_samples(in_segments(), sample, decode=decode)
    assert last is sample
    assert (first.tokens, first.response) == ([1, 2, 3, 4, 5, 6, 7, 8, 9], "3 4 5 6 7 8 9")
    assert (first.loss_mask, first.rollout_log_probs[:2]) == ([1, 1, 0, 0, 0, 1, 1], [-0.5, -0.25])
    assert (last.tokens, last.response, last.loss_mask) == ([1, 2, 3, 4], "4", [1])
    for one in (first, last):
        assert (one.rollout_id, one.index, one.group_index, one.session_id) == (7, 7, 3, "s-1")
        assert (one.reward, one.status, one.remove_sample) == (1.0, Numbered.Status.COMPLETED, False)
        assert (one.prompt, one.metadata["own"]) == (MESSAGES, [1])
    assert first.metadata["own"] is not last.metadata["own"], "what slime or a filter notes of one is not the other's"


def test_only_the_sample_itself_holds_slimes_trace():
    """slime counts each request that it finds in one."""
    sample = Numbered(index=7)
    sample.trace = ["a request"]
    samples = siblings_of(sample, 3)
    assert samples[-1] is sample
    assert [getattr(one, "trace", None) for one in samples] == [None, None, ["a request"]]
    assert {one.rollout_id for one in samples} == {7}


def test_siblings_count_nothing_twice():
    flat = to_sample(in_segments(), Numbered(), decode=decode)
    first, last = to_samples(in_segments(), Numbered(index=7), decode=decode)
    assert (first.weight_versions, last.weight_versions) == (["7", "8"], ["9"])
    assert flat.weight_versions == ["7", "8", "9"]
    assert (first.non_generation_time, last.non_generation_time, flat.non_generation_time) == (1.75, 4.0, 5.75)
    caches = [(s.prefix_cache_info.cached_tokens, s.prefix_cache_info.total_prompt_tokens) for s in (first, last, flat)]
    assert caches == [(1, 9), (2, 3), (3, 12)]
    assert [s.spec_info.verified for s in (first, last, flat)] == [4, 1, 5]


def test_the_account_of_the_whole_episode_stands_in_the_last_sibling():
    first, last = to_samples(in_segments(), Numbered(index=7), decode=decode, extra={"restarts": 1})
    told = {"stop": "done", "session_id": "s-1", "segments": 2}
    ledger = {"sampled": 4, "trained": 4, "masked": {}, "observation": 2, "scaffold": 1}
    spans = [[0, 2, "sampled", None, 0], [2, 4, "observation", None, 0], [4, 5, "prompt", None, 0]]
    spans.append([5, 7, "sampled", None, 1])
    assert first.metadata["agentrl"] == {**told, "segment": 0, "ledger": ledger, "spans": spans}
    account = last.metadata["agentrl"]
    assert account["ledger"] == {"sampled": 1, "trained": 1, "masked": {}, "observation": 0, "scaffold": 0}
    assert (account["segment"], account["turns"], account["restarts"]) == (1, 3, 1)
    assert (account["reward_parts"], account["info"]) == ({"em": 1.0}, {"seen": 1})


def test_one_segment_is_a_list_of_one():
    (only,) = to_samples(played(), Numbered(index=7), decode=decode)
    assert (only.rollout_id, only.metadata["agentrl"]["segments"], len(only.tokens)) == (7, 1, 9)
    (only,) = to_samples(played(), Numbered(index=7, rollout_id=70), decode=decode)
    assert only.rollout_id == 70, "a data source that numbers rollouts knows better"


def test_a_failure_masks_all_siblings_and_each_says_why():
    trajectory = in_segments(StopReason.FAILED, None)
    trajectory.failure = Failure("environment", "tool", "SandboxError: died", "")
    samples = to_samples(trajectory, Numbered(index=7), decode=decode)
    assert [sum(s.loss_mask) for s in samples] == [0, 0]
    assert [(s.remove_sample, s.reward, s.status) for s in samples] == [(True, 0.0, Numbered.Status.FAILED)] * 2
    assert [s.metadata["agentrl"]["failure"]["boundary"] for s in samples] == ["tool"] * 2
    assert samples[0].metadata["agentrl"]["ledger"]["masked"] == {"env_failure": 4}


def test_a_prompt_that_met_a_limit_is_a_sibling_with_a_dummy():
    trajectory = played(StopReason.CONTEXT_FULL)
    trajectory.begin_segment(Rendered((1, 2, 3), (RenderedSpan("prompt", 0, 3),)))
    samples = to_samples(trajectory, Numbered(index=7), decode=decode)
    assert [(s.tokens[-2:], s.loss_mask[-1]) for s in samples] == [([8, 9], 1), ([3, 3], 0)]
    assert {s.status for s in samples} == {Numbered.Status.TRUNCATED}, "the episode's, as the reward is"


def test_a_host_that_cannot_tell_siblings_is_refused(Sample):
    with pytest.raises(ConfigError, match=r"needs a Sample with a rollout_id.*leave the setting out"):
        to_samples(played(), Sample(index=7), decode=decode)
    with pytest.raises(ConfigError, match=r"needs sample.index"):
        to_samples(played(), Numbered(), decode=decode)


@pytest.mark.filterwarnings("default")
def test_slime_trains_siblings_as_one_rollout():
    if why := hosts.absent("slime"):
        pytest.skip(why)
    with hosts.imported("slime") as slime:
        utils = sys.modules.get("slime.observability.rollout_data_utils", slime.metrics)
        validate = getattr(utils, "validate_rollout_id_annotated", None) or utils._validate_rollout_id_annotated
        groups = [
            [to_samples(play(), slime.Sample(index=2 * g + i), decode=decode) for i, play in enumerate(members)]
            for g, members in enumerate([(in_segments, played), (played, in_segments)])
        ]
        validate(groups)
        samples = [sample for group in groups for rollout in group for sample in rollout]
        flags = SimpleNamespace(**{**hosts.ARGS, "global_batch_size": 2})
        hook = lambda args, samples: ([1.0] * len(samples), [0.0] * len(samples))  # noqa: E731
        conversion = hosts.Conversion(slime, flags, hook)
        data = conversion.convert(samples)
        assert data["rollout_ids"] == [0, 0, 1, 2, 3, 3]
        assert data["rollout_mask_sums"] == [5, 5, 4, 4, 5, 5], "of both segments"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(slime.ray, "put", lambda shipped: shipped)
            shares = conversion.split(data)
        assert sorted(i for share in shares for i in share["partition"]) == [0, 1, 2, 3, 4, 5]
        assert shares[0]["global_batch_sizes"] == [2, 2], "rollouts, not samples"


def guesses(input_ids, said):
    """The turn that is next, by how many are in the prompt."""
    return SCRIPT[min(said(input_ids).count("<|im_start|>assistant") - 1, len(SCRIPT) - 1)]


@pytest.mark.filterwarnings("default")
def test_stripped_thoughts_through_slimes_rollout(tmp_path):
    """adapt gives lists; slime validates, flattens and counts them, and evaluation still sees one sample an episode."""
    if why := hosts.absent("slime"):
        pytest.skip(why)
    save_model(tiny_model(0), tiny_tokenizer(), tmp_path / "checkpoint")
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    thinker = load_renderer(tiny_tokenizer(), chat_template=TEMPLATE)
    engine = ScriptedEngine(lambda input_ids: guesses(input_ids, thinker.decode), thinker)
    config = {"env": f"{thinking.__file__}:Guess", "thinking": "strip", "limits": {"turns": 4, "tokens": None}}
    flags = {"custom_reward_post_process_path": "agentrl.slime.post_process_rewards"}
    with hosts.imported("slime") as slime, pytest.MonkeyPatch.context() as patch:
        patch.setattr(slime.ray, "put", lambda shipped: shipped)
        with starting(slime, tmp_path / "checkpoint", thinker, tmp_path) as start:
            rows = [{"prompt": f"Guess {i}.", "label": "", "metadata": {}} for i in range(4)]
            agentrl = {**config, "chat_template": str(tmp_path / "chat.jinja")}
            run = start(rows, engine=engine, agentrl=agentrl, **flags)
            samples, _ = run.samples()
            data, shares = run.convert(samples)
            held_out = run.evaluate()
    accounts = [sample.metadata["agentrl"] for sample in samples]
    assert len({sample.rollout_id for sample in samples}) == 8 < len(samples)
    assert [a["segment"] for a in accounts] == [i for a in accounts if "turns" in a for i in range(a["segments"])]
    assert {a["turns"] for a in accounts if "turns" in a} == {4}
    assert sum(map(sum, data["loss_masks"])) == sum(a["ledger"]["sampled"] for a in accounts)
    assert max(map(abs, data["rewards"])) < 1e-6, "all play alike"
    assert sum(len(share["partition"]) for share in shares) == len(samples)
    assert len(held_out["rewards"]) == 8


# from_sample

ARGS = SimpleNamespace(apply_chat_template=False)
RENDERED = SimpleNamespace(apply_chat_template=True)


def test_a_task_shares_nothing_with_its_sample(Sample):
    sample = Sample(prompt=[dict(m) for m in MESSAGES], label={"a": [1]}, metadata={"tools": [{"type": "function"}]})
    task = from_sample(ARGS, sample)
    assert (task.prompt, task.label, task.tools) == (MESSAGES, {"a": [1]}, [{"type": "function"}])
    task.prompt[0]["content"] = task.label["a"] = task.metadata["tools"][0]["type"] = "changed"
    assert sample.prompt == MESSAGES
    assert (sample.label, sample.metadata) == ({"a": [1]}, {"tools": [{"type": "function"}]})


def test_a_group_faces_one_world(Sample):
    tasks = [from_sample(ARGS, Sample(group_index=5, index=i, prompt="p")) for i in (20, 21)]
    assert [(t.seed, t.id, t.split) for t in tasks] == [(5, "5", "train"), (5, "5", "train")]
    task = from_sample(ARGS, Sample(index=21, prompt="p"), evaluation=True)
    assert (task.seed, task.split) == (21, "eval")
    assert from_sample(ARGS, Sample(prompt="p", metadata=None)).seed == 0


def test_a_rendered_prompt_is_raw(Sample):
    assert from_sample(ARGS, Sample(prompt="p")).prompt == "p"
    assert from_sample(RENDERED, Sample(prompt="<|im_start|>")).prompt == Raw("<|im_start|>")


@pytest.mark.parametrize(("flags", "rendered"), [([None, None], False), ([True, True], True), ([], False)])
def test_eval_datasets_decide_for_themselves_who_renders(Sample, flags, rendered):
    args = SimpleNamespace(
        apply_chat_template=False, eval_datasets=[SimpleNamespace(apply_chat_template=f) for f in flags]
    )
    assert isinstance(from_sample(args, Sample(prompt="p"), evaluation=True).prompt, Raw) is rendered
    assert from_sample(args, Sample(prompt="p")).prompt == "p", "training goes by its own flag"


def test_eval_datasets_that_disagree_are_refused(Sample):
    datasets = [SimpleNamespace(apply_chat_template=True), SimpleNamespace(apply_chat_template=None)]
    args = SimpleNamespace(apply_chat_template=False, eval_datasets=datasets)
    with pytest.raises(ConfigError, match=r"eval datasets differ in apply_chat_template.*metadata_overrides"):
        from_sample(args, Sample(prompt="p"), evaluation=True)
    assert from_sample(args, Sample(prompt=MESSAGES), evaluation=True).prompt == MESSAGES, "messages are never rendered"


@pytest.mark.parametrize(
    ("theirs", "ours", "fields"),
    [
        ({}, {"custom_generate_function_path": "agentrl.adapt"}, {"generate_function_path": "agentrl.adapt"}),
        ({"custom_generate_function_path": "slime.generate"}, {}, {}),
        ({"custom_rm_path": "their.rm"}, {}, {}),
        ({"rm_type": "math"}, {"rm_type": "f1"}, {"metadata": {"rm_type": "f1"}}),
        (
            {"metadata_overrides": {"dataset": "a"}},
            {"metadata_overrides": {"dataset": "b"}},
            {"metadata": {"dataset": "b", "x": 1}},
        ),
    ],
)
def test_only_the_eval_dataset_of_the_sample_decides(Sample, theirs, ours, fields):
    their_kwargs, own = {"apply_chat_template_kwargs": {"enable_thinking": True}}, {"enable_thinking": False}
    datasets = [
        SimpleNamespace(apply_chat_template=True, **their_kwargs, **theirs),
        SimpleNamespace(apply_chat_template=False, apply_chat_template_kwargs=own, **ours),
    ]
    args = SimpleNamespace(apply_chat_template=False, apply_chat_template_kwargs=None, eval_datasets=datasets)
    sample = Sample(prompt="p", metadata=fields.get("metadata", {}))
    sample.generate_function_path = fields.get("generate_function_path")
    assert from_sample(args, sample, evaluation=True).prompt == "p"
    assert template_kwargs(args, sample, evaluation=True) == own
    assert template_kwargs(args, sample, evaluation=False) == {}


def test_template_kwargs_of_eval_datasets_that_disagree_are_refused(Sample):
    datasets = [SimpleNamespace(apply_chat_template_kwargs=kwargs) for kwargs in ({"a": 1}, None)]
    args = SimpleNamespace(eval_datasets=datasets)
    with pytest.raises(ConfigError, match=r"differ in apply_chat_template_kwargs.*chat_template_kwargs"):
        template_kwargs(args, Sample(prompt="p"), evaluation=True)


def test_a_samples_own_template_kwargs_win(Sample):
    sample = Sample(prompt="p")
    sample.apply_chat_template_kwargs = {"enable_thinking": False}
    args = SimpleNamespace(apply_chat_template_kwargs={"enable_thinking": True})
    assert template_kwargs(args, sample, evaluation=False) == {"enable_thinking": False}


def test_metadata_and_tools_may_be_json_text(Sample):
    spec = {"type": "function", "function": {"name": "f"}}
    task = from_sample(ARGS, Sample(prompt="p", metadata=json.dumps({"x": 1, "tools": json.dumps([spec])})))
    assert (task.metadata["x"], list(task.tools)) == (1, [spec])


def test_arrays_of_pandas_are_lists(Sample):
    """As pandas reads Search-R1's published Parquet: each list is an array of objects."""
    np = pytest.importorskip("numpy")
    prompt = np.array([{"role": "user", "content": "Capital of France?"}], dtype=object)
    label = {"style": "rule", "ground_truth": {"target": np.array(["Paris", "paris"], dtype=object)}}
    task = from_sample(ARGS, Sample(prompt=prompt, label=label, metadata={"index": np.int64(3), "n": np.arange(2)}))
    assert task.prompt == [{"role": "user", "content": "Capital of France?"}]
    assert task.label == {"style": "rule", "ground_truth": {"target": ["Paris", "paris"]}}
    assert task.metadata == {"index": 3, "n": [0, 1]}


@pytest.mark.parametrize("metadata", ["text", "[1]", "[" * 100_000, 7, [("a", 1)]], ids=range(5))
def test_metadata_that_is_no_mapping_is_refused(Sample, metadata):
    with pytest.raises(ConfigError, match=r"sample.metadata is .*--metadata-key") as excinfo:
        from_sample(ARGS, Sample(prompt="p", metadata=metadata))
    assert len(str(excinfo.value)) < 400


@pytest.mark.parametrize("tools", ["search", {"type": "function"}, ["search"], 7, "{}"])
def test_tools_that_are_no_list_are_refused(Sample, tools):
    with pytest.raises(ConfigError, match=r"metadata\['tools'\] is .*give a list"):
        from_sample(ARGS, Sample(prompt="p", metadata={"tools": tools}))


@pytest.mark.parametrize("prompt", [None, 7, [], ["text"], [{"content": "no role"}]])
def test_a_prompt_of_another_kind_is_refused(Sample, prompt):
    with pytest.raises(ConfigError, match=r"neither text nor messages.*--input-key"):
        from_sample(ARGS, Sample(prompt=prompt))


def test_the_task_does_not_see_what_agentrl_noted_of_an_earlier_attempt(Sample):
    sample = Sample(prompt="p", metadata={"own": 1, "agentrl": {"stop": "aborted", "resume": {"key": "k"}}})
    assert from_sample(SimpleNamespace(), sample).metadata == {"own": 1}

from __future__ import annotations

from types import SimpleNamespace

import pytest

from agentrl.engine import Generation
from agentrl.errors import ConfigError, Failure
from agentrl.render import Rendered, RenderedSpan
from agentrl.slime import from_sample, to_sample
from agentrl.slime.sample import clear
from agentrl.trajectory import Trajectory
from agentrl.types import Action, Raw, StopReason

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
            "parse_errors": 0,
            "session_id": "s-1",
            "reward_parts": {"em": 1.0},
            "ledger": {"sampled": 4, "trained": 4, "masked": {}, "observation": 2, "scaffold": 1},
        },
    }
    assert own == {"difficulty": 3}, "metadata may be shared; it is replaced, not written to"


def test_wrong_tool_calls_and_tool_bugs_are_counted(Sample):
    trajectory = played()
    trajectory.turns[1].parse_error = "content"
    trajectory.info["tool_errors"] = {"search:KeyError": 2}
    account = to_sample(trajectory, Sample(), decode=decode).metadata["agentrl"]
    assert (account["parse_errors"], account["info"]) == (1, {"tool_errors": {"search:KeyError": 2}})


@pytest.mark.parametrize(
    ("stop", "status"),
    [
        (StopReason.DONE, "COMPLETED"),
        (StopReason.TURNS, "COMPLETED"),
        (StopReason.PARSE_ERRORS, "COMPLETED"),
        (StopReason.TURN_CUT, "TRUNCATED"),
        (StopReason.TOKENS, "TRUNCATED"),
        (StopReason.CONTEXT, "TRUNCATED"),
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
    assert account["failure"] == {"kind": "environment", "boundary": "tool", "error": "SandboxError: died"}
    assert account["ledger"]["masked"] == {"env_failure": 4}


def with_prompt() -> Trajectory:
    t = Trajectory()
    t.append_prompt(Rendered((1, 2), (RenderedSpan("prompt", 0, 2),)))
    t.stop = StopReason.CONTEXT
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
    assert sample.metadata["agentrl"]["restarts"] == 1
    assert sample.prefix_cache_info.total_prompt_tokens == 2 + 7, "of the last attempt alone"


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
    assert [(t.seed, t.id, t.split) for t in tasks] == [(5, "20", "train"), (5, "21", "train")]
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
    with pytest.raises(ConfigError, match="some eval datasets set apply_chat_template"):
        from_sample(args, Sample(prompt="p"), evaluation=True)


@pytest.mark.parametrize("prompt", [None, 7, [], ["text"], [{"content": "no role"}]])
def test_a_prompt_of_another_kind_is_refused(Sample, prompt):
    with pytest.raises(ConfigError, match=r"neither text nor messages.*--input-key"):
        from_sample(ARGS, Sample(prompt=prompt))

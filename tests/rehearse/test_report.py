"""The verdict of a rehearsal, from recorded figures."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from agentrl.rehearse.output import print_replacements, print_report
from agentrl.rehearse.plan import Replacement
from agentrl.rehearse.report import (
    RehearsalReport,
    continued,
    failed_stage,
    figures,
    log_probs,
    notes,
    problems,
    samples_of,
)
from agentrl.rehearse.stages import Stage, State

AGENTRL = {
    "episodes": 16,
    "failed_episodes": 0,
    "unscored_episodes": 0,
    "turns_mean": 2.0,
    "sampled_tokens": 40,
    "trained_tokens": 40,
}


def event(stage, **data):
    return {"t": 1.0, "pid": 1, "stage": stage, "event": "data", "rollout": None, "data": data}


def metrics(stage, prefix, step=0, **values):
    return event(stage, step=step, metrics={f"{prefix}{name}": value for name, value in values.items()})


def trained(difference=0.003, step=0, **values):
    values = {"loss": 0.1, "grad_norm": 0.5, "train_rollout_logprob_abs_diff": difference, **values}
    return metrics("training", "train/", step, **values)


def sent(total, rank=0):
    return event("weights", rank=rank, sum=total)


def run(**changes):
    """The events of a good run of two rollouts."""
    rollout = metrics("rollout", "rollout/agentrl/", **{**AGENTRL, **changes})
    arguments = event("arguments", args={"n_samples_per_prompt": 4})
    return [arguments, sent(10.0), rollout, trained(), sent(11.0), rollout, trained(step=1), sent(12.0)]


def samples(rewards=(0.0, 1.0, 0.0, 1.0), count=20, mask=(1, 1, 1, 1)):
    return [
        {"rollout": 0, "index": number, "loss_mask": [*mask], "reward": rewards[number % len(rewards)]}
        for number in range(count)
    ]


def found(data, rows=None, *, random=False, grouped=True, stale=False):
    rows = samples() if rows is None else rows
    return [*problems(figures(data, rows), data, random=random, grouped=grouped, stale=stale)]


def test_a_good_run_has_no_problem():
    assert found(run()) == []


def test_each_update_has_its_difference():
    assert [(row["update"], row["step"]) for row in log_probs(run())] == [(1, 0), (2, 1)]


def test_ranks_send_one_update_together():
    data = [sent(1.0, 1), sent(1.0, 0), trained(), sent(2.0, 0), sent(2.0, 1), trained()]
    assert [row["update"] for row in log_probs(data)] == [1, 2]


def test_another_model_in_the_engine():
    data = run()
    data[6] = trained(0.086, step=1)
    (problem,) = found(data)
    assert problem.startswith(
        "training: after weight update 2 the engine's log-probs differ from the trainer's by 0.086"
    )


def test_episodes_of_older_weights_are_not_compared():
    data = run()
    data[6] = trained(0.086, step=1)
    assert found(data, stale=True) == []
    data[4] = trained(0.086)
    assert found(data, stale=True)[0].startswith("training: after weight update 1 ")


def test_failed_episodes_have_their_reasons():
    failed = {"failed_episodes": 3, "failures/bug/step": 3, "failed_at/my_env.py:12 KeyError": 3}
    (problem,) = found(run(**failed))
    assert problem == "rollout: 6 of 32 episodes failed: bug/step (6); at my_env.py:12 KeyError (6)"


NOT_SENT = "HTTP 409: 4 weights were released and no update has sent them since"


@pytest.mark.parametrize(
    ("error", "stage", "hint"),
    [
        ("KeyError: 'a'", "rollout", ""),
        (NOT_SENT, "weights", ""),
        (f"{NOT_SENT} (layers.0.q_proj.bias)", "weights", "; does MODEL_ARGS lack --add-qkv-bias?"),
        (f"{NOT_SENT} (layers.0.q_norm.weight)", "weights", "; does MODEL_ARGS lack --qk-layernorm?"),
    ],
)
def test_the_first_failed_episode_has_its_error(error, stage, hint):
    text = f"episode 7f failed in engine: {error}"
    warnings = [event("rollout", level="WARNING", message=line) for line in (text, text.replace("7f", "8a"))]
    data = [*run(failed_episodes=3, **{"failures/engine": 3}), *warnings]
    assert found(data) == [f"{stage}: 6 of 32 episodes failed: engine (6); the first: engine: {error}{hint}"]
    assert [*notes(figures(data, samples()), data, random=False)] == []


def test_rewards_that_nobody_gave():
    assert "got no reward" in found(run(unscored_episodes=16))[0]


def test_episodes_that_nothing_scores():
    text = "no Env.score, step reward, `reward`, --rm-type or --custom-rm-path: every reward is 0"
    data = [*run(), *2 * [event("rollout", level="WARNING", message=text)]]
    assert found(data, random=True) == [f"rollout: {text}"]


def test_samples_that_were_never_converted_are_no_second_problem():
    assert found(run(), []) == []


def test_episodes_without_a_token():
    changes = {"sampled_tokens": 0, "trained_tokens": 0, "stops/context_full": 16}
    problem = next(line for line in found(run(**changes), samples(mask=())) if "no token" in line)
    assert problem.startswith("rollout: no token of 32 episodes is trained; they ended so: ")
    assert "context_full (32)" in problem


def test_tokens_that_nobody_counts():
    assert "agentrl has a bug" in found(run(sampled_tokens=44))[0]
    assert "changes the masks" in found(run(), samples(mask=(1, 1, 0, 0)))[0]


def test_masked_tokens_by_reason():
    changes = {"trained_tokens": 10, "masked_tokens/host": 30}
    rows = samples(count=20, mask=(1,))
    assert found(run(**changes), rows) == ["rollout: 60 of 80 sampled tokens are not trained: host (60)"]
    assert figures(run(**changes), rows)["ledger"] == {"sampled": 80, "trained": 20, "masked": {"host": 60}}
    by_request = event("arguments", args={"n_samples_per_prompt": 4, "mask_offpolicy_in_partial_rollout": True})
    assert found([by_request, *run(**changes)[1:]], rows) == []


def test_nothing_trained():
    data = run()
    data[3], data[6] = trained(grad_norm=0.0), trained(grad_norm=0.0)
    assert found(data) == ["training: every gradient is zero: nothing would be learned"]
    data[3] = trained(loss=None)
    assert found(data) == ["training: a loss or gradient is not a number"]


def test_weights_that_do_not_change():
    data = [item if "sum" not in item["data"] else sent(10.0) for item in run()]
    assert found(data) == ["training: the weights are the same at every update: training did not change them"]


@pytest.mark.parametrize(
    ("reward", "random", "expected"), [(1.0, True, 1), (1.0, False, 1), (0.0, False, 1), (0.0, True, 0)]
)
def test_groups_without_spread(reward, random, expected):
    """A random model earns nothing, and that is no mistake of the launch."""
    assert len(found(run(), samples([reward]), random=random)) == expected


def test_groups_of_one():
    data = [event("arguments", args={"n_samples_per_prompt": 1}), *run()[1:]]
    assert "groups have one episode" in found(data)[0]
    assert found(data, grouped=False) == []


def test_episodes_of_the_evaluation_that_fail():
    data = [
        *run(),
        metrics("evaluation", "eval/held_out/agentrl/", failed_episodes=2),
        metrics("evaluation", "eval/", held_out=0.5),
    ]
    assert found(data) == ["evaluation: 2 episodes failed"]


def test_errors_are_problems_and_warnings_are_notes():
    data = [
        *run(),
        event("rollout", level="ERROR", message="broken"),
        *2 * [event("rollout", level="WARNING", message="odd")],
    ]
    assert found(data) == ["rollout: agentrl: broken"]
    assert [*notes(figures(data, samples()), data, random=False)] == ["agentrl warns: odd"]


def test_a_run_without_agentrl_has_fewer_figures():
    data = [event("arguments", args={"n_samples_per_prompt": 4}), sent(1.0), trained(), sent(2.0)]
    assert found(data) == []
    assert figures(data, samples())["ledger"] is None


def test_a_run_that_reached_nothing():
    assert found([], []) == []


def test_a_second_start_continues():
    before = run()
    assert [*continued(before, [sent(12.0)], 2, 2)] == []
    assert "rollout 0: 2 was next" in next(continued(before, [sent(12.0)], 2, 0))
    assert "other weights" in next(continued(before, [sent(10.0)], 2, 2))


def test_samples_of_a_killed_process(tmp_path):
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples/5.jsonl").write_text('{"index": 0}\n{"ind')
    assert samples_of(tmp_path, [{"pid": 5}]) == [{"index": 0}]


def test_samples_of_the_second_start_are_not_those_of_the_first(tmp_path):
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples/5.jsonl").write_text('{"index": 0}\n')
    (tmp_path / "samples/6.jsonl").write_text('{"index": 1}\n')
    assert samples_of(tmp_path, [{"pid": 4}, {"pid": 5}]) == [{"index": 0}]


@pytest.fixture
def report():
    stages = [Stage("ray", State.OK, 2.0, 1), Stage("engines", State.FAILED, None, 0, "OSError: [x]", "log.txt:7")]
    return RehearsalReport("run.sh", [Replacement("--a", "1", "2", "few"), Replacement("--b", None, "", "few")], stages)


def test_a_failed_stage_in_one_line(report):
    assert failed_stage(report.stages) == "engines failed: OSError: [x] (log.txt:7)"
    assert failed_stage(report.stages[:1]) is None


def test_the_report_as_text_and_json(report):
    report.figures = figures(run(), samples())
    report.problems = ["a problem"]
    output = io.StringIO()
    console = Console(file=output, width=140)
    print_replacements(console, report.replacements)
    print_report(console, report)
    text = output.getvalue()
    for part in (
        "--a",
        "engines",
        "failed",
        "0.0030 (update 1)",
        "80 sampled, 80 trained",
        "PROBLEM a problem",
        "1 problem",
    ):
        assert part in text
    plain = json.loads(json.dumps(report.to_json()))
    assert plain["verdict"] == "1 problem"
    assert plain["stages"][1]["place"] == "log.txt:7"
    assert plain["replacements"][0] == {"flag": "--a", "before": "1", "after": "2", "reason": "few"}


def test_a_long_run_has_no_long_lines(report):
    report.figures = figures(run(), samples())
    report.figures["log_probs"] = [{"update": i, "step": i, "difference": i / 1000} for i in range(1, 81)]
    report.figures["step_seconds"] = [float(i) for i in range(4, 44)]
    output = io.StringIO()
    print_report(Console(file=output, width=140), report)
    assert "0.0010 to 0.0800 (updates 1 to 80, 80 steps)" in output.getvalue()
    assert "took 4.0 to 43.0 s" in output.getvalue()


def test_an_interrupted_rehearsal_is_not_good(report):
    report.interrupted = True
    assert not report.is_good
    assert report.verdict == "interrupted"

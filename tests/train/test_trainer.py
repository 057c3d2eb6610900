import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from array import array
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from agentrl import Action, Generation, StopReason
from agentrl.errors import CanaryError, ConfigError
from agentrl.models import load_model
from agentrl.rollout import BugError
from agentrl.train import DivergedError, Trainer, model_folder, train
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Rendered, RenderedSpan
from tests.train.conftest import LIMITS
from tests.train.toy_runs import TOY, Crash, CrashingTrainer, lines, played, quiet


@pytest.fixture
def six_steps(make_config, demonstrations):
    """A run of `tiny` of six steps after a warm start, evaluated on the way, with a checkpoint every other step."""

    def make(out, steps=6):
        return make_config(
            model="tiny",
            out=out,
            steps=steps,
            checkpoint_every=2,
            eval_every=3,
            eval_data=demonstrations.with_name("tasks.jsonl"),
            eval_tasks=3,
            warm_start={"demonstrations": demonstrations, "steps": 3, "optimizer": "adamw"},
        )

    return make


@pytest.fixture(scope="module")
def known():
    """The run that nothing interrupts: played once, as all are alike."""
    return {}


@pytest.fixture
def straight(six_steps, known, tmp_path):
    """Its config, summary, and what it said."""
    if not known:
        config, console = six_steps(tmp_path / "straight"), quiet()
        summary = train(config, console=console)
        known["run"] = config, summary, console.file.getvalue()
    return known["run"]


@pytest.mark.thorough
@pytest.mark.curve
def test_a_run_leaves_all_it_promises(straight):
    config, summary, said = straight
    run = config.out
    names = {path.name for path in run.iterdir()}
    promised = {"config.yaml", "metrics.jsonl", "summary.json", "bill.json", "reward.png"}
    promised |= {"tensorboard", "tracker_id"} if find_spec("tensorboardX") else set()
    promised |= {"trajectories", "checkpoints", "model", "index", "imitation.jsonl", "journal.db"}
    promised |= {"evaluations.jsonl", "best", "events.jsonl", "fingerprint.json"}
    assert names == promised
    best = f"step_{summary.best['step']:06d}"
    assert (run / "best").readlink() == Path("checkpoints") / best
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"step_000004", "step_000006", best}
    metrics = lines(run)
    assert [line["step"] for line in metrics] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in metrics if "eval_reward_mean" in line] == [3]
    for line in metrics:
        assert line["sampled_tokens"] == line["trained_tokens"] + sum(line["masked_tokens"].values()) > 0
        assert line["logprob_diff_max"] < 1e-4, "sampling and training disagree"
        assert line["turns_mean"] > 2
    stored = json.loads((run / "summary.json").read_text())
    assert stored["steps"] == summary.steps == 6
    assert stored["sampled_tokens"] == sum(line["sampled_tokens"] for line in metrics)
    assert stored["reward_first"] == metrics[0]["reward_mean"]
    assert {type(stored[f"eval_{name}"]) for name in ("start", "warm", "final")} == {float}
    assert "held out, warm: 3 episodes, mean reward" in said
    assert re.search(r"after the warm start: mean reward [\d.]+, and \d of \d groups have better and worse", said)
    assert "warm start 3/3" in said
    assert "rl 6/6" in said


@pytest.mark.thorough
def test_the_final_model_is_the_trained_one(make_config, tmp_path):
    config = make_config(learning_rate=1e-2)
    train(config, console=quiet())

    trained, fresh = load_model(str(model_folder(tmp_path / "run"))), load_model(config.model)
    assert not torch.equal(trained.model.embed_tokens.weight, fresh.model.embed_tokens.weight)
    latest = load_model(str(tmp_path / "run" / "checkpoints" / "step_000002"))
    assert torch.equal(trained.model.embed_tokens.weight, latest.model.embed_tokens.weight)


@pytest.mark.thorough
def test_resuming_after_a_crash_is_as_if_nothing_had_happened(six_steps, straight, tmp_path):
    (whole, summary, _), broken = straight, six_steps(tmp_path / "broken")
    with pytest.raises(Crash):
        train(broken, trainer=CrashingTrainer, console=quiet())
    assert [line["step"] for line in lines(broken.out)] == [1, 2, 3]

    console = quiet()
    resumed = train(broken, resume=True, console=console)

    assert "resuming after step 2" in console.file.getvalue()
    assert lines(broken.out) == lines(whole.out)
    assert played(broken.out) == played(whole.out)
    assert (resumed.eval_start, resumed.eval_warm) == (summary.eval_start, summary.eval_warm)
    assert resumed.eval_final == summary.eval_final


@pytest.mark.thorough
def test_resuming_after_kill_9(six_steps, straight, tmp_path):
    (whole, *_), killed = straight, six_steps(tmp_path / "killed")
    (tmp_path / "killed.yaml").write_text(killed.to_yaml())
    program = (
        "from agentrl.train import TrainConfig, train\n"
        f"train(TrainConfig.from_yaml({str(tmp_path / 'killed.yaml')!r}))\n"
    )
    # as many threads as here: sums are not the same to the bit otherwise
    threads = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=threads
    )
    metrics, deadline = killed.out / "metrics.jsonl", time.monotonic() + 100
    while not metrics.exists() or metrics.read_text().count("\n") < 3:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stderr.read().decode()
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()

    train(killed, resume=True, console=quiet())

    assert lines(killed.out) == lines(whole.out)
    assert played(killed.out) == played(whole.out)


@pytest.mark.thorough
def test_resuming_before_the_first_checkpoint_begins_anew(six_steps, tmp_path):
    class CrashingWarmStart(Trainer):
        async def warm_start(self):
            await super().warm_start()
            raise Crash

    config = six_steps(tmp_path / "run", steps=1)
    with pytest.raises(Crash):
        train(config, trainer=CrashingWarmStart, console=quiet())

    console = quiet()
    train(config, resume=True, console=console)

    assert "no checkpoint yet: beginning anew" in console.file.getvalue()
    assert len(lines(config.out)) == 1


@pytest.mark.thorough
def test_the_same_seed_repeats_and_another_does_not(make_config, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(make_config(model="tiny", out=tmp_path / name, seed=seed), console=quiet())

    assert played(tmp_path / "a") == played(tmp_path / "b")
    assert lines(tmp_path / "a") == lines(tmp_path / "b")
    assert played(tmp_path / "a") != played(tmp_path / "c")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"env": "nowhere:Env"}, "no module 'nowhere'"),
        ({"data": "nowhere.jsonl"}, "nowhere.jsonl: no such data file"),
        ({"eval_data": "nowhere.jsonl"}, "nowhere.jsonl: no such data file"),
        ({"model": "huge"}, "unknown model 'huge'"),
        ({"reward": f"{TOY}:nothing"}, "has no 'nothing'"),
        ({"reward": f"{TOY}:NOT_A_FUNCTION"}, "is 3, not a function of a trajectory"),
        ({"warm_start": {"demonstrations": "nowhere.jsonl"}}, "demonstrations; record some with agentrl play --out"),
    ],
)
def test_bad_input_is_told_before_anything_is_written(make_config, tmp_path, values, says):
    with pytest.raises(ConfigError) as error:
        train(make_config(**values), console=quiet())

    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_another_run_is_not_overwritten(make_config, tmp_path):
    train(make_config(steps=0), console=quiet())
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}

    with pytest.raises(ConfigError, match="holds another run; add --resume"):
        train(make_config(steps=0), console=quiet())

    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


@pytest.mark.thorough
def test_resuming_with_other_data_is_refused(make_config, tmp_path):
    train(make_config(), console=quiet())
    with (tmp_path / "tasks.jsonl").open("a") as file:
        file.write('{"prompt": "one more"}\n')

    with pytest.raises(ConfigError, match="restore the data"):
        train(make_config(steps=4), resume=True, console=quiet())


@pytest.mark.thorough
def test_a_finished_run_can_be_taken_further(make_config, tmp_path):
    train(make_config(), console=quiet())

    summary = train(make_config(steps=3), resume=True, console=quiet())

    assert summary.steps == 3
    assert [line["step"] for line in lines(tmp_path / "run")] == [1, 2, 3]


@pytest.mark.thorough
def test_episodes_of_a_broken_environment_are_masked_and_counted(make_config, tmp_path):
    train(make_config(env=f"{TOY}:Flaky", prompts_per_step=10, steps=1), console=quiet())

    [line] = lines(tmp_path / "run")
    assert line["failed_episodes"] == 4
    assert line["masked_tokens"]["env_failure"] > 0
    assert line["sampled_tokens"] == line["trained_tokens"] + line["masked_tokens"]["env_failure"]


@pytest.mark.thorough
def test_failed_episodes_stand_beside_every_mean(make_config, tmp_path):
    console = quiet()
    more = {"eval_every": 1, "eval_tasks": 6}
    config = make_config(env=f"{TOY}:Flaky", prompts_per_step=10, steps=2, **more)
    summary = train(config.model_copy(update={"eval_data": config.data}), console=console)
    said = console.file.getvalue()
    assert re.search(r"held out, start: 6 episodes, mean reward \d\.\d{3} of 5, 1 failed, ", said), said
    assert re.search(r"rl 2/2  reward \S+  failed 4 ", said), said
    assert [line["eval_failed_episodes"] for line in lines(tmp_path / "run")[:1]] == [1]
    stored = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert stored["failed"] == {"eval_start": 1, "eval_final": 1, "reward_first": 4, "reward_last": 4} == summary.failed


def test_an_evaluation_in_which_all_fail_has_no_mean(make_config, tmp_path):
    console = quiet()
    config = make_config(env=f"{TOY}:Flaky", steps=0)
    (tmp_path / "broken.jsonl").write_text('{"prompt": "x", "id": "1", "label": 0}\n')
    config = config.model_copy(update={"eval_data": tmp_path / "broken.jsonl"})
    assert train(config, console=console).eval_start is None
    assert "held out, start: 1 episodes, no mean reward, 1 failed" in console.file.getvalue()


def test_a_bug_ends_the_run_with_its_traceback(make_config):
    with pytest.raises(BugError, match="KeyError: 'oops'") as error:
        train(make_config(env=f"{TOY}:Buggy"), console=quiet())

    assert "toy_env.py" in str(error.value)


@pytest.mark.thorough
def test_a_reward_function_replaces_the_score(make_config, tmp_path):
    train(make_config(reward=f"{TOY}:even"), console=quiet())

    assert {reward for _, _, _, reward, _ in played(tmp_path / "run")} <= {0.0, 1.0}


WAYS = [
    {"algorithm": "dr_grpo"},
    {"algorithm": "gspo"},
    {"reduction": "sample", "dual_clip": 3.0},
    {"credit": "turn"},
    {"algorithm": "flash_reinforce", "group_size": 1, "prompts_per_step": 12},
    {"algorithm": "flash_reinforce", "credit": "turn"},
    {"tis_clip": 2.0},
    {"kl_coef": 0.1},
    {"dtype": "bfloat16", "numerics": {"stop": 1.0}},
]


@pytest.mark.thorough
@pytest.mark.parametrize("values", WAYS)
def test_the_other_ways_to_learn_run_too(make_config, tmp_path, values):
    train(make_config(steps=1, **values), console=quiet())
    train(make_config(steps=2, **values), resume=True, console=quiet())

    first, second = lines(tmp_path / "run")
    assert first["grad_norm"] > 0
    if "kl_coef" in values:
        assert (first["kl"] >= 0, second["kl"] > first["kl"]) == (True, True), "the reference stays where RL began"


@pytest.mark.thorough
def test_a_loss_that_is_not_finite_keeps_the_last_good_checkpoint(make_config, tmp_path):
    class Poisoned(Trainer):
        def rows(self, groups):
            rows, count = super().rows(groups)
            if self.position.step == 1:
                rows[0].weights[0] = float("nan")
            return rows, count

    with pytest.raises(DivergedError, match=r"step 2: the loss is nan.*The last good weights: .*step_000001"):
        train(make_config(steps=3, checkpoint_every=1), trainer=Poisoned, console=quiet())

    assert [line["step"] for line in lines(tmp_path / "run")] == [1]
    good = load_model(str(model_folder(tmp_path / "run")))
    assert all(p.isfinite().all() for p in good.parameters())


async def test_weights_are_handed_over_under_a_new_version(make_config):
    async with Trainer(make_config(), console=quiet()) as trainer:
        first = await trainer.collect(1)
        trainer.update(first, 1)
        second = await trainer.collect(2)

    assert {v for group in first for t in group for v in t.weight_versions} == {"0"}
    assert {v for group in second for t in group for v in t.weight_versions} == {"1"}


@pytest.mark.thorough
def test_the_engine_has_the_weights_in_every_rollout_and_sleeps_while_they_change(six_steps, tmp_path):
    calls = []

    class Watched(Trainer):
        def _open_engine(self, renderer):
            engine = super()._open_engine(renderer)

            def watch(name):
                original = getattr(engine, name)

                async def called(*args):
                    calls.append(" ".join([name, *args[1:]]))
                    await original(*args)

                return called

            for name in ("update", "sleep", "wake"):
                setattr(engine, name, watch(name))
            return engine

        async def collect(self, step):
            calls.append(f"play {step}")
            return await super().collect(step)

        async def evaluate(self, name):
            found = await super().evaluate(name)
            calls.append(f"eval {name}")
            return found

        def update(self, groups, step):
            calls.append(f"learn {step}")
            return super().update(groups, step)

    train(six_steps(tmp_path / "run", steps=4), trainer=Watched, console=quiet())
    said = "; ".join(calls)
    assert said.startswith("wake; update 0; eval start; sleep; wake; update 0; eval warm; play 1; sleep; learn 1; wake")
    assert "learn 2; wake; update 2; play 3; sleep; learn 3; wake; update 3; eval step_000003; play 4; sleep" in said
    assert said.endswith("learn 4; wake; update 4; eval final")


@pytest.mark.thorough
def test_ctrl_c_leaves_a_run_that_can_go_on(make_config, tmp_path):
    class Interrupted(Trainer):
        async def collect(self, step):
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        train(make_config(), trainer=Interrupted, console=quiet())

    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))
    train(make_config(), resume=True, console=quiet())
    assert len(lines(tmp_path / "run")) == 2


@pytest.mark.thorough
def test_a_run_begins_from_the_model_of_another(make_config, tmp_path):
    train(make_config(), console=quiet())
    train(make_config(model=str(tmp_path / "run"), out=tmp_path / "second", steps=1), console=quiet())

    assert len(lines(tmp_path / "second")) == 1


def test_overlong_episodes_are_masked_and_stay_in_the_baseline(make_config, tmp_path):
    train(make_config(mask_overlong=True, steps=1, limits={**LIMITS, "max_tokens_per_turn": 3}), console=quiet())

    [line] = lines(tmp_path / "run")
    cut = line["stops"]["turn_max_tokens"]
    assert 0 < cut < line["episodes"]
    assert line["masked_tokens"] == {"overlong": line["sampled_tokens"] - line["trained_tokens"]}
    assert line["masked_tokens"]["overlong"] > 0

    text = (tmp_path / "run" / "trajectories" / "step_000001.jsonl").read_text()
    episodes = [Trajectory.from_json(json.loads(text_line)) for text_line in text.splitlines()]
    assert all(any(t.loss_mask) != t.truncated for t in episodes)
    groups = [episodes[i : i + 4] for i in range(0, 12, 4)]
    weights = [row.weights[0] for row in Trainer(make_config(algorithm="dr_grpo")).rows(groups)[0]]
    expected = [t.reward - sum(o.reward for o in group) / 4 for group in groups for t in group if not t.truncated]
    assert weights == pytest.approx(expected, abs=1e-6), "a truncated episode's reward counts in the mean"


def played_by_hand(*episodes):
    """Trajectories of the given turns, each a pair of tokens and step reward, without an observation."""
    found = []
    for turns, reward in episodes:
        trajectory = Trajectory()
        trajectory.append_prompt(Rendered((10, 11, 12), (RenderedSpan("prompt", 0, 3),)))
        for tokens, step_reward in turns:
            trajectory.append_model(Generation(list(tokens), [-0.5] * len(tokens), "stop"))
            trajectory.append_action(Action("", "", tokens=tuple(tokens)))
            trajectory.turns[-1].reward = step_reward
        trajectory.reward, trajectory.stop = reward, StopReason.DONE
        found.append(trajectory)
    return found


@pytest.mark.parametrize(
    ("reduction", "normaliser", "shares"),
    [("token", 7, [1.0, 1.0]), ("sample", 2, [1 / 5, 1 / 2]), ("constant", 2 * 50, [1.0, 1.0])],
)
def test_what_the_loss_is_the_mean_over(make_config, reduction, normaliser, shares):
    group = played_by_hand(([((20, 21), None), ((22, 23, 24), None)], 1.0), ([((20, 21), None)], 0.0))
    trainer = Trainer(make_config(reduction=reduction))
    trainer.length = 50

    rows, _ = trainer.rows([group])

    assert [row.share for row in rows] == shares
    assert trainer.normaliser(group) == normaliser
    total = sum(row.share * len(row.positions) for row in rows) / trainer.normaliser(group)
    assert reduction == "constant" or total == pytest.approx(1.0), "a loss of 1 for each token is a mean of 1"


def test_credit_for_each_turn_reaches_the_rows(make_config):
    group = played_by_hand(
        ([((20, 21), 0.5), ((22,), None)], 1.5),
        ([((20,), None), ((21, 22), None)], 0.0),
    )

    rows, _ = Trainer(make_config(algorithm="dr_grpo", credit="turn")).rows([group])

    assert [row.weights for row in rows] == [[0.75, 0.75, 0.5], [-0.75, -0.5, -0.5]]


def test_groups_without_spread_are_skipped_and_counted(make_config):
    flat = played_by_hand(([((20,), None)], 0.5), ([((21,), None)], 0.5))
    differs = played_by_hand(([((20,), None)], 0.5), ([((21,), None)], 0.0))

    rows, count = Trainer(make_config()).rows([flat, differs])
    assert (len(rows), count) == (2, 1)

    rows, count = Trainer(make_config(kl_coef=0.1)).rows([flat, differs])
    assert (len(rows), count) == (4, 1), "their KL is learned from all the same"


class Skewed(Trainer):
    """An engine whose log-probs are not of the trainer's weights."""

    async def collect(self, step):
        groups = await super().collect(step)
        for trajectory in (trajectory for group in groups for trajectory in group):
            skewed = [log_prob * (1.3 if step == 2 else 1.0) for log_prob in trajectory.segment._log_probs]
            trajectory.segment._log_probs = array("f", skewed)
        return groups


@pytest.mark.thorough
def test_an_engine_that_disagrees_stops_the_run(make_config, tmp_path):
    with pytest.raises(CanaryError, match=r"^step 2: trainer and engine differ by \d\.\d+ on average"):
        train(make_config(steps=3, checkpoint_every=1), trainer=Skewed, console=quiet())

    run = tmp_path / "run"
    first, second = lines(run)
    assert first["logprob_diff_mean"] < 1e-5 < 0.5 < second["logprob_diff_mean"], "the step that told is kept"
    assert max(path.name for path in (run / "checkpoints").iterdir()) == "step_000001"

    train(make_config(steps=3, checkpoint_every=1, numerics=None), trainer=Skewed, resume=True, console=quiet())
    assert [line["step"] for line in lines(run)] == [1, 2, 3]


@pytest.mark.thorough
def test_an_engine_that_disagrees_a_little_is_a_warning(make_config):
    console = quiet()
    train(make_config(numerics={"warn": 1e-12}), console=console)

    # One short episode is compared before the step; its difference is exactly 0 on some processors.
    assert re.findall(r"warning: (.*): trainer and engine differ", console.file.getvalue()) in (
        ["step 1"],
        ["step 1, before it is trained"],
    )


async def test_each_segment_is_a_row_with_its_episodes_advantage(make_config):
    """Two episodes, one of them in two segments; no model is needed to see what would be learned from."""

    def said(trajectory, *tokens):
        trajectory.append_model(Generation(list(tokens), [-token / 128 for token in tokens], "stop"))
        trajectory.append_action(Action("", "", tokens=tokens))

    prompt = Rendered((10, 11, 12), (RenderedSpan("prompt", 0, 3),))
    first, second = Trajectory(), Trajectory()
    for trajectory, reward in ((first, 1.0), (second, 0.0)):
        trajectory.append_prompt(prompt)
        said(trajectory, 20, 21)
        trajectory.reward, trajectory.stop = reward, StopReason.DONE
    first.begin_segment(prompt)
    said(first, 50, 51)

    rows, flat = Trainer(make_config(thinking="strip")).rows([[first, second]])

    assert flat == 0
    assert [[row.tokens[i] for i in row.positions] for row in rows] == [[20, 21], [50, 51], [20, 21]]
    log_probs = [[-token / 128 for token in tokens] for tokens in ([20, 21], [50, 51], [20, 21])]
    assert [list(row.log_probs) for row in rows] == log_probs
    assert rows[0].weights == rows[1].weights
    assert rows[0].weights[0] == -rows[2].weights[0] > 0

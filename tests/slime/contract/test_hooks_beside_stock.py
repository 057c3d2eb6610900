"""The hooks through the real frameworks' own code, beside what stock code makes of the same samples."""

from __future__ import annotations

import copy
import importlib
import itertools
import os
import random
import re
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.slime.host import ESTIMATORS
from agentrl.slime.logs import _canaries
from tests.slime.contract import hosts
from tests.slime.contract.conftest import starting
from tests.slime.hook_samples import args, failed, fan_out, played


@pytest.fixture
def conversion(host) -> Any:
    """`conversion(hook, **args)`: the host's own, with agentrl's hook or with its baseline."""

    def make(hook: str | None = None, **given: Any) -> Any:
        flags = args(**{"use_dynamic_global_batch_size": False, **given})
        return hosts.Conversion(host, flags, hook and host.load_function(hook))

    return make


OURS = "agentrl.slime.post_process_rewards"


def uneven(cls: Any) -> list[Any]:
    """Four prompts of four rollouts, of one to four samples each."""
    rng = random.Random(1)
    return [s for g in range(4) for _ in range(4) for s in fan_out(g, round(rng.random(), 2), rng.randint(1, 4), cls)]


def prompt_means(samples: list[Any], rewards: list[float]) -> list[float]:
    """The mean advantage of each prompt, each of its rollouts counted once."""
    pairs = sorted(zip(samples, rewards, strict=True), key=lambda pair: (pair[0].group_index, pair[0].rollout_id))
    rollouts = [list(found) for _, found in itertools.groupby(pairs, key=lambda pair: pair[0].rollout_id)]
    return [
        statistics.fmean(statistics.fmean(reward for _, reward in siblings) for siblings in group)
        for _, found in itertools.groupby(rollouts, key=lambda siblings: siblings[0][0].group_index)
        for group in [list(found)]
    ]


def test_prompts_are_centred_under_uneven_fan_out(host, conversion):
    """Must show 5: stock slime takes uneven groups for one."""
    host.need(host.has("rollout_id"), "rollout_id, so no fan-out")
    samples = uneven(host.Sample)
    shape = {"n_samples_per_prompt": 4, "rollout_batch_size": 4}
    stock = prompt_means(samples, conversion(**shape).post_process(samples)[1])
    ours = prompt_means(samples, conversion(OURS, **shape).post_process(samples)[1])
    print(f"\nmean advantage of each prompt, each rollout once, {len(samples)} samples of 16 rollouts in 4 prompts")
    print(f"  {host.label:20}", *(f"{mean:+.2f}" for mean in stock))
    print(f"  {'agentrl.slime':20}", *(f"{mean:+.1e}" for mean in ours))
    assert len(ours) == 4
    assert max(map(abs, ours)) < 1e-6
    assert max(map(abs, stock)) > 0.1

    data = conversion(OURS, **shape).convert(samples)
    assert data["raw_reward"] == [sample.reward for sample in samples]
    masks = {s.rollout_id: [sum(t.loss_mask) for t in samples if t.rollout_id == s.rollout_id] for s in samples}
    assert data["rollout_mask_sums"] == [sum(masks[sample.rollout_id]) for sample in samples]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    "flags", [{}, {"grpo_std_normalization": False}, {"rewards_normalization": False}], ids=["", "no-std", "raw"]
)
def test_where_nothing_is_wrong_nothing_differs(host, conversion, estimator, flags):
    rng = random.Random(2)
    samples = [played(g, rng.choice([0.0, 0.3, 1.0]), host.Sample) for g in range(8) for _ in range(4)]
    given = {"advantage_estimator": estimator, "n_samples_per_prompt": 4, "rollout_batch_size": 8, **flags}
    known = Path(
        host.source, host.name, "data/batch_builder.py" if host.batch_builder else "ray/rollout.py"
    ).read_text()
    uncentred = estimator in ("ppo", "reinforce_plus_plus")
    host.need(f'"{estimator}"' in known or uncentred, f"estimator {estimator}")
    stock = conversion(**given).post_process(samples)
    ours = conversion(OURS, **given).post_process(samples)
    assert ours[0] == stock[0]
    assert ours[1] == pytest.approx(stock[1], abs=2e-6), "stock computes in float32"


def test_failures_move_the_stock_baseline_and_not_ours(host, conversion):
    samples = [played(0, 1.0, host.Sample), played(0, 1.0, host.Sample), failed(0, host.Sample), failed(0, host.Sample)]
    given = {"n_samples_per_prompt": 4, "rollout_batch_size": 1}
    stock = conversion(**given).post_process(samples)[1]
    assert stock[0] > 0.8, "credit for a world that broke beside it"
    assert conversion(OURS, **given).post_process(samples)[1] == [0.0] * 4
    data = conversion(OURS, **given).convert(samples)
    assert [sum(mask) for mask in data["loss_masks"]] == [3, 3, 0, 0]


async def test_the_reward_model_hook(host):
    rm = importlib.import_module(f"{host.name}.rollout.rm_hub")
    given = args(custom_rm_path="agentrl.slime.reward")
    samples = [played(0, 1.0, host.Sample), failed(0, host.Sample)]
    assert await rm.async_rm(given, samples[0]) == 1.0
    assert await rm.batched_async_rm(given, samples) == [1.0, 0.0]
    if host.has("custom_rm_path"):
        samples[0].custom_rm_path = "agentrl.slime.reward"  # as an evaluation's data set names it
        assert await rm.async_rm(args(custom_rm_path=None), samples[0]) == 1.0


def test_the_dynamic_filters(host):
    base = importlib.import_module(f"{host.name}.rollout.filter_hub.base_types")
    stock = host.load_function(f"{host.name}.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std")
    has_spread = host.load_function("agentrl.slime.has_spread")
    for rewards in ([1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.5, 0.5 + 1e-9]):
        group = [played(0, reward, host.Sample) for reward in rewards]
        theirs = base.call_dynamic_filter(stock, args(), group)
        assert base.call_dynamic_filter(has_spread, args(), group) == base.DynamicFilterOutput(
            bool(theirs.keep), theirs.reason
        )
    gatherer = base.MetricGatherer()
    mixed = [fan_out(0, 1.0, 2, host.Sample), [failed(0, host.Sample, boundary="reset")]]
    with pytest.raises(AttributeError):
        stock(args(), mixed)
    gatherer.on_dynamic_filter_drop(base.call_dynamic_filter(has_spread, args(), mixed).reason)
    assert gatherer.collect() == {"rollout/dynamic_filter/drop_failed_environment_reset": 1}


def test_a_group_without_spread_is_kept_where_sampling_would_begin_anew(host):
    base = importlib.import_module(f"{host.name}.rollout.filter_hub.base_types")
    host.need(hasattr(base, "should_drop_dynamic_filter_output"), "filter with a fallback")
    group = [failed(0, host.Sample), failed(0, host.Sample)]
    for name, dropped in (("has_spread", True), ("prefer_spread", False)):
        output = base.call_dynamic_filter(host.load_function(f"agentrl.slime.{name}"), args(), group)
        assert base.should_drop_dynamic_filter_output(output, remaining_batch_size=3, target_data_size=2)
        last = base.should_drop_dynamic_filter_output(output, remaining_batch_size=2, target_data_size=2)
        assert last is dropped, name


@pytest.mark.parametrize("path", [None, "agentrl.slime.oldest_first"])
def test_the_buffer(host, path):
    """Group 0 is aborted twice. Stock slime then lets it wait behind group 1; ours does not."""
    source = host.data_source(
        SimpleNamespace(
            **{**hosts.ARGS, "rollout_global_dataset": False, "buffer_filter_path": path, "n_samples_per_prompt": 2}
        )
    )
    groups = [[played(g, cls=host.Sample) for _ in range(2)] for g in range(2)]
    source.add_samples(groups)
    assert source.get_samples(1) == [groups[0]]
    source.add_samples([groups[0]])
    assert source.get_samples(1) == [groups[0] if path else groups[1]]
    assert source.get_buffer_length() == 1


@pytest.fixture
def tracked(host, monkeypatch) -> list[dict[str, Any]]:
    """What the host would send to wandb."""
    calls: list[dict[str, Any]] = []
    for name in ("observability.logging_utils", "utils.logging_utils", "utils.tracking_utils"):
        module = sys.modules.get(f"{host.name}.{name}")
        if hasattr(module, "log"):
            monkeypatch.setattr(module, "log", lambda args, metrics, step_key: calls.append(metrics))
    _canaries.cache_clear()
    return calls


def _log_args(**given: Any) -> SimpleNamespace:
    return args(
        **{
            "custom_rollout_log_function_path": "agentrl.slime.log_rollout",
            "custom_eval_rollout_log_function_path": "agentrl.slime.log_eval",
            "log_passrate": False,
            "log_reward_category": None,
            "sglang_speculative_algorithm": None,
            "rollout_num_gpus": 1,
            "wandb_always_use_train_step": True,
            "global_batch_size": 4,
            "ci_test": False,
            **given,
        }
    )


def _their(host: Any, name: str) -> Any:
    return getattr(host.metrics, name, None) or getattr(host.metrics, f"_{name}")


def test_rollouts_are_logged_beside_the_hosts_own_metrics(host, tracked):
    samples = [played(0, 1.0, host.Sample), played(0, 0.0, host.Sample), failed(1, host.Sample)]
    _their(host, "log_rollout_data")(3, _log_args(), samples, {"rollout/dynamic_filter/drop_x": 1}, 2.0)
    ours, theirs = tracked
    assert ours["rollout/agentrl/failures/environment/step"] == 1
    assert "rollout/response_len/mean" in theirs
    assert theirs["rollout/dynamic_filter/drop_x"] == 1
    assert ours["rollout/step"] == theirs["rollout/step"] == 3 * 2 * 4 // 4


def test_evaluations_are_logged_beside_the_hosts_own_metrics(host, tracked):
    samples = [played(None, 1.0, host.Sample), played(None, 0.0, host.Sample), failed(None, host.Sample)]
    data = {"held_out": {"rewards": [1.0, 0.0, 0.0], "truncated": [False] * 3, "samples": samples}}
    _their(host, "log_eval_rollout_data")(3, _log_args(), data, None)
    ours, theirs = tracked
    assert ours["eval/held_out/agentrl/reward_mean"] == 0.5
    assert theirs["eval/held_out"] == pytest.approx(1 / 3)
    assert ours["eval/step"] == theirs["eval/step"] == 6


def test_all_hooks_in_one_rollout(host, checkpoint, renderer, tmp_path, tracked):
    """Group reward, filter, baseline and accounting: a prompt is broken, one flat, one fine, one broken in a third."""
    later = {"slow": 0.3}  # so that both that are to be dropped are done before
    worlds = [{"break": "reset", "how": "world"}, {"flat": True}, later, {**later, "flaky": True}]
    rows = [{"prompt": "the capital of France?", "label": "Paris", "metadata": world} for world in worlds]
    logging = {k: v for k, v in vars(_log_args()).items() if "log" in k or k == "wandb_always_use_train_step"}
    with starting(host, checkpoint, renderer, tmp_path) as start:
        run = start(
            rows,
            agentrl={"reward": f"{Path(__file__).parents[1] / 'hook_samples.py'}:in_turn"},
            group_rm=True,
            custom_rm_path="agentrl.slime.reward",
            custom_reward_post_process_path=OURS,
            dynamic_sampling_filter_path="agentrl.slime.has_spread",
            n_samples_per_prompt=3,
            rollout_batch_size=2,
            over_sampling_batch_size=2,
            global_batch_size=6,
            grpo_std_normalization=False,
            **logging,
        )
        samples, extra = run.samples()
        data = run.conversion.convert(copy.deepcopy(samples))
        _their(host, "log_rollout_data")(0, run.args, samples, extra, 1.0)
    drops = {"zero_std_1.0": 1, "failed_environment_reset": 1}
    assert extra == {f"rollout/dynamic_filter/drop_{reason}": count for reason, count in drops.items()}
    assert [sample.group_index for sample in samples] == [2, 2, 2, 3, 3, 3]
    assert sorted(data["rewards"]) == pytest.approx([-2 / 3, -0.5, 0.0, 1 / 3, 1 / 3, 0.5])
    assert [bool(sum(mask)) for mask in data["loss_masks"]] == [not sample.remove_sample for sample in samples]
    ours, _ = tracked
    assert (ours["rollout/agentrl/episodes"], ours["rollout/agentrl/failures/environment/score"]) == (6, 1)
    assert ours["rollout/agentrl/sampled_tokens"] == (
        ours["rollout/agentrl/trained_tokens"] + ours["rollout/agentrl/masked_tokens/env_failure"]
    )


def test_the_hosts_own_contracts(host):
    """slime's tests for plugins, which take each hook from the environment (tests/plugin_contracts/_shared.py)."""
    folder = Path(host.source, "tests/plugin_contracts")
    host.need(folder.exists(), "tests in what is installed")
    hooks = {
        "CUSTOM_RM_PATH": "agentrl.slime.reward",
        "CUSTOM_REWARD_POST_PROCESS_PATH": OURS,
        "DYNAMIC_SAMPLING_FILTER_PATH": "agentrl.slime.has_spread",
        "BUFFER_FILTER_PATH": "agentrl.slime.oldest_first",
    }
    files = [folder / f"test_plugin_{name}_contracts.py" for name in ("path_loading", "runtime_hook")]
    given = {f"SLIME_CONTRACT_{flag}": path for flag, path in hooks.items()}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, files)],
        env={**os.environ, **given, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))},
        cwd=host.source,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b\d\d passed", done.stdout), "each hook is called, not skipped"

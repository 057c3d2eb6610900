"""Mistakes of one line each, planted into a launch that is good, and what `agentrl check slime` says of them."""

from __future__ import annotations

import re

import pytest

from agentrl.slime.init import CONFIG, SCRIPT
from tests.slime.mistakes import ROW, serious
from tests.slime.mistakes import run as run


def test_the_launch_is_good(run):
    found = run()
    assert serious(found) == []
    assert {finding.check for finding in found if finding.level == "unchecked"} == {
        "slime's own parser",
        "the chat template",
        "memory",
    }


MISTAKES = [
    # agentrl's own flags
    (SCRIPT, "--custom-generate-function-path agentrl.adapt", "", "error", "slime would not call agentrl"),
    (SCRIPT, "agentrl.adapt", "agentrl.adpat", "error", "there is no such function; write"),
    (SCRIPT, "agentrl.slime.post_process_rewards", "agentrl.slime.post_process_reward", "error", "did you mean"),
    (SCRIPT, "agentrl.slime.log_rollout", "agentrl.slime.log_rollouts", "error", "has no 'log_rollouts'"),
    (
        SCRIPT,
        "--custom-reward-post-process-path",
        "--custom-reward-postprocess-path",
        "warning",
        "did you mean --custom",
    ),
    (SCRIPT, '--custom-config-path "${HERE}/agentrl.yaml"', "", "error", "no environment"),
    (SCRIPT, "${HERE}/agentrl.yaml", "${HERE}/agent.yaml", "error", "agent.yaml: no such file"),
    (CONFIG, "agentrl:", "agentr:", "error", "has no key 'agentrl' (it has: agentr)"),
    (CONFIG, "env: my_env.py:Lookup", "env: my_env.py:Lockup", "error", "my_env.py has no 'Lockup'"),
    (CONFIG, "turns: 8", "turn: 8", "error", "turn; did you mean turns?"),
    (CONFIG, "  limits:", "  reward: my_env.py:scor\n  limits:", "error", "my_env.py has no 'scor'"),
    ("my_env.py", "what: str", "what", "error", "look"),
    # rewards and prompts
    (SCRIPT, "--rollout-shuffle", "--rm-type math", "error", "two give the reward: Lookup.score and --rm-type math"),
    (SCRIPT, "--rollout-shuffle", "--apply-chat-template", "error", "would never see them"),
    (SCRIPT, "--rollout-shuffle", "--group-rm", "error", "--group-rm takes the reward from Lookup.score"),
    (SCRIPT, "--input-key prompt", "--input-key question", "error", "no key 'question' (it has: prompt"),
    (SCRIPT, "--label-key label", "", "warning", "has labels, which slime does not read"),
    (SCRIPT, "${DATA}/train.jsonl", "${DATA}/tran.jsonl", "error", "tran.jsonl: no such data file"),
    ("train.jsonl", ROW * 3, ROW + ROW[:-4], "error", "train.jsonl:2: not JSON"),
    # batches and lengths
    (SCRIPT, "--global-batch-size 256", "--global-batch-size 512", "error", "is more than the 256 episodes"),
    (SCRIPT, "--n-samples-per-prompt 8", "--n-samples-per-prompt 1", "error", "a group of one has no advantage"),
    (SCRIPT, "--rollout-max-response-len 6144", "--rollout-max-response-len 8192", "warning", "leaves no room"),
    (SCRIPT, "--max-tokens-per-gpu 9216", "--max-tokens-per-gpu 2048", "warning", "a micro-batch of its own"),
    (
        SCRIPT,
        "--rollout-temperature 1",
        "--rollout-temperature 1\n   --rollout-top-p 0.9",
        "warning",
        "--rollout-top-p",
    ),
    (SCRIPT, "--rollout-batch-size 32", "--rollout-batch-size 32k", "error", "32k: not a whole number"),
    (SCRIPT, "--n-samples-per-prompt 8", "--n-sample-per-prompt 8", "warning", "did you mean --n-samples-per-prompt?"),
    # slime's other paths
    (
        SCRIPT,
        "--rollout-shuffle",
        "--partial-rollout\n   --mask-offpolicy-in-partial-rollout",
        "warning",
        "whole episodes",
    ),
    (
        SCRIPT,
        "--rollout-shuffle",
        "--dynamic-sampling-filter-path rollout.filters.sprad",
        "error",
        "defines no sprad; did you mean spread?",
    ),
    (
        SCRIPT,
        "--rollout-shuffle",
        "--buffer-filter-path rollout.filter.spread",
        "error",
        "has no module rollout.filter",
    ),
    (SCRIPT, "PROGRAM=train.py", "PROGRAM=train_async.py", "error", "remove --colocate"),
    # --eval-config
    (SCRIPT, "--eval-config eval.yaml", "--eval-config evals.yaml", "error", "evals.yaml: no such file"),
    (SCRIPT, "--eval-config eval.yaml", "", "error", "--eval-interval without data"),
    (SCRIPT, "--eval-interval 20", "", "warning", "--eval-config without --eval-interval: slime never evaluates"),
    ("eval.yaml", "path: other.jsonl", "path: others.jsonl", "error", "others.jsonl: no such data file"),
    ("eval.yaml", "name: other,", "name: held_out,", "error", "two data sets are called held_out"),
    (
        "eval.yaml",
        "other.jsonl, input_key: prompt",
        "other.jsonl, input_keys: prompt",
        "error",
        "did you mean input_key?",
    ),
    ("eval.yaml", "other.jsonl, input_key: prompt", "other.jsonl, input_key: question", "error", "no key 'question'"),
    ("eval.yaml", "defaults: {n_samples", "defaults: {n_sample", "error", "did you mean n_samples_per_eval_prompt?"),
    ("eval.yaml", "defaults: {", "defaults: {apply_chat_template: true, ", "error", "remove apply_chat_template"),
    (
        "eval.yaml",
        "defaults: {",
        "defaults: {rm_type: math, ",
        "error",
        "two give the reward: Lookup.score and rm_type",
    ),
    (
        "eval.yaml",
        "defaults: {",
        "defaults: {multimodal_keys: {video: films}, ",
        "error",
        "data set held_out: remove video from multimodal_keys: agentrl shows text and images only",
    ),
    ("eval.yaml", "datasets:", "dataset:", "error", "no data sets under eval.datasets"),
    ("eval.yaml", "{name: other, ", "{", "error", "data set 2 needs a name and a path"),
    (
        "eval.yaml",
        "defaults: {",
        "defaults: {custom_generate_function_path: agentrl.adept, ",
        "error",
        "agentrl.adept: there is no such function",
    ),
    (
        "eval.yaml",
        "defaults: {",
        "defaults: {max_response_len: 9000, ",
        "warning",
        "9000 leaves no room for the prompt",
    ),
]


@pytest.mark.parametrize(
    ("file", "old", "new", "level", "message"),
    MISTAKES,
    ids=[re.sub(r"\s+", " ", m[2] or f"no {m[1]}") for m in MISTAKES],
)
def test_it_is_found(run, file, old, new, level, message):
    found = serious(run(file, old, new))
    assert any(level == grade and message in text for grade, text in found), found


def test_there_are_enough_of_them():
    assert len(MISTAKES) >= 26

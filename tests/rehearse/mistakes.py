"""Thirty mistakes of a launch. Each is planted alone into the launch of `write_launch`, which is good.

A rehearsal must name each mistake: the stage where it shows, and the cause in one line.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tests.rehearse.around import busy_port, nothing, other_engine, other_tokenizer
from tests.rehearse.launch import ROWS, Edit, Launch, row

STAGES = (
    *("arguments", "ray", "placement", "router", "engines", "actors", "weights", "rollout", "conversion", "training"),
    *("checkpoint", "second update", "evaluation"),
)
"""The stages of a report, in order."""


@dataclass(frozen=True)
class Mistake:
    name: str
    stages: tuple[str, ...]
    """The stages of which one must be named. Most mistakes have one; a rehearsal may find some earlier than slime."""
    cause: str
    """A regular expression, without regard to case, that the line of the cause must match."""
    edits: tuple[Edit, ...]
    check: str = ""
    """A regular expression that an error or a warning of `agentrl check slime` matches. Empty: the check cannot see the
    mistake."""
    shape: str = "qwen3-0.6B"
    around: Callable[[Launch], AbstractContextManager[None]] = nothing
    """What the machine does during the rehearsal."""
    options: tuple[str, ...] = ()
    """Options of the rehearsal."""


def script(old: str, new: str) -> Edit:
    return Edit("run.sh", old, new)


def env(old: str, new: str) -> Edit:
    return Edit("envs/my_env.py", old, new)


def config(text: str) -> Edit:
    return Edit("agentrl.yaml", "limits: {turns: 3, max_tokens_per_turn: 32}", text)


def hooks(text: str) -> Edit:
    return Edit("envs/my_hooks.py", "", text)


def flag(words: str) -> Edit:
    return script("--rollout-shuffle", f"--rollout-shuffle\n   {words}")


POST = "agentrl.slime.post_process_rewards"
PLAYS = ("rollout", "evaluation")
"""slime evaluates before its first rollout."""
SCORE = 'return float(len(trajectory.answer or "") % 2 == self.task.label["parity"])'
ADAPTED = """from agentrl import adapt


async def generate(args, sample, sampling_params, evaluation=False):
    sample = await adapt(args, sample, sampling_params, evaluation)
    {}
    return sample
"""
OTHER_ENGINE = """from copy import copy

from agentrl import adapt


async def generate(args, sample, sampling_params, evaluation=False):
    args = copy(args)
    args.sglang_router_ip, args.sglang_router_port = "127.0.0.1", PORT
    return await adapt(args, sample, sampling_params, evaluation)
"""
OWN_GENERATE = script("agentrl.adapt", "my_hooks.generate")
BROKEN_ROW = "".join(f"{json.dumps(row(number))}\n" for number in range(ROWS - 1)) + '{"prompt": "cut\n'

MISTAKES = (
    # The model and its flags
    Mistake(
        "qk-layernorm forgotten",
        ("actors", "weights", "training"),
        r"log-?probs?|qk.layernorm|q_norm",
        (Edit("model.sh", "   --qk-layernorm\n", ""),),
    ),
    Mistake(
        "add-qkv-bias forgotten",
        ("actors", "weights", "training"),
        r"log-?probs?|qkv.bias|q_proj.bias",
        (Edit("model.sh", "   --add-qkv-bias\n", ""),),
        shape="qwen2.5-0.5B",
    ),
    Mistake(
        "another rotary base",
        ("arguments",),
        r"rotary.base|rope_theta",
        (Edit("model.sh", "--rotary-base 1000000", "--rotary-base 10000"),),
    ),
    Mistake(
        "one layer too few",
        ("arguments",),
        r"num.layers|num_hidden_layers",
        (Edit("model.sh", "--num-layers 28", "--num-layers 27"),),
    ),
    Mistake(
        "the vocabulary of another model",
        ("arguments", "actors"),
        r"vocab|embedding|size mismatch|shape",
        (Edit("model.sh", "--vocab-size 1024", "--vocab-size 1000"),),
    ),
    Mistake(
        "the tokenizer of another model",
        ("arguments", "engines", *PLAYS),
        r"vocab|token|out of range",
        (),
        around=other_tokenizer,
    ),
    Mistake(
        "weights that never arrive",
        ("weights", "rollout", "training"),
        r"log-?probs?|engine|weight",
        (hooks(OTHER_ENGINE), OWN_GENERATE),
        around=other_engine,
    ),
    # The Env and its data
    Mistake(
        "an Env that imports only on the driver",
        (*PLAYS, "engines", "arguments", "router"),
        r"my_env",
        (script('"PYTHONPATH\\": \\"${PYTHONPATH}\\"', '"PYTHONPATH\\": \\"${SLIME}:${MEGATRON}\\"'),),
    ),
    Mistake("a reward that is None", PLAYS, r"reward|unscored|spread", (env(SCORE, "return None"),)),
    Mistake("groups without spread", PLAYS, r"spread|same reward|equal", (env(SCORE, "return 1.0"),)),
    Mistake(
        "an Env whose step blocks",
        PLAYS,
        r"no end|time|hang|wait",
        (env("self.turns += 1", "__import__('time').sleep(3600)"),),
        options=("--timeout", "60"),
    ),
    Mistake(
        "an Env whose step never ends",
        PLAYS,
        r"step|no end|time|hang|wait",
        (env("self.turns += 1", "await __import__('asyncio').Event().wait()"),),
        options=("--timeout", "60"),
    ),
    Mistake(
        "an Env that raises in reset on half of the tasks",
        PLAYS,
        r"reset|no world|failed",
        (env("self.turns = 0", "self.turns = 1 // (task.metadata['number'] % 2)"),),
    ),
    Mistake(
        "a grader's folder is missing",
        PLAYS,
        r"FileNotFound|No such file|/nowhere/grader",
        (env(SCORE, "open('/nowhere/grader/answers.txt')\n        return 1.0"),),
    ),
    Mistake(
        "an Env that ends the process",
        PLAYS,
        r"die|dead|exit|crash|lost|killed",
        (env("self.turns += 1", "__import__('os')._exit(3)"),),
    ),
    Mistake(
        "another key of the label",
        ("arguments", *PLAYS),
        r"label|TypeError|None",
        (script("--label-key label", "--label-key answer"),),
        check="no key 'answer'",
    ),
    Mistake(
        "a row that is cut",
        ("rollout", "router", "engines", "arguments"),
        r"JSON|train\.jsonl|Unterminated",
        (Edit("data/train.jsonl", "", BROKEN_ROW),),
    ),
    Mistake(
        "a template that slime would apply, too",
        ("arguments", "rollout"),
        r"apply-chat-template|apply_chat_template",
        (flag("--apply-chat-template"),),
        check="--apply-chat-template",
    ),
    Mistake(
        "the file of the evaluation is missing",
        ("arguments", "evaluation"),
        r"held_uot",
        (script("${DATA}/held_out.jsonl", "${DATA}/held_uot.jsonl"),),
        check="held_uot",
    ),
    # Hooks
    Mistake(
        "a hook with another signature",
        ("rollout",),
        r"argument",
        (
            hooks("def log(rollout_id, args):\n    return False\n"),
            script("agentrl.slime.log_rollout", "my_hooks.log"),
        ),
    ),
    Mistake(
        "a hook that returns one list in place of two",
        ("conversion",),
        r"unpack",
        (
            hooks("def rewards(args, samples):\n    return [sample.reward for sample in samples]\n"),
            script(POST, "my_hooks.rewards"),
        ),
    ),
    Mistake(
        "a reward function that raises",
        PLAYS,
        r"the judge is not there",
        (
            hooks("async def judge(args, sample):\n    raise RuntimeError('the judge is not there')\n"),
            env("def score(self, trajectory: Trajectory) -> float:", "def unused(self, trajectory) -> float:"),
            flag("--custom-rm-path my_hooks.judge"),
        ),
    ),
    Mistake(
        "metadata that does not pickle",
        ("conversion", "rollout", "evaluation"),
        r"pickle|serializ",
        (
            hooks(ADAPTED.format("sample.train_metadata = {'lock': __import__('threading').Lock()}")),
            OWN_GENERATE,
            flag("--save-debug-rollout-data ${HERE}/rollouts/{rollout_id}.pt"),
        ),
    ),
    Mistake(
        "a loss mask of another length",
        ("conversion",),
        r"loss.?mask",
        (hooks(ADAPTED.format("sample.loss_mask = sample.loss_mask + [1]")), OWN_GENERATE),
    ),
    Mistake(
        "the Env's tokens are trained",
        ("training",),
        r"log-?probs?|mask",
        (
            hooks(ADAPTED.format("sample.loss_mask = [1] * sample.response_length")),
            OWN_GENERATE,
        ),
    ),
    # Flags
    Mistake(
        "a checkpoint folder that cannot be written",
        ("checkpoint", "arguments"),
        r"not a directory|cannot be written|read-only|permission",
        (script('SAVE="${SAVE:-${HERE}/checkpoints}"', 'SAVE="${HERE}/agentrl.yaml/checkpoints"'),),
    ),
    Mistake(
        "a port in use",
        ("router",),
        r"in use|port|bind",
        (flag("--sglang-router-port PORT"),),
        around=busy_port,
    ),
    Mistake(
        "a global batch that does not divide",
        ("arguments", "conversion"),
        r"global.batch.size",
        (script("--global-batch-size 256", "--global-batch-size 512"),),
        check="global-batch-size 512",
    ),
    Mistake(
        "a number that YAML reads as text",
        ("actors", "arguments", "training"),
        r"str|lr|number",
        (Edit("agentrl.yaml", "agentrl:", "lr: 1e-6\nagentrl:"),),
    ),
    Mistake(
        "limits beyond the context",
        ("rollout", "arguments"),
        r"context",
        (config("limits: {turns: 3, tokens: 9000, context: 90000}"),),
        check="max_position_embeddings",
    ),
)

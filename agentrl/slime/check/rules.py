"""Flags that contradict each other, or agentrl: one function a subject. What slime refuses at once is left to slime.

Sources: slime/utils/arguments.py, rollout/sglang_rollout.py, rollout/fully_async_rollout.py, ray/rollout.py and
utils/dp_schedule.py at 624b824a8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agentrl.errors import ConfigError
from agentrl.loading import load_object
from agentrl.parking import way_back
from agentrl.slime.check.finding import Finding, error, note, warning
from agentrl.slime.check.setup import GENERATE, Setup
from agentrl.slime.config import fan_out_problems
from agentrl.slime.host import CENTRED

POST_PROCESS = "agentrl.slime.post_process_rewards"
REWARD = "agentrl.slime.reward"
LOGS = {
    "--custom-rollout-log-function-path": "agentrl.slime.log_rollout",
    "--custom-eval-rollout-log-function-path": "agentrl.slime.log_eval",
}
_OTHER_PATHS = ("--custom-generate-function-path", "--custom-config-path")


def generate_function(setup: Setup) -> Iterator[Finding]:
    flag = "--custom-generate-function-path"
    path = setup.flags.text(flag)
    if flag not in setup.flags:
        yield error(f"slime would not call agentrl: add {flag} {GENERATE}")
    elif path and path != GENERATE and path.startswith("agent"):
        yield error(f"{flag} {path}: there is no such function; write {flag} {GENERATE}")
    elif path and path != GENERATE:
        yield warning(f"{flag} {path} is not {GENERATE}: what is said here of episodes holds only where it calls that")


def spelling(setup: Setup) -> Iterator[Finding]:
    for name, close in setup.flags.misspelt():
        yield warning(f"{name} is no flag of slime's, which ignores flags it does not know; did you mean {close}?")
    if stray := setup.flags.stray:
        yield warning(f"{' '.join(word.text for word in stray)!r} stands before the first flag; remove it")


def prompts(setup: Setup) -> Iterator[Finding]:
    if "--apply-chat-template" in setup.flags and setup.has_tools and setup.env:
        yield error(
            "remove --apply-chat-template: it renders prompts before the tools of "
            f"{setup.env.__name__} are known, so the model would never see them; agentrl renders prompts itself"
        )
    elif "--apply-chat-template" in setup.flags:
        yield note("--apply-chat-template is not needed: agentrl renders prompts itself")
    if "--multimodal-keys" in setup.flags:
        yield error("remove --multimodal-keys: agentrl plays text only")
    for parser in ("--sglang-tool-call-parser", "--sglang-reasoning-parser"):
        if parser in setup.flags:
            yield warning(
                f"remove {parser}: agentrl reads calls and thoughts from the tokens, SGLang's parser does nothing"
            )
    if stops := list(filter(None, setup.flags.values("--rollout-stop"))):
        yield note(
            f"--rollout-stop {' '.join(map(repr, stops))} ends every turn, tool calls included; "
            "what one Env needs belongs into its `ask = Ask(stop=...)`"
        )


def routing(setup: Setup) -> Iterator[Finding]:
    engines, flag = setup.engines, "--router-policy"
    if setup.flags.text(flag) != "consistent_hashing" and not setup.flags.hidden(flag) and engines != 1:
        yield warning(
            "add --router-policy consistent_hashing: without it an episode's turns meet different engines"
            f"{f' (there are {engines})' if engines else ''}, and their prefix caches are lost"
        )


def baseline(setup: Setup) -> Iterator[Finding]:
    flags = setup.flags
    estimator, samples = flags.text("--advantage-estimator"), flags.whole("--n-samples-per-prompt")
    if estimator not in CENTRED or "--disable-rewards-normalization" in flags:
        return
    strip = setup.config is not None and setup.config.thinking == "strip"  # then the rule of fan-out says it
    if "--custom-reward-post-process-path" not in flags and not strip:
        yield warning(
            f"add --custom-reward-post-process-path {POST_PROCESS}: without it the 0.0 of failed episodes counts in "
            "the baseline of their prompts"
        )
    if samples == 1:
        yield error(
            f"--n-samples-per-prompt 1 with --advantage-estimator {estimator}: a group of one has no advantage, so "
            "nothing is learned; write --n-samples-per-prompt 8"
        )


def reward(setup: Setup) -> Iterator[Finding]:
    """Reward has one owner."""
    flags, owner = setup.flags, setup.scores
    foreign = [
        f"{name} {value}"
        for name in ("--rm-type", "--custom-rm-path")
        if (value := flags.text(name)) and value != REWARD
    ]
    ours = flags.text("--custom-rm-path") == REWARD or flags.hidden("--custom-rm-path")
    if owner and foreign:
        asked = "would replace its rewards" if "--group-rm" in flags else "would never be asked"
        yield error(f"two give the reward: {owner} and {' and '.join(foreign)}, which {asked}; remove one of them")
    elif owner and "--group-rm" in flags and not ours:
        yield error(f"--group-rm takes the reward from {owner}; remove it, or add --custom-rm-path {REWARD}")
    elif setup.env and not owner and not foreign:
        yield note(
            f"{setup.env.__name__} writes no score: rewards come from its steps and tools alone, "
            "and an episode without any has 0"
        )
    if "--group-rm" in flags and "--eval-interval" in flags:
        yield error("--group-rm with --eval-interval: slime refuses to evaluate with it; remove one of them")


def resuming(setup: Setup) -> Iterator[Finding]:
    flags = setup.flags
    if not ("--partial-rollout" in flags or setup.fully_async):
        if "--mask-offpolicy-in-partial-rollout" in flags:
            yield note("--mask-offpolicy-in-partial-rollout does nothing without --partial-rollout")
        return
    if "--mask-offpolicy-in-partial-rollout" in flags:
        yield warning(
            "--mask-offpolicy-in-partial-rollout also masks whole episodes that had ended and waited in slime's buffer"
        )
    if setup.env is None or setup.config is None:
        return
    how = way_back(setup.env)
    if how == "alive" and setup.config.park_s == 0:
        yield warning(
            f"{setup.env.__name__} can neither be restored nor replayed, and park_s is 0: an aborted episode restarts "
            "from nothing; write snapshot and restore, or set park_s"
        )
    elif how == "alive":
        yield note(
            f"{setup.env.__name__} has no snapshot and restore: an aborted episode stays open for "
            f"park_s = {setup.config.park_s:g} s, then restarts from nothing"
        )


def fan_out(setup: Setup) -> Iterator[Finding]:
    if setup.config is not None and setup.config.thinking == "strip":
        for problem in fan_out_problems(setup.args):
            yield error(f"`thinking: strip` gives several samples of one episode: {problem}")


def filters(setup: Setup) -> Iterator[Finding]:
    path = setup.flags.text("--dynamic-sampling-filter-path") or ""
    if path.startswith("slime.") and "nonzero_std" in path:
        ours = "prefer_spread" if path.endswith("fallback") else "has_spread"
        yield warning(
            f"--dynamic-sampling-filter-path {path} takes the 0.0 of failed episodes for a spread of rewards; "
            f"write agentrl.slime.{ours}"
        )


def hooks(setup: Setup) -> Iterator[Finding]:
    """Functions of agentrl's that slime would look up in vain."""
    for flag in setup.flags:
        path = setup.flags.text(flag) or ""
        if flag.endswith("-path") and path.startswith("agentrl.") and flag not in _OTHER_PATHS:
            try:
                load_object(path)
            except ConfigError as exc:
                yield error(f"{flag} {path}: {exc}")


def fully_async(setup: Setup) -> Iterator[Finding]:
    flags = setup.flags
    if setup.program == "train_async.py" and "--colocate" in flags:
        yield error("remove --colocate: train_async.py trains and generates at once, on different GPUs")
    if not setup.fully_async:
        return
    if setup.program == "train.py":
        yield warning("fully-async rollout under train.py waits for every training step; start train_async.py")
    if "--eval-interval" not in flags:
        return
    if "--eval-function-path" not in flags or "fully_async" in (flags.text("--eval-function-path") or ""):
        yield error(
            "--eval-interval with fully-async rollout, which cannot evaluate; remove it, or add "
            "--eval-function-path slime.rollout.sglang_rollout.generate_rollout"
        )
    else:
        yield warning(
            "evaluation beside fully-async rollout: both wait for the same generation slots from two event loops, "
            "which fails once they are all taken; evaluate in a run of its own (remove --eval-interval)"
        )


def batches(setup: Setup) -> Iterator[Finding]:
    flags = setup.flags
    prompts, samples = flags.whole("--rollout-batch-size"), flags.whole("--n-samples-per-prompt")
    batch = flags.whole("--global-batch-size")
    if not prompts or not samples or not batch or "--num-steps-per-rollout" in flags:
        return
    if batch > prompts * samples:
        yield error(
            f"--global-batch-size {batch} is more than the {prompts * samples} episodes of a rollout "
            f"(--rollout-batch-size {prompts} x --n-samples-per-prompt {samples}): no step could be trained; lower it"
        )
    elif dropped := prompts * samples % batch:
        yield warning(
            f"--global-batch-size {batch} does not divide the {prompts * samples} episodes of a rollout: slime drops "
            f"the last {dropped} of each; write {prompts * samples}, or a divisor of it"
        )


def lengths(setup: Setup) -> Iterator[Finding]:
    flags, context = setup.flags, setup.context
    limits = setup.config.limits if setup.config else {}
    response = limits.get("tokens") or flags.whole("--rollout-max-response-len")
    if response is None and not limits.get("turn_tokens") and not flags.hidden("--rollout-max-response-len"):
        yield warning("add --rollout-max-response-len: without it SGLang ends each turn after 128 tokens")
    if context is None:
        if not flags.hidden("--rollout-max-context-len"):
            yield warning("add --rollout-max-context-len: without it an episode may grow to the engine's whole context")
        return
    if response and response >= context:
        yield warning(
            f"--rollout-max-response-len {response} leaves no room for the prompt in --rollout-max-context-len "
            f"{context}; raise the one, or lower the other"
        )
    for name, most in (
        ("--sglang-context-length", flags.whole("--sglang-context-length")),
        ("the model's max_position_embeddings", setup.model.get("max_position_embeddings")),
    ):
        if most and context > most:
            yield error(f"--rollout-max-context-len {context} is more than {name} {most}; lower it")
    per_gpu, parallel = flags.whole("--max-tokens-per-gpu"), flags.whole("--context-parallel-size") or 1
    if per_gpu and context > per_gpu * parallel:
        yield warning(
            f"an episode of {context} tokens is more than --max-tokens-per-gpu {per_gpu} x --context-parallel-size "
            f"{parallel}: slime gives it a micro-batch of its own, which may be out of memory; raise one of them"
        )


def replay(setup: Setup) -> Iterator[Finding]:
    top_p = setup.flags.number("--rollout-top-p")
    if top_p is not None and top_p != 1.0:
        yield warning(
            f"--rollout-top-p {top_p:g}: the trainer needs the kept token ids of every token, which only slime's "
            "patched SGLang returns; without it the first batch is refused. Write --rollout-top-p 1.0 unless yours does"
        )


def logging(setup: Setup) -> Iterator[Finding]:
    wanted = list(LOGS.items()) if "--eval-interval" in setup.flags else list(LOGS.items())[:1]
    if missing := [f"{flag} {function}" for flag, function in wanted if flag not in setup.flags]:
        yield note(
            f"add {' and '.join(missing)} to have agentrl's account (turns, failures by cause, masked tokens) logged"
        )


RULES: tuple[Callable[[Setup], Iterator[Finding]], ...] = (
    generate_function,
    spelling,
    prompts,
    reward,
    baseline,
    fan_out,
    filters,
    hooks,
    resuming,
    fully_async,
    batches,
    lengths,
    routing,
    replay,
    logging,
)

"""Rules for flags that contradict each other or agentrl, a function for each subject.

Errors that slime's own parser reports have no rule: where slime is installed, `arguments.read` runs this parser.

Sources: slime/utils/arguments.py, rollout/sglang_rollout.py, rollout/fully_async_rollout.py, ray/rollout.py and
utils/dp_schedule.py at 624b824a8.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from agentrl._util.findings import Finding, error, note, unchecked, warning
from agentrl.episode.parking import resume_method
from agentrl.slime.check.checkpoint import checkpoint
from agentrl.slime.check.evaluation import evaluation
from agentrl.slime.check.functions import functions, is_misspelt
from agentrl.slime.check.job_path import job_path
from agentrl.slime.check.media import media
from agentrl.slime.check.setup import GENERATE, Setup
from agentrl.slime.config import fan_out_problems, is_loopback
from agentrl.slime.host import BATCH_CENTRED, CENTRED, ESTIMATORS, HostArgs, plays_ahead
from agentrl.slime.router import STICKY, policies, sticky_policy
from agentrl.slime.seats import NOT_IN_WORKERS

POST_PROCESS = "agentrl.slime.post_process_rewards"
REWARD = "agentrl.slime.reward"
WATCH = "agentrl.slime.watch_log_probs"
_ONE_TURN = 1024
"""The number of tokens below which a response length was most likely meant for a single turn. The length must also be
below half of the context."""
_SLIMES_CPUS = 2
"""The number of CPUs for slime's rollout manager and lock."""
LOG, LOG_EVAL = "agentrl.slime.log_rollout", "agentrl.slime.log_eval"


def generate_function(setup: Setup) -> Iterator[Finding]:
    flag = "--custom-generate-function-path"
    path = setup.args.custom_generate_function_path
    if not path:
        yield error(f"slime would not call agentrl: add {flag} {GENERATE}")
    elif is_misspelt(path):
        yield error(f"{flag} {path}: there is no such function; write {flag} {GENERATE}")
    elif path != GENERATE:
        yield warning(f"{flag} {path} is not {GENERATE}: findings about episodes are valid only if it calls {GENERATE}")


def prompts(setup: Setup) -> Iterator[Finding]:
    args = setup.args
    if args.apply_chat_template and setup.has_tools and setup.env:
        yield error(
            "remove --apply-chat-template: it renders prompts before the tools of "
            f"{setup.env.__name__} are known, so the model would never see them; agentrl renders prompts itself"
        )
    elif args.apply_chat_template:
        yield note("--apply-chat-template is not needed: agentrl renders prompts itself")
    if args.multimodal_keys:
        yield from media(setup, args.multimodal_keys)
    for parser in ("tool-call", "reasoning"):
        if getattr(args, f"sglang_{parser.replace('-', '_')}_parser"):
            yield warning(
                f"remove --sglang-{parser}-parser: agentrl reads calls and thoughts from the tokens, "
                "SGLang's parser does nothing"
            )
    if stops := args.rollout_stop:
        yield note(
            f"--rollout-stop {' '.join(map(repr, stops))} ends every turn, tool calls included; "
            "write the stop strings of an Env into its `turn_options = TurnOptions(stop=...)`"
        )


def routing(setup: Setup) -> Iterator[Finding]:
    count, policy, best = setup.engines, setup.args.router_policy, sticky_policy()
    taken = policies() if setup.here else None
    if policy and taken is not None and policy not in taken:
        yield error(f"--router-policy {policy}: the installed sglang_router takes {', '.join(taken)}; write {best}")
    elif policy not in STICKY and count != 1 and best:
        yield warning(
            f"add --router-policy {best}: without it an episode's turns go to different engines"
            f"{f' (there are {count})' if count else ''}, and their prefix caches are lost"
        )


def baseline(setup: Setup) -> Iterator[Finding]:
    args = setup.args
    estimator = args.advantage_estimator
    if args.rewards_normalization is False:
        return
    if args.custom_reward_post_process_path == POST_PROCESS and estimator not in ESTIMATORS:
        yield error(
            f"--advantage-estimator {estimator}: {POST_PROCESS} does not know it and ends the first rollout; it knows "
            f"{', '.join(ESTIMATORS)}; remove --custom-reward-post-process-path, and slime computes the baseline"
        )
    if estimator not in (*CENTRED, *BATCH_CENTRED):
        return
    splits = setup.config is not None and setup.config.splits
    reported = splits or setup.agent  # by the rule `fan_out`
    if not args.custom_reward_post_process_path and not reported:
        yield warning(
            f"add --custom-reward-post-process-path {POST_PROCESS}: without it the 0.0 of failed episodes counts in "
            "the baseline of their prompts"
        )
    if args.n_samples_per_prompt == 1 and estimator in CENTRED:
        yield error(
            f"--n-samples-per-prompt 1 with --advantage-estimator {estimator}: a group of one has no advantage, so "
            "nothing is learned; write --n-samples-per-prompt 8"
        )


def reward(setup: Setup) -> Iterator[Finding]:
    """Check that the reward has a single source."""
    foreign = _foreign_rewards(setup)
    if setup.scores:
        yield from _second_rewards(setup, setup.scores, foreign)
    elif foreign:
        return
    elif setup.agent:
        yield error(f"{setup.agent.__name__} writes no score: every episode has the reward 0; write score(trajectory)")
    elif setup.env:
        yield note(
            f"{setup.env.__name__} writes no score: rewards come from its steps and tools alone, "
            "and an episode without any has 0"
        )


def _second_rewards(setup: Setup, owner: str, foreign: Sequence[str]) -> Iterator[Finding]:
    """Findings about flags that replace the reward of `owner`: of the Env, or of the configured reward function."""
    args = setup.args
    is_replaced = args.group_rm and args.custom_rm_path != REWARD
    if is_replaced and args.custom_rm_path and not (setup.config and setup.config.reward):
        yield warning(
            f"--custom-rm-path {args.custom_rm_path} replaces the rewards of {owner}, which are then not trained on: "
            "right for a judge that compares episodes, such as RelativeJudge; else remove one of them"
        )
    elif foreign:
        effect = "would replace its rewards" if args.group_rm else "would never be asked"
        yield error(f"two give the reward: {owner} and {' and '.join(foreign)}, which {effect}; remove one of them")
    elif is_replaced:
        yield error(f"--group-rm takes the reward from {owner}; remove it, or add --custom-rm-path {REWARD}")


def _foreign_rewards(setup: Setup) -> list[str]:
    """The flags, with their values, that name a different reward than agentrl's."""
    named = {"--rm-type": setup.args.rm_type, "--custom-rm-path": setup.args.custom_rm_path}
    return [f"{flag} {value}" for flag, value in named.items() if value and value != REWARD]


def group_reward(setup: Setup) -> Iterator[Finding]:
    if setup.args.group_rm and setup.args.eval_interval:
        yield error("--group-rm with --eval-interval: slime refuses to evaluate with it; remove one of them")


def _without_resuming(setup: Setup) -> Iterator[Finding]:
    args = setup.args
    if args.mask_offpolicy_in_partial_rollout:
        yield note("--mask-offpolicy-in-partial-rollout does nothing without --partial-rollout")
    keep_s = setup.config.parking.keep_s if setup.config is not None else 0.0
    if keep_s and plays_ahead(args.rollout_function_path) is None:
        yield note(
            f"--rollout-function-path {args.rollout_function_path} may send aborted samples again: agentrl keeps "
            f"their episodes for parking.keep_s = {keep_s:g} s; if it never does, set that to 0"
        )


def resuming(setup: Setup) -> Iterator[Finding]:
    if not (setup.args.partial_rollout or setup.fully_async):
        yield from _without_resuming(setup)
        return
    if setup.args.mask_offpolicy_in_partial_rollout:
        yield warning(
            "--mask-offpolicy-in-partial-rollout also masks whole episodes that had ended and waited in slime's buffer"
        )
    if setup.env is None or setup.config is None:
        return
    how = resume_method(setup.env)
    if how == "alive" and setup.config.parking.keep_s == 0:
        remedy = "set it" if setup.agent else "write snapshot and restore, or set it"
        yield warning(
            f"{setup.env.__name__} can neither be restored nor replayed, and parking.keep_s is 0: an aborted episode "
            f"restarts from nothing; {remedy}"
        )
    elif setup.agent is not None:
        yield note(
            f"{setup.agent.__name__} is an agent: aborted, it waits for its answer up to parking.keep_s = "
            f"{setup.config.parking.keep_s:g} s, then restarts from nothing; give its client a longer timeout"
        )
    elif how == "alive":
        yield note(
            f"{setup.env.__name__} has no snapshot and restore: an aborted episode stays open for "
            f"parking.keep_s = {setup.config.parking.keep_s:g} s, then restarts from nothing"
        )
    if how == "alive" and setup.config.parking.folder:
        yield note(
            f"{setup.env.__name__} lives in its process only, so parking.folder keeps none of its episodes: another "
            "process, or this one after a restart, starts them over and counts it in metadata['agentrl']['restarts']"
        )


def fan_out(setup: Setup) -> Iterator[Finding]:
    problems = fan_out_problems(setup.args, takes_lists=setup.takes_lists)
    if setup.config is not None and setup.config.splits:
        for problem in problems:
            yield error(f"`{setup.config.splits}` gives several samples of one episode: {problem}")
    elif setup.agent is not None:
        for problem in problems:
            yield warning(
                f"of {setup.agent.__name__} only the main line is trained; to train its sub-agents, too, {problem}"
            )


def filters(setup: Setup) -> Iterator[Finding]:
    path = setup.args.dynamic_sampling_filter_path or ""
    if HostArgs.of(setup.args).own_filter and path.rpartition(".")[2].startswith("check_reward_nonzero_std"):
        ours = "prefer_spread" if path.endswith("fallback") else "has_spread"
        yield warning(
            f"--dynamic-sampling-filter-path {path} counts the 0.0 of failed episodes as a difference in rewards; "
            f"write agentrl.slime.{ours}"
        )


def fully_async(setup: Setup) -> Iterator[Finding]:
    """Check the program for fully-async rollout. slime 0.4 has a single program, train.py, which evaluates during
    fully-async rollout. train_async.py of earlier versions cannot."""
    args, program = setup.args, setup.command.program
    if program == "train_async.py" and args.colocate:
        yield error("remove --colocate: train_async.py trains and generates at once, on different GPUs")
    if not setup.fully_async:
        return
    if setup.has_train_async is None:
        yield unchecked(
            "fully-async rollout", "slime is not here; before 0.4 start train_async.py, and do not evaluate"
        )
    elif setup.has_train_async:
        if program == "train.py":
            yield warning("fully-async rollout under train.py waits for every training step; start train_async.py")
        yield from _evaluation_before_0_4(setup)
    elif (args.rollout_function_path or "").startswith("agentrl."):
        yield error(
            f"remove --rollout-function-path {args.rollout_function_path}: it is for slime before 0.4, whose queues do "
            "the same; name slime.rollout.fully_async_rollout.generate_rollout_fully_async"
        )
    elif args.eval_interval and args.eval_function_path:
        yield error(
            f"remove --eval-function-path {args.eval_function_path}: this slime evaluates on the event loop of its "
            "fully-async rollout, and a second loop cannot use the same engines"
        )


def _evaluation_before_0_4(setup: Setup) -> Iterator[Finding]:
    args = setup.args
    is_ours = (args.rollout_function_path or "").startswith("agentrl.") and not args.eval_function_path
    if not args.eval_interval or is_ours:
        return
    if plays_ahead(args.eval_function_path or args.rollout_function_path):
        yield error(
            "--eval-interval with fully-async rollout, which cannot evaluate; remove it, or add "
            "--eval-function-path slime.rollout.sglang_rollout.generate_rollout"
        )
    else:
        yield warning(
            "evaluation beside fully-async rollout: both wait for the same generation slots from two event loops, "
            "which fails once they are all taken; evaluate in a run of its own (remove --eval-interval)"
        )


def queues(setup: Setup) -> Iterator[Finding]:
    """Check the queues on disk in which slime 0.4 stores prompts, partial groups and batches
    (docs/en/advanced/straw.md)."""
    args = setup.args
    if args.rollout_data_transport != "straw":
        return
    if args.buffer_filter_path:
        yield error(
            f"remove --buffer-filter-path {args.buffer_filter_path}: the queues of --rollout-data-transport straw have "
            "an order of their own, the groups with the oldest weights first"
        )
    if not args.rollout_data_dir and not args.save:
        yield error(
            "--rollout-data-transport straw has no folder: add --rollout-data-dir FOLDER, or --save FOLDER, which all "
            "nodes see"
        )
    if not setup.fully_async:
        return
    if args.rollout_all_samples_process_path:
        yield error(
            f"remove --rollout-all-samples-process-path {args.rollout_all_samples_process_path}: no node of a "
            "distributed rollout has all samples"
        )
    if setup.env is None or setup.config is None or resume_method(setup.env) == "alive":
        return
    if not setup.config.parking.folder:
        yield warning(
            "add `parking: {folder: FOLDER}` under `agentrl`, a folder that all nodes see: any node takes an aborted "
            "group, and without the folder its episodes start over there"
        )


def batches(setup: Setup) -> Iterator[Finding]:
    args = setup.args
    prompts, samples, batch = args.rollout_batch_size, args.n_samples_per_prompt, args.global_batch_size
    at_once = args.over_sampling_batch_size
    if prompts and at_once is not None and at_once < prompts:
        yield error(
            f"--over-sampling-batch-size {at_once} is less than --rollout-batch-size {prompts}: slime refuses that; "
            "raise it, or remove it"
        )
    if not prompts or not samples or not batch or args.num_steps_per_rollout:
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
    args, context = setup.args, setup.context
    limits = setup.config.limits if setup.config else {}
    response = limits.get("tokens") or args.rollout_max_response_len
    yield from _whole_response(setup)
    if response is None and not limits.get("max_tokens_per_turn"):
        yield warning("add --rollout-max-response-len: without it SGLang ends each turn after 128 tokens")
    if context is None:
        yield warning("add --rollout-max-context-len: without it an episode may grow to the engine's whole context")
        return
    if response and response >= context:
        yield warning(
            f"--rollout-max-response-len {response} leaves no room for the prompt in --rollout-max-context-len "
            f"{context}; raise the one, or lower the other"
        )
    yield from _too_long(setup, context)


def _whole_response(setup: Setup) -> Iterator[Finding]:
    """Check the response length. slime's own multi-turn examples apply it to each turn, agentrl to the whole
    episode."""
    config = setup.config
    if config is None or config.max_new_tokens == "turn" or "tokens" in config.limits or not setup.has_turns:
        return
    for flag in ("rollout_max_response_len", "eval_max_response_len"):
        length = getattr(setup.args, flag)
        if length is not None and length < min(_ONE_TURN, (setup.context or _ONE_TURN * 4) // 2):
            yield warning(
                f"--{flag.replace('_', '-')} {length} is the whole response here, all turns and results of tools, and "
                "cuts episodes; where it is meant for each turn, as in slime's search-r1, write `max_new_tokens: turn` "
                "under `agentrl`; else raise it"
            )


def _too_long(setup: Setup, context: int) -> Iterator[Finding]:
    """Check that the engine, the model and the trainer can process an episode of `context` tokens."""
    args = setup.args
    for name, most in (
        ("--sglang-context-length", args.sglang_context_length),
        ("the model's max_position_embeddings", setup.model.get("max_position_embeddings")),
    ):
        if most and context > most:
            yield error(f"--rollout-max-context-len {context} is more than {name} {most}; lower it")
    per_gpu, ranks = args.max_tokens_per_gpu, args.context_parallel_size or 1
    if per_gpu and context > per_gpu * ranks:
        yield warning(
            f"an episode of {context} tokens is more than --max-tokens-per-gpu {per_gpu} x --context-parallel-size "
            f"{ranks}: slime gives it a micro-batch of its own, which may be out of memory; raise one of them"
        )


def engine_url(setup: Setup) -> Iterator[Finding]:
    """Check the key `engine`. slime does not control a server at this URL, unless it is the router of slime's flags."""
    args, url = setup.args, setup.config.engine if setup.config else None
    router = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
    if url and url.rstrip("/") != router and not args.debug_rollout_only:
        yield error(
            f"remove `engine: {url}` under `agentrl`: episodes would be sampled there, and slime sends its weights "
            "only to the engines of its own router"
        )


def sampling(setup: Setup) -> Iterator[Finding]:
    args = setup.args
    if args.rollout_temperature is not None and args.rollout_temperature <= 0:
        yield error(
            f"--rollout-temperature {args.rollout_temperature:g}: slime divides the logits by it, and without chance "
            "all episodes of a prompt are equal; write 1"
        )


def saving(setup: Setup) -> Iterator[Finding]:
    if not (setup.args.save or setup.args.debug_rollout_only):
        yield warning("add --save FOLDER and --save-interval 20: without them nothing of the training is kept")


def workers(setup: Setup) -> Iterator[Finding]:
    if setup.config is None or not setup.config.workers:
        return
    if setup.env is not None and setup.env.seats:
        yield error(f"{NOT_IN_WORKERS.format(setup.env.__name__)}; write workers: 0")
    nodes, count = setup.args.actor_num_nodes or 1, setup.config.workers
    cores, reserved = nodes * (os.cpu_count() or 0), _reserved_cpus(setup)
    free = max(cores - reserved, 0)
    if setup.here and cores and count > free:
        yield error(
            f"workers {count}: each needs a CPU of the Ray cluster, and slime takes {reserved} of {cores} (one for "
            f"each GPU, and {_SLIMES_CPUS}); write workers: {free}"
        )
    address = setup.config.engine or f"http://{setup.args.sglang_router_ip}"
    if nodes > 1 and is_loopback(address):
        yield error(f"{address}: workers on other nodes cannot reach that engine; give this node's address")


def _reserved_cpus(setup: Setup) -> int:
    """The number of CPUs that slime takes from the Ray cluster."""
    engines = 0 if setup.args.colocate else setup.gpus or 0
    return _SLIMES_CPUS + (setup.trainer_gpus or 0) + engines


def turns(setup: Setup) -> Iterator[Finding]:
    limit = setup.config.limits.get("turns") if setup.config else None
    if limit == 1 and setup.env is not None and setup.has_tools and setup.agent is None:
        yield warning(
            f"limits.turns 1 with the tools of {setup.env.__name__}: an episode ends at its first call, and the model "
            "never reads a result; write limits.turns 8"
        )


def replay(setup: Setup) -> Iterator[Finding]:
    if setup.args.use_rollout_routing_replay and setup.experts == 0:
        yield error(
            "remove --use-rollout-routing-replay: the model has no experts, so there are no routes to replay and the "
            "first batch is refused"
        )
    top_p = setup.args.rollout_top_p
    if setup.args.use_score_centering:
        yield from _score_centering(setup)
    if top_p is not None and top_p != 1.0:
        yield warning(
            f"--rollout-top-p {top_p:g}: the trainer needs the kept token ids of every token, which only slime's "
            "patched SGLang returns; without it the first batch is refused. Write --rollout-top-p 1.0 unless yours does"
        )


def _score_centering(setup: Setup) -> Iterator[Finding]:
    args = setup.args
    if args.rollout_top_p not in (None, 1.0):
        yield error(
            f"--use-score-centering with --rollout-top-p {args.rollout_top_p:g}: agentrl keeps the likeliest tokens of "
            "the whole distribution, not those of a nucleus; write --rollout-top-p 1.0"
        )
    if args.custom_tis_function_path == WATCH:
        yield error(
            f"remove --custom-tis-function-path {WATCH}: under --use-score-centering slime's trainer takes only its "
            "own functions"
        )


def logging(setup: Setup) -> Iterator[Finding]:
    args = setup.args
    missing = [] if args.custom_rollout_log_function_path else [f"--custom-rollout-log-function-path {LOG}"]
    if args.eval_interval and not args.custom_eval_rollout_log_function_path:
        missing.append(f"--custom-eval-rollout-log-function-path {LOG_EVAL}")
    if missing:
        yield note(f"add {' and '.join(missing)} to log agentrl's metrics (turns, failures by cause, masked tokens)")


RULES: tuple[Callable[[Setup], Iterator[Finding]], ...] = (
    generate_function,
    functions,
    job_path,
    prompts,
    reward,
    group_reward,
    baseline,
    fan_out,
    filters,
    resuming,
    fully_async,
    queues,
    batches,
    lengths,
    routing,
    engine_url,
    sampling,
    saving,
    checkpoint,
    turns,
    workers,
    replay,
    evaluation,
    logging,
)

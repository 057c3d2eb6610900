"""The report of a rehearsal: what was reached, what was measured, and a verdict."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agentrl.rehearse.plan import Replacement
from agentrl.rehearse.stages import Stage, State, metrics_of, shortened

JSONObject = dict[str, Any]
DIFFERENT_MODEL = 0.02
"""The log-prob difference of engine and trainer above which they cannot hold the same model. A good run has .001 to
.008, a wrong model .07 and more."""
_DIFFERENCE = "train/train_rollout_logprob_abs_diff"
_AGENTRL = "agentrl/"
_FAILED = re.compile(r"episode \S+ failed in (.+)", re.DOTALL)
"""agentrl's warning about an episode."""
_NOT_SENT = "no update has sent them"
"""The engine's words about weights that it lacks."""
_FLAG_OF_WEIGHT = {".q_norm.": "--qk-layernorm", ".q_proj.bias": "--add-qkv-bias"}
"""Part of a weight's name -> the flag without which Megatron's model lacks the weight."""
_UNSCORED = "every reward is 0"
"""agentrl's words about episodes that nothing scores."""
GROUPED = ("grpo", "gspo", "cispo")
"""Estimators that compare the rewards of a group."""


@dataclass(slots=True)
class RehearsalReport:
    source: str
    replacements: list[Replacement] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    resumed: list[Stage] = field(default_factory=list)
    """The stages of the second start."""
    figures: JSONObject = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    log: str = ""
    interrupted: bool = False

    @property
    def is_good(self) -> bool:
        return not self.problems and not self.interrupted and bool(self.stages)

    @property
    def verdict(self) -> str:
        if self.interrupted:
            return "interrupted"
        count = len(self.problems)
        return "good" if self.is_good else f"{count} problem{'' if count == 1 else 's'}"

    def to_json(self) -> JSONObject:
        return {
            "verdict": self.verdict,
            "problems": self.problems,
            "notes": self.notes,
            "source": self.source,
            "stages": [stage.to_json() for stage in self.stages],
            "resumed": [stage.to_json() for stage in self.resumed],
            "figures": self.figures,
            "replacements": [asdict(replacement) for replacement in self.replacements],
            "log": self.log,
        }


# ---- figures


def samples_of(folder: Path, data: Iterable[Mapping[str, Any]]) -> list[JSONObject]:
    """The samples that slime was about to train, in order. `data` are the events of one start: the samples of another
    start's processes are left out."""
    samples, processes = [], {str(event["pid"]) for event in data}
    files = (file for file in sorted((folder / "samples").glob("*.jsonl")) if file.stem in processes)
    for file in files:
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                samples.append(json.loads(line))
            except ValueError:  # cut off by a kill
                continue
    return samples


def figures(data: Sequence[Mapping[str, Any]], samples: Sequence[Mapping[str, Any]]) -> JSONObject:
    """All numbers of the report, from the events of kind `data` and the trained samples."""
    arguments = _arguments(data)
    rollouts = [metrics for _, metrics in metrics_of(data, "rollout")]
    return {
        "log_probs": log_probs(data),
        "ledger": _ledger(rollouts),
        "trained_tokens": sum(sum(sample.get("loss_mask") or []) for sample in samples),
        "episodes": _counts(rollouts),
        "rewards": _rewards(samples),
        "groups": _groups(samples, int(arguments.get("n_samples_per_prompt") or 0)),
        "random_rewards": any("random_rewards" in (event.get("data") or {}) for event in data),
        "evaluation": _evaluations(data),
        "gradient_norms": _series(data, "train/grad_norm"),
        "losses": _series(data, "train/loss"),
        "weight_sums": _weight_sums(data),
        "step_seconds": _seconds(rollouts, "perf/step_time"),
        "rollout_seconds": _seconds(rollouts, "perf/rollout_time"),
    }


def _seconds(rollouts: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    return [round(metrics[name], 2) for metrics in rollouts if metrics.get(name) is not None]


def log_probs(data: Iterable[Mapping[str, Any]]) -> list[JSONObject]:
    """The mean difference of the log-probs of engine and trainer, for each training step. `update` is the number of
    the weight update before the step."""
    rows: list[JSONObject] = []
    update, sent = 0, set[int]()
    for event in data:
        inner = event.get("data") or {}
        if event["stage"] == "weights" and "sum" in inner:  # each rank logs one before it sends its weights
            if inner["rank"] in sent or not sent:
                update, sent = update + 1, set()
            sent.add(inner["rank"])
        value = (inner.get("metrics") or {}).get(_DIFFERENCE)
        if event["stage"] == "training" and value is not None:
            rows.append({"update": update, "step": inner.get("step"), "difference": value})
    return rows


def _arguments(data: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    for event in data:
        if event["stage"] == "arguments" and isinstance((event.get("data") or {}).get("args"), dict):
            arguments: Mapping[str, Any] = event["data"]["args"]
            return arguments
    return {}


def _series(data: Iterable[Mapping[str, Any]], name: str) -> list[float | None]:
    return [metrics[name] for _, metrics in metrics_of(data, "training") if name in metrics]


def _agentrl_values(rollouts: Iterable[Mapping[str, Any]], prefix: str = "rollout/") -> list[dict[str, float]]:
    """agentrl's own metrics of each rollout, without their prefix."""
    start = prefix + _AGENTRL
    values = [
        {name[len(start) :]: value for name, value in rollout.items() if name.startswith(start)} for rollout in rollouts
    ]
    return [rollout for rollout in values if rollout]


def _ledger(rollouts: Iterable[Mapping[str, Any]]) -> JSONObject | None:
    values = _agentrl_values(rollouts)
    if not values:
        return None
    masked = Counter[str]()
    for rollout in values:
        for name, count in rollout.items():
            if name.startswith("masked_tokens/"):
                masked[name.partition("/")[2]] += int(count)
    return {
        "sampled": int(sum(rollout.get("sampled_tokens", 0) for rollout in values)),
        "trained": int(sum(rollout.get("trained_tokens", 0) for rollout in values)),
        "masked": dict(masked),
    }


def _counts(rollouts: Iterable[Mapping[str, Any]], prefix: str = "rollout/") -> JSONObject | None:
    values = _agentrl_values(rollouts, prefix)
    if not values:
        return None
    reasons, places, stops = Counter[str](), Counter[str](), Counter[str]()
    groups = {"failures/": reasons, "failed_at/": places, "stops/": stops}
    for rollout in values:
        for name, count in rollout.items():
            for start, counter in groups.items():
                if name.startswith(start):
                    counter[name[len(start) :]] += int(count)
    return {
        "played": int(sum(rollout.get("episodes", 0) for rollout in values)),
        "failed": int(sum(rollout.get("failed_episodes", 0) for rollout in values)),
        "unscored": int(sum(rollout.get("unscored_episodes", 0) for rollout in values)),
        "turns": round(statistics.fmean(rollout.get("turns_mean", 0.0) for rollout in values), 2),
        "failures": dict(reasons),
        "failed_at": dict(places),
        "stops": dict(stops),
    }


def _numbers(samples: Iterable[Mapping[str, Any]]) -> list[float]:
    return [float(sample["reward"]) for sample in samples if isinstance(sample.get("reward"), (int, float))]


def _rewards(samples: Sequence[Mapping[str, Any]]) -> JSONObject | None:
    rewards = _numbers(samples)
    if not rewards:
        return None
    return {"mean": statistics.fmean(rewards), "least": min(rewards), "most": max(rewards), "samples": len(rewards)}


def _groups(samples: Sequence[Mapping[str, Any]], size: int) -> JSONObject:
    """Groups of episodes of the same prompt, and those whose rewards are all equal."""
    groups: dict[tuple[Any, int], list[float]] = {}
    for sample in samples:
        if isinstance(sample.get("index"), int) and isinstance(sample.get("reward"), (int, float)):
            group = (sample.get("rollout"), sample["index"] // max(1, size))
            groups.setdefault(group, []).append(float(sample["reward"]))
    equal = sum(len({*rewards}) == 1 for rewards in groups.values())
    return {"size": size, "count": len(groups), "without_spread": equal}


def _evaluations(data: Sequence[Mapping[str, Any]]) -> list[JSONObject]:
    rows = []
    for step, metrics in metrics_of(data, "evaluation"):
        names = [name for name in metrics if name.count("/") == 1 and not name.endswith(("/step", "-truncated_ratio"))]
        if names and not any(_AGENTRL in name for name in metrics):
            rows.append({"rollout": step, **{name.partition("/")[2]: metrics[name] for name in names}})
    values = (item for _, metrics in metrics_of(data, "evaluation") for item in metrics.items())
    failed = sum(value for name, value in values if name.endswith("/agentrl/failed_episodes"))
    return [*rows, {"failed_episodes": int(failed)}] if rows else rows


def _weight_sums(data: Iterable[Mapping[str, Any]]) -> list[float]:
    """The sum of the first rank's weights at each update."""
    inner = [event.get("data") or {} for event in data if event["stage"] == "weights"]
    return [values["sum"] for values in inner if values.get("rank") == 0 and "sum" in values]


# ---- verdict


def problems(
    values: Mapping[str, Any], data: Sequence[Mapping[str, Any]], *, random: bool, grouped: bool, stale: bool = False
) -> Iterator[str]:
    """What is wrong although nothing stopped, a line each that begins with its stage. `random` tells whether the
    weights are random; `grouped` whether rewards are compared within groups; `stale` whether episodes are played while
    the trainer updates the weights."""
    yield from (f"training: {problem}" for problem in different_models(values["log_probs"], stale=stale))
    yield from _bad_episodes(values, data)
    yield from _bad_ledger(values, _arguments(data))
    yield from _bad_training(values)
    if grouped:
        yield from _bad_groups(values, random=random)
    for event in data:
        inner = event.get("data") or {}
        if inner.get("level") in ("ERROR", "CRITICAL"):
            yield f"rollout: agentrl: {inner['message']}"
    yield from dict.fromkeys(f"rollout: {text}" for text in _warnings(data) if _UNSCORED in text)


def different_models(rows: Sequence[Mapping[str, Any]], *, stale: bool) -> Iterator[str]:
    """Whether log-probs show that engine and trainer do not hold the same model.

    With `stale` only the steps before the second weight update count: later ones train episodes of older weights, which
    the rehearsal's large learning rate has changed.
    """
    rows = [row for row in rows if row["update"] <= 1 or not stale]
    if rows and (worst := max(rows, key=lambda row: row["difference"]))["difference"] > DIFFERENT_MODEL:
        yield (
            f"after weight update {worst['update']} the engine's log-probs differ from the trainer's by "
            f"{worst['difference']:.3f} on average (a good run: below .01): not the same model; compare the flags of "
            "MODEL_ARGS with the checkpoint's config.json, and look at the weight update"
        )


def _bad_episodes(values: Mapping[str, Any], data: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    counts = values["episodes"] or {"failed": 0, "unscored": 0}
    first = next((match[1] for text in _warnings(data) if (match := _FAILED.match(text))), "")
    example = f"; the first: {shortened(first)}" if first else ""
    if counts["failed"]:
        stage = "weights" if _NOT_SENT in first else "rollout"
        flag = next((flag for name, flag in _FLAG_OF_WEIGHT.items() if stage == "weights" and name in first), "")
        hint = f"; does MODEL_ARGS lack {flag}?" if flag else ""
        yield f"{stage}: {counts['failed']} of {counts['played']} episodes failed: {_causes(counts)}{example}{hint}"
    if counts["unscored"]:
        yield (
            f"rollout: {counts['unscored']} of {counts['played']} episodes got no reward: let Env.score return a "
            "number, or name a reward function"
        )
    for row in values["evaluation"]:
        if row.get("failed_episodes"):
            yield f"evaluation: {row['failed_episodes']} episodes failed{'' if counts['failed'] else example}"


def _causes(counts: Mapping[str, Any]) -> str:
    reasons = ", ".join(f"{reason} ({count})" for reason, count in counts["failures"].items())
    places = "; ".join(f"{place} ({count})" for place, count in counts["failed_at"].items())
    return f"{reasons}; at {places}" if places else reasons


def _bad_ledger(values: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[str]:
    ledger, episodes = values["ledger"], values["episodes"]
    if not ledger:
        return
    if not ledger["trained"] and episodes and episodes["played"] > episodes["failed"]:
        stops = ", ".join(f"{stop} ({count})" for stop, count in episodes["stops"].items())
        yield f"rollout: no token of {episodes['played']} episodes is trained; they ended so: {stops or 'unknown'}"
    if not ledger["sampled"]:
        return
    masked = sum(ledger["masked"].values())
    if ledger["sampled"] != ledger["trained"] + masked:
        counts = f"{ledger['sampled']} sampled tokens, but {ledger['trained']} trained and {masked} masked"
        yield f"rollout: {counts}: a hook changes loss_mask or tokens of a Sample, or agentrl has a bug"
    if values["rewards"] and values["trained_tokens"] != ledger["trained"]:  # without a sample the conversion failed
        yield (
            f"training: slime trained {values['trained_tokens']} tokens, agentrl handed over {ledger['trained']}: a "
            "hook between them changes the masks"
        )
    # The flag masks whatever was sampled before an abort, and small rollouts are aborted often.
    if 2 * masked > ledger["sampled"] and not arguments.get("mask_offpolicy_in_partial_rollout"):
        reasons = ", ".join(f"{reason} ({count})" for reason, count in ledger["masked"].items())
        yield f"rollout: {masked} of {ledger['sampled']} sampled tokens are not trained: {reasons}"


def _bad_training(values: Mapping[str, Any]) -> Iterator[str]:
    norms, losses = values["gradient_norms"], values["losses"]
    if None in norms or None in losses:
        yield "training: a loss or gradient is not a number"
    elif norms and not any(norms):
        yield "training: every gradient is zero: nothing would be learned"
    sums = values["weight_sums"]
    if len(sums) > 1 and any(norms) and len({*sums}) == 1:
        yield "training: the weights are the same at every update: training did not change them"


def _bad_groups(values: Mapping[str, Any], *, random: bool) -> Iterator[str]:
    groups, rewards = values["groups"], values["rewards"]
    if groups["size"] == 1:
        yield "rollout: groups have one episode (--n-samples-per-prompt 1): its advantage is always zero"
    elif groups["count"] and groups["without_spread"] == groups["count"] and rewards:
        if random and rewards["least"] == rewards["most"] == 0:
            return  # a random model earns nothing
        yield (
            f"rollout: no group has a spread: all episodes of a prompt have the same reward ({rewards['least']:g} to "
            f"{rewards['most']:g}), so nothing is learned from them"
        )


def notes(values: Mapping[str, Any], data: Sequence[Mapping[str, Any]], *, random: bool) -> Iterator[str]:
    """Remarks that are no problems."""
    rewards = values["rewards"]
    if random and rewards and rewards["least"] == rewards["most"] == 0:
        yield "every reward is 0, as a model with random weights earns nothing; so a rising reward is not rehearsed"
    if values["random_rewards"]:
        yield "the trainer got random rewards in place of equal ones, so that the updates change the weights"
    for text in dict.fromkeys(_warnings(data)):
        if not _FAILED.match(text) and _UNSCORED not in text:
            yield f"agentrl warns: {text}"


def _warnings(data: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """agentrl's warnings."""
    for event in data:
        inner = event.get("data") or {}
        if inner.get("level") == "WARNING":
            yield inner["message"]


def continued(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], rollout: int, first: int | None
) -> Iterator[str]:
    """What a second start did not continue. `rollout` is the next rollout's number, `first` the one that was played."""
    if first is not None and first != rollout:
        yield f"the second start played rollout {first}: {rollout} was next"
    sums, resumed = _weight_sums(before), _weight_sums(after)
    if sums and resumed and abs(sums[-1] - resumed[0]) > 1e-3 * abs(sums[-1]):
        yield "the second start has other weights than the checkpoint"


def failed_stage(stages: Iterable[Stage]) -> str | None:
    """A line about the stage that did not end well. None if all did."""
    for stage in stages:
        if stage.state in (State.FAILED, State.TIMED_OUT):
            place = f" ({stage.place})" if stage.place else ""
            return f"{stage.name} {stage.state}: {stage.cause}{place}"
    return None

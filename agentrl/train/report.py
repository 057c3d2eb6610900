"""The report of a run: the metrics of each step, the summary, the curve."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any

from agentrl._util.files import write_atomically
from agentrl.monitor.metrics import RolloutMetrics
from agentrl.monitor.run_figures import RunFigures
from agentrl.monitor.verdicts import Verdict, causes, verdicts
from agentrl.train.bill import Bill, told_bill
from agentrl.train.held_out import HeldOut, by_step
from agentrl.train.run_folder import RunFolder
from agentrl.types import JSON

CURVE, BOARD = "reward.png", "tensorboard"
"""Names in a run's folder. CURVE: the plot of the rewards. BOARD: the folder of TensorBoard's event files."""

_NAMED: Mapping[str, str] = {"start": "before", "warm": "after the warm start", "final": "after RL"}
"""The name of an evaluation in `Summary` -> its name at the end of a run."""

_UNSURE = 0.3
"""The policy is unsure if its samples earn less than its greedy episodes by more than this share."""
KNOWS_NOTHING = (
    "warning: tiny has random weights: it knows no word, finds no reward and learns nothing from it. Let it imitate "
    "first: record episodes with `agentrl play ... --player FILE:FUNCTION --out demos.jsonl`, and train with "
    "--warm-start demos.jsonl"
)


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of a whole run. An evaluation (`eval_...`) is the held-out mean reward of greedy episodes; None if no
    episode got a reward."""

    eval_start: float | None
    eval_warm: float | None
    eval_final: float | None
    reward_first: float | None
    reward_last: float | None
    failed: Mapping[str, int]
    """Name of a mean reward in this class -> the number of failed episodes, which the mean leaves out."""
    eval_intervals: Mapping[str, Sequence[float] | None]
    """Name of an evaluation in this class -> its 95 % interval, by resampling the tasks."""
    eval_tasks: int
    """The number of held-out tasks that got a reward in the last evaluation."""
    best: Mapping[str, Any] | None
    """The best evaluation whose checkpoint is in the run folder, at `best`: step, mean, interval, tasks, failed."""
    steps: int
    seconds: float
    sampled_tokens: int
    trained_tokens: int
    masked_tokens: Mapping[str, int]
    bill: Mapping[str, JSON]
    """The costs of all processes of the run: see `Bill.to_json`."""
    verdicts: Sequence[Mapping[str, str]] = ()
    """Why the run did not learn, or its outcome: name, text, and link to the documentation."""

    @classmethod
    def of(
        cls,
        results: Sequence[HeldOut],
        best: HeldOut | None,
        metrics: Sequence[Mapping[str, Any]],
        bill: Bill,
        found: Sequence[Verdict] = (),
    ) -> Summary:
        masked: Counter[str] = Counter()
        for line in metrics:
            masked.update(line["masked_tokens"])
        scores = {f"eval_{result.name}": result.score for result in results if result.name in _NAMED}
        means = {f"eval_{name}": None for name in _NAMED} | {name: score.mean for name, score in scores.items()}
        return cls(
            **means,
            eval_intervals={
                name: None if score.mean is None else score.to_json()["interval"] for name, score in scores.items()
            },
            eval_tasks=results[-1].score.tasks if results else 0,
            best=None if best is None else best.to_json(),
            **_rewards(metrics),
            failed={
                **{name: score.failed for name, score in scores.items()},
                **{f"reward_{name}": line["failed_episodes"] for name, line in _first_and_last(metrics)},
            },
            steps=len(metrics),
            seconds=round(bill.seconds, 1),
            sampled_tokens=sum(line["sampled_tokens"] for line in metrics),
            trained_tokens=sum(line["trained_tokens"] for line in metrics),
            masked_tokens=dict(masked),
            bill=bill.to_json(),
            verdicts=[verdict.to_json() for verdict in found],
        )

    def report(self, out: Path) -> Iterator[str]:
        """The lines of text at the end of a run. `out` is the run folder, as the user wrote the path."""
        yield from self._held_out(out)
        if self.reward_first is not None:
            yield (
                f"reward, sampled      {self.reward_first:.3f} in step 1, {self.reward_last:.3f} in step {self.steps}"
            )
        yield from told_bill(self.bill)
        if (out / CURVE).is_file():
            yield f"plot                 {out / CURVE}"
        yield f"view                 agentrl view {quote(str(out))}"
        if (out / BOARD).is_dir():
            yield f"TensorBoard          tensorboard --logdir {quote(str(out / BOARD))}   # pip install tensorboard"
        elif find_spec("tensorboardX") is None:
            yield "TensorBoard          no event files were written: tensorboardX is not installed (extra `train`)"
        yield from map(_told, (Verdict(**verdict) for verdict in self.verdicts))

    def _held_out(self, out: Path) -> Iterator[str]:
        """A line for each evaluation, with the gain by reinforcement learning, and a line about the best."""
        if self.eval_start is None and self.eval_final is None:
            return
        yield f"held out, greedy     mean reward of {self.eval_tasks} tasks (95 % interval)"
        for name, label in _NAMED.items():
            mean = getattr(self, f"eval_{name}")
            if mean is None:
                continue
            interval, failed = self.eval_intervals.get(f"eval_{name}"), self.failed.get(f"eval_{name}", 0)
            of = "" if interval is None else f" ({interval[0]:.3f} to {interval[1]:.3f})"
            beside = f", {failed} failed" if failed else ""
            yield f"  {label:<21}{mean:.3f}{of}{beside}{self._added() if name == 'final' else ''}"
        if self.best is not None:
            low, high = self.best["interval"]
            label = f"best, step {self.best['step']}"
            yield f"  {label:<21}{self.best['mean']:.3f} ({low:.3f} to {high:.3f}): {out / 'best'}"

    def _added(self) -> str:
        """The gain of the held-out mean reward as text, such as `, +0.643 by reinforcement`; empty if unknown."""
        before = self.eval_start if self.eval_warm is None else self.eval_warm
        if before is None or self.eval_final is None or not self.steps:
            return ""
        return f", {self.eval_final - before:+.3f} by reinforcement"


def _first_and_last(metrics: Sequence[Mapping[str, Any]]) -> Sequence[tuple[str, Mapping[str, Any]]]:
    return [("first", metrics[0]), ("last", metrics[-1])] if metrics else []


def _rewards(metrics: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    rewards = {f"reward_{name}": line["reward_mean"] for name, line in _first_and_last(metrics)}
    return {"reward_first": None, "reward_last": None} | rewards


@dataclass(slots=True)
class AsyncReport:
    """The times and token ages of a step that learned while episodes were played. Seconds are wall-clock."""

    trainer_wait_s: float = 0.0
    """Seconds that the learner waited for groups."""
    token_age_mean: float = 0.0
    """The mean age of the trained tokens: the number of updates between the weights that sampled a token and the
    weights that learn from the token."""
    token_age_max: int = 0
    seconds: float = 0.0
    """Seconds of the whole step. The parts of a step overlap, so the sum of their seconds is larger."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """The metrics of an RL step, a line of metrics.jsonl."""

    step: int
    rollout: RolloutMetrics
    update: Mapping[str, float]
    hand_over_s: float
    """Seconds until the engine had the new weights."""
    rollout_s: float
    train_s: float
    async_report: AsyncReport | None = None
    """The times and token ages of a step with `staleness`. None if rollouts and updates take turns."""

    @property
    def same_weights(self) -> bool:
        """Whether all tokens were sampled from the weights at the beginning of the step."""
        return self.async_report is None or self.async_report.token_age_max == 0

    @property
    def seconds(self) -> float:
        """Seconds of the whole step."""
        return (
            self.hand_over_s + self.rollout_s + self.train_s if self.async_report is None else self.async_report.seconds
        )

    def shown(self) -> dict[str, float]:
        """The numbers that the progress line shows, by name."""
        failed, waits = self.rollout.failed_episodes, dict[str, float]()
        unique = self.update.get("unique_tokens", 0)
        if (report := self.async_report) is not None:
            waits = {"trainer_waits_s": round(report.trainer_wait_s, 2), "age": report.token_age_mean}
        return {
            "reward": self.rollout.reward_mean,
            **({"failed": failed} if failed else {}),
            "tokens_s": self.rollout.sampled_tokens / self.seconds,
            **({"computed_x": round(self.update["computed_tokens"] / unique, 2)} if unique else {}),
            **waits,
        }

    def to_json(self) -> dict[str, JSON]:
        sampled = self.rollout.sampled_tokens
        return {
            "step": self.step,
            **self.rollout.to_json(),
            **self.update,
            "hand_over_s": self.hand_over_s,
            "rollout_s": self.rollout_s,
            "train_s": self.train_s,
            **(asdict(self.async_report) if self.async_report else {}),
            "seconds": self.seconds,
            "tokens_per_second": sampled / self.seconds,
            "rollout_tokens_per_second": sampled / self.rollout_s,
            "train_tokens_per_second": self.update["read_tokens"] / self.train_s,
        }


_LEAST_ROOM = 0.05
"""The least margin above and below a curve, as a share of the rewards. With the margin, a constant reward looks
flat."""


def draw_curve(metrics: Sequence[Mapping[str, Any]], results: Sequence[HeldOut], file: Path) -> bool:
    """Plot the reward of each step, and the evaluations. Returns False if matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot([m["step"] for m in metrics], [m["reward_mean"] for m in metrics], label="reward, sampled")
    means = [(step, result.score.mean) for step, result in sorted(by_step(results).items())]
    held_out = [(step, mean) for step, mean in means if mean is not None]
    if held_out:
        axes.plot(*zip(*held_out, strict=True), "o-", label="held out, greedy")
    rewards = [m["reward_mean"] for m in metrics] + [reward for _, reward in held_out]
    room = max(0.05 * (max(rewards) - min(rewards)), _LEAST_ROOM * max(1.0, *map(abs, rewards)))
    axes.set(xlabel="step", ylabel="mean reward", ylim=(min(rewards) - room, max(rewards) + room))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=120)
    return True


def summarise(folder: RunFolder, out: Path, bill: Bill, say: Callable[[str], None]) -> Summary:
    """Write summary.json and the plot into a run folder, and say the report. `out` is the folder as the user wrote the
    path."""
    metrics, figures = folder.read_metrics(), RunFigures.read(folder.path)
    summary = Summary.of(folder.results, folder.best_result(), metrics, bill, verdicts(figures))
    write_atomically(folder.path / "summary.json", json.dumps(asdict(summary), indent=1) + "\n")
    if metrics and not draw_curve(metrics, folder.results, folder.path / CURVE):
        say("no reward.png: matplotlib is not installed")
    for line in summary.report(out):
        say(line)
    return summary


def say_causes(folder: RunFolder, say: Callable[[str], None]) -> None:
    """Say the lines about a run that a canary stops."""
    for verdict in causes(RunFigures.read(folder.path)):
        say(_told(verdict))


def _told(verdict: Verdict) -> str:
    return f"verdict              {verdict}"


def held_out_metrics(metrics: RolloutMetrics) -> dict[str, JSON]:
    """The entries of an evaluation in metrics.jsonl: the mean, if any, and the number of failed episodes."""
    mean = {} if metrics.reward is None else {"eval_reward_mean": metrics.reward}
    return {**mean, "eval_failed_episodes": metrics.failed_episodes}


def told_reward(metrics: RolloutMetrics) -> str:
    """The mean reward as text, with the number of failed episodes: `mean reward 1.000 of 2, 18 failed`."""
    left_out = {"failed": metrics.failed_episodes, "unscored": metrics.unscored_episodes}
    beside = "".join(f", {count} {name}" for name, count in left_out.items() if count)
    if metrics.reward is None:
        return f"no mean reward{beside}"
    of = f" of {metrics.episodes - sum(left_out.values())}" if beside else ""
    return f"mean reward {metrics.reward:.3f}{of}{beside}"


def told_evaluation(name: str, metrics: RolloutMetrics) -> str:
    """The line about an evaluation of a run."""
    calls = f"{metrics.tool_call_rate:.0%} call a tool" if metrics.episodes_with_tools else told_stops(metrics)
    turns = f"{metrics.turns_mean:.1f} turns"
    return f"held out, {name}: {metrics.episodes} episodes, {told_reward(metrics)}, {turns}, {calls}"


def told_stops(metrics: RolloutMetrics) -> str:
    """The number of episodes for each stop reason, as text: `done 120, max turns 8`."""
    return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in metrics.stops.items())


def after_warm_start(metrics: RolloutMetrics, held_out: HeldOut | None) -> str:
    """The line about the first step of reinforcement learning: whether the warm start was enough. `held_out` is the
    evaluation after the warm start."""
    differ = metrics.groups - metrics.zero_advantage_groups
    message = (
        f"after the warm start: mean reward {metrics.reward_mean:.3f}, and {differ} of {metrics.groups} groups have "
        "better and worse episodes to learn from"
    )
    greedy = None if held_out is None else held_out.score.mean
    if greedy is not None and greedy - metrics.reward_mean > _UNSURE * abs(greedy):
        message += f"; greedy episodes earn {greedy:.3f}, so the policy is unsure: more warm_start.steps may be better"
    if differ:
        return message
    return f"{message}; if that stays so, take more warm_start.steps, or more or better demonstrations"

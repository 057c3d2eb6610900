"""Verdicts: why a run does not learn, in one to three sentences with the figures, and the paragraph that helps.

Each verdict is a function of the run's figures. A run that learned gets no verdict but those of failing code: most
causes matter only if nothing is learned. After a fall of the reward, missing calls and equal rewards are consequences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from agentrl.monitor.run_figures import EqualAnswers, RunFigures

PAGE = "docs/not-learning.md"
_MOST = 3
"""The most verdicts of a run. The causes come before the symptoms."""
_OFTEN, _MANY, _HALF = 0.2, 0.3, 0.5
"""Shares: of failing episodes or calls; of cut episodes, or of a constant answer that pays; of equal answers."""
_RARELY, _EQUAL = 0.02, 0.9
"""_RARELY: the largest share of episodes with a tool call that counts as none. _EQUAL: the least share of groups with
equal rewards, or of equal answers, that leaves nothing to compare."""
_PAYS, _LEAST_PAY = 0.8, 0.25
"""A constant answer pays if it earns these shares: of the mean reward, and of the largest reward."""
_GAP = 0.2
"""The least difference between greedy and sampled reward, as a share of the largest reward."""
_COLLAPSED, _LOW_ENTROPY, _MUCH_KL = 0.1, 0.05, 1.0
"""The policy has collapsed if its entropy fell to this share of the first steps' entropy and below _LOW_ENTROPY nats a
token, or if the KL divergence is above _MUCH_KL nats a token."""
_STILL = 1e-4
"""The mean change of a token's log-prob by an update, in nats, below which the weights hardly change."""
_REFUSAL = re.compile(
    r"\b(sorry|cannot|can't|can not|unable|not (able|possible|allowed)|do(n't| not) know|no idea|refuse)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A cause, or the outcome of a run without a known cause."""

    name: str
    text: str
    """One to three sentences with the figures."""
    link: str
    """The paragraph of the documentation that helps; empty if the run learned."""

    def to_json(self) -> dict[str, str]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.text} See {self.link}" if self.link else self.text


_Found: TypeAlias = str | None
"""The text of a verdict; None if the figures do not support it."""
_Test: TypeAlias = Callable[[RunFigures], _Found]


def _is_excused(run: RunFigures) -> bool:
    """Whether a symptom needs no verdict: the run learned, or the symptom may follow from a fall of the reward."""
    return run.learned or run.fall is not None


def failing_episodes(run: RunFigures) -> _Found:
    share = run.share("failed_episodes", "episodes")
    if share < _OFTEN:
        return None
    places: Mapping[str, int] = run.steps[-1].get("failed_at", {})
    where = f", most at {max(places, key=lambda place: places[place])}" if places else ""
    return f"{share:.0%} of the episodes of the last steps failed{where}: they teach nothing. Fix the environment."


def no_tool(run: RunFigures) -> _Found:
    if (
        run.learned
        or run.fall is not None
        or not run.last("episodes_with_tools")
        or run.last("tool_call_rate") > _RARELY
    ):
        return None
    return (
        f"{run.last('tool_call_rate'):.0%} of the episodes of the last steps called a tool, though all had tools. "
        "Demonstrations teach how calls are written: warm_start."
    )


def failing_calls(run: RunFigures) -> _Found:
    bad, errors = run.last("bad_call_rate"), _tool_errors(run)
    if errors >= _OFTEN:
        return f"A tool raised unexpected errors {errors:.1f} times an episode in the last steps. Fix the tool."
    if _is_excused(run) or bad < _OFTEN:
        return None
    return (
        f"{bad:.0%} of the turns of the last steps hold a tool call that cannot be read, names no tool, or has wrong "
        f"arguments (first steps: {run.first('bad_call_rate'):.0%}). More warm_start.steps, or a lower learning_rate."
    )


def _tool_errors(run: RunFigures) -> float:
    """The number of unexpected errors of tools for each episode of the last step."""
    last: Mapping[str, Any] = run.steps[-1] if run.steps else {}
    return float(sum(last.get("tool_errors", {}).values()) / max(last.get("episodes", 0), 1))


def cut(run: RunFigures) -> _Found:
    if _is_excused(run) or run.last("truncation_rate") < _MANY:
        return None
    stops: Mapping[str, int] = run.steps[-1].get("stops", {})
    ends = ", ".join(f"{name} {count}" for name, count in stops.items())
    return (
        f"{run.last('truncation_rate'):.0%} of the episodes of the last steps were cut by a limit (last step: {ends}). "
        "Raise the limit, or ask for less in the prompt."
    )


def equal_rewards(run: RunFigures) -> _Found:
    share = run.share("zero_advantage_groups", "groups")
    compared = run.last("episodes") > run.last("groups") and "teacher_kl" not in run.steps[-1]
    if _is_excused(run) or share < _EQUAL or not compared:
        return None
    mean, spread = run.last("reward_mean"), run.last("reward_std")
    if spread > 0:
        why = "some tasks are too hard, the others too easy: refill draws others"
    elif mean <= 0:
        why = "all rewards are 0: easier tasks, a warm start, or a reward with parts"
    elif run.bottom < run.top:
        why = f"all rewards are {mean:.3g}: the tasks are too easy"
    else:
        why = f"every reward of the run is {mean:.3g}: the score ignores the answer"
    return f"The last steps teach nothing: in {share:.0%} of the groups all rewards are equal; {why}."


def constant_pays(run: RunFigures) -> _Found:
    answers = _paying(run)
    if answers is None:
        return None
    return (
        f"{answers.count} of {answers.episodes} answers of the last step are {answers.text}, in {answers.tasks} tasks, "
        f"and earn {answers.pay:.2f} on average (all episodes: {run.steps[-1]['reward_mean']:.2f}). A constant answer "
        "must earn less than an attempt: change the score."
    )


def _paying(run: RunFigures) -> EqualAnswers | None:
    """The refusals, or else the most common answer, if these earn nearly as much as the mean."""
    if run.learned or run.at_the_top:
        return None
    refusals = [e for e in _answered(run) if _REFUSAL.search(e["answer"])]
    for answers in (run.answers({"refusals": refusals} if refusals else {}), _most_common(run)):
        share = 0.0 if answers is None else answers.count / answers.episodes
        if answers is not None and _is_spread(answers, run) and _MANY <= share < _EQUAL:
            earned = run.steps[-1]["reward_mean"]
            if earned > 0 and answers.pay >= max(_PAYS * earned, _LEAST_PAY * run.top):
                return answers
    return None


def equal_answers(run: RunFigures) -> _Found:
    answers = _most_common(run)
    if run.learned or run.at_the_top or answers is None or _paying(run) is not None:
        return None
    if not _is_spread(answers, run) or answers.count < _HALF * answers.episodes:
        return None
    return (
        f"{answers.count} of {answers.episodes} answers of the last step are equal ({answers.text}), in "
        f"{answers.tasks} tasks, and earn {answers.pay:.2f} on average. A more varied warm start, or a higher "
        "temperature, lets the model try others."
    )


def _answered(run: RunFigures) -> Sequence[Mapping[str, Any]]:
    return [e for e in run.episodes if e.get("answer") and e.get("reward") is not None]


def _most_common(run: RunFigures) -> EqualAnswers | None:
    """The most common answer of the episodes without a tool call: after calls, an answer such as `done` says little."""
    same: dict[str, list[Mapping[str, Any]]] = {}
    for episode in (e for e in _answered(run) if not e.get("calls")):
        same.setdefault(repr(" ".join(episode["answer"].split())), []).append(episode)
    return run.answers(same)


def _is_spread(answers: EqualAnswers, run: RunFigures) -> bool:
    """Whether most tasks have such an answer. A right answer is equal in the tasks of the same label only."""
    tasks = len({episode.get("task") for episode in run.episodes})
    return tasks > 1 and answers.tasks > _HALF * tasks


def only_in_training(run: RunFigures) -> _Found:
    if run.sampled is None or not run.sampled.rose or run.held_out is None or run.fall is None:
        return None
    return (
        f"The sampled reward rose from {run.sampled.before:.3f} to {run.sampled.after:.3f}, and the held-out reward "
        f"fell {run.fall}. The model learns the training tasks by heart, or earns the reward without solving "
        "them: more tasks, fewer steps, or a reward that is harder to fool."
    )


def harm(run: RunFigures) -> _Found:
    if run.fall is None or only_in_training(run) is not None:
        return None
    kind = "held-out" if run.held_out is not None else "sampled"
    best = "; the best weights are in the run folder, at best" if run.held_out is not None else ""
    return f"The {kind} reward fell {run.fall}. {advice_against_harm(_rate(run))}{best}."


def _rate(run: RunFigures) -> float:
    """The highest learning rate of the run's steps."""
    return max((step.get("learning_rate", 0.0) for step in run.steps), default=0.0)


def advice_against_harm(rate: float) -> str:
    """The remedy for a reward that falls. `rate` is the highest learning rate."""
    return f"Reinforcement harms: halve learning_rate ({rate:.2g})"


def unsure(run: RunFigures) -> _Found:
    if run.learned or run.held_out_at_the_top or run.began is None or run.began["mean"] is None:
        return None
    greedy, (low, _), sampled = run.began["mean"], _interval(run.began), run.steps[0]["reward_mean"]
    if greedy - sampled < _GAP * run.top or sampled >= low:
        return None
    return (
        f"Before the first update greedy episodes earned {greedy:.3f} and sampled episodes {sampled:.3f}: the policy "
        "is unsure, and most of its samples are noise. Take more warm_start.steps, or more demonstrations, before "
        "reinforcement."
    )


def _interval(evaluation: Mapping[str, Any]) -> tuple[float, float]:
    low, high = evaluation.get("interval", (evaluation["mean"],) * 2)
    return low, high


def greedy_behind(run: RunFigures) -> _Found:
    risen = run.held_out is not None and run.held_out.rose
    if run.ended is None or run.ended["mean"] is None or risen or run.fall is not None:
        return None
    greedy, (_, high), sampled = run.ended["mean"], _interval(run.ended), run.last("reward_mean")
    if sampled - greedy < _GAP * run.top or sampled <= high:
        return None
    return (
        f"Sampled episodes of the training tasks earn {sampled:.3f}, greedy episodes of the held-out tasks "
        f"{greedy:.3f}. agentrl eval --temperature 1 tells whether decoding or the other tasks are the cause."
    )


def collapse(run: RunFigures) -> _Found:
    if run.learned or run.at_the_top:
        return None
    first, last, kl = run.first("entropy"), run.last("entropy"), run.last("kl")
    if kl > _MUCH_KL:
        return (
            f"The policy is {kl:.2f} nats a token (KL) from its start, and no reward rose. Lower learning_rate, or "
            "raise kl_coef."
        )
    if not 0 < last < min(_COLLAPSED * first, _LOW_ENTROPY):
        return None
    return (
        f"The entropy of the policy fell from {first:.3f} to {last:.3f} nats a token, and no reward rose: it tries "
        "nothing new. Lower learning_rate, and add a little kl_coef."
    )


def hardly_changes(run: RunFigures) -> _Found:
    changes = [step["logprob_change"] for step in run.steps if step.get("logprob_change")]
    if run.learned or len(changes) < len(run.steps) // 2 or not changes:
        return None
    change = sum(changes) / len(changes)
    if change >= _STILL:
        return None
    return (
        f"An update changes the log-prob of a token by {change:.1g} nats on average, so the policy hardly changes: "
        f"learning_rate ({_rate(run):.2g}) is too low."
    )


def lost_demonstrations(run: RunFigures) -> _Found:
    episodes, lost = run.demonstrations.get("episodes", 0), run.demonstrations.get("lost", 0)
    if run.learned or not episodes or lost <= _HALF * episodes:
        return None
    return (
        f"{lost} of {episodes} demonstrations earned nothing, and the warm start imitates them. Record with agentrl "
        "play --min-reward 1."
    )


TABLE: Mapping[str, tuple[_Test, str]] = {
    "failing_episodes": (failing_episodes, "episodes-fail"),
    "only_in_training": (only_in_training, "the-reward-rises-and-the-held-out-reward-does-not"),
    "harm": (harm, "reinforcement-harms"),
    "unsure": (unsure, "greedy-and-sampled-rewards-differ"),
    "no_tool": (no_tool, "no-tool-is-called"),
    "failing_calls": (failing_calls, "calls-cannot-be-read"),
    "cut": (cut, "episodes-are-cut"),
    "equal_rewards": (equal_rewards, "all-rewards-of-a-group-are-equal"),
    "constant_pays": (constant_pays, "a-constant-answer-pays"),
    "equal_answers": (equal_answers, "a-constant-answer-pays"),
    "greedy_behind": (greedy_behind, "greedy-and-sampled-rewards-differ"),
    "collapse": (collapse, "it-learned-then-it-collapsed"),
    "hardly_changes": (hardly_changes, "the-weights-hardly-change"),
    "lost_demonstrations": (lost_demonstrations, "demonstrations-that-lose"),
}
"""Name of a verdict -> its function, and its paragraph in PAGE. The causes come before the symptoms."""


def causes(run: RunFigures) -> list[Verdict]:
    """The verdicts that the figures support, at most three. Empty before the first step."""
    if not run.steps:
        return []
    found = ((name, test(run), place) for name, (test, place) in TABLE.items())
    return [Verdict(name, text, f"{PAGE}#{place}") for name, text, place in found if text is not None][:_MOST]


def verdicts(run: RunFigures) -> list[Verdict]:
    """The causes, or else the outcome of the run. Empty before the first step."""
    return causes(run) or ([_outcome(run)] if run.steps else [])


def _outcome(run: RunFigures) -> Verdict:
    change = run.held_out or run.sampled
    if run.learned:
        risen = next(c for c in (run.held_out, run.sampled) if c is not None and c.rose)
        kind = "held-out" if risen is run.held_out else "sampled"
        return Verdict("learned", f"It learned: the {kind} reward rose {risen}.", "")
    if run.held_out_at_the_top or run.at_the_top:
        greedy = f", the held-out reward {run.ended['mean']:.3f}" if run.ended is not None else ""
        text = (
            f"Little is left to learn: the sampled reward is {run.last('reward_mean'):.3f}{greedy}. Weaker "
            "demonstrations or harder tasks would leave more."
        )
        return Verdict("at_the_top", text, "")
    if change is None:
        return Verdict("too_short", "Too few steps and held-out tasks to tell whether it learned.", "")
    text = f"No reward rose by more than chance ({change}), and no usual cause shows in the figures."
    return Verdict("no_gain", text, f"{PAGE}#none-of-these")

"""RelativeJudge: does it find a known order, and does a policy learn from it?

    python -m benchmarks.relative_judge order [--groups 200] [--task animals] [--model smollm2-135m [--pairs]]
                                              [--twice 1.0] [--out FOLDER]
    python -m benchmarks.relative_judge rows [--groups 400] [--out FOLDER]
    python -m benchmarks.relative_judge demo [--seeds 0] [--steps 40] [--out FOLDER]

    order   groups of four attempts whose order is known. `animals`: lists, of which longer ones are better. `replies`:
            to a customer, from polite and helpful to rude. `sums`: closer to the right one. Scripted judges: one that
            knows the order, one that errs, one that prefers what it reads first, one that refuses every third request.
            With --model, a real model instead: with --pairs it compares two at a time, else it writes a ranking, and is
            shown one solved prompt before its own (--solved 0: none). Kendall's tau with the known order, and of the
            judge with itself
    rows    chat.jsonl, with rankings of other groups, to teach a model by `agentrl sft`
    demo    the demo's task. A scripted judge ranks each group in place of the checker: it knows which attempts looked
            the answer up and gave the right one. Held-out questions are scored by the Env's own score

An interrupted `demo`, or `order` with a model, continues with the same command.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from agentrl.chat.client import AsksMessages
from agentrl.chat.completions import Completion
from agentrl.rewards import RelativeJudge
from agentrl.rewards.ranking import kendall_tau
from agentrl.train import TrainConfig, train
from agentrl.trajectory.model_output import ModelOutput
from agentrl.types import Message, Reward
from benchmarks.groups_that_teach import demo_config
from tests.rewards.scripted_judge import ScriptedJudge, attempts, serving

ANIMALS = [
    "cat",
    "dog",
    "cow",
    "hen",
    "goat",
    "pig",
    "duck",
    "fox",
    "wolf",
    "bear",
    "lion",
    "tiger",
    "rat",
    "bee",
    "ant",
]
_OTHERS = 100_000
"""The number of the first group that is not among those of `order`."""
RUBRIC = "Which attempt names more animals?"
THINGS = ["parcel", "password", "invoice", "pair of shoes", "subscription", "refund", "laptop", "ticket"]
REPLIES = [
    [
        "I am very sorry about the trouble with your {thing}. I have looked it up and will solve it for you today.",
        "Thank you for writing, and please excuse the trouble. I will take care of your {thing} at once and call you.",
    ],
    ["Please send us a photo of the {thing}, then we can look at it.", "You can fill in the form for your {thing}."],
    ["Not my job. Read the website.", "We have no time for that. Wait until somebody answers."],
    ["Shut up, you idiot. Nobody cares about your {thing}.", "Go away. You and your stupid {thing} make me sick."],
]
"""From the best to the worst."""
console = Console(highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("order", "rows", "demo"))
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--task", choices=TASKS, default="animals")
    parser.add_argument("--model", help="a real model that judges, in place of the scripted judges")
    parser.add_argument("--pairs", action="store_true", help="RelativeJudge(pairs=True); needs xgrammar")
    parser.add_argument("--solved", type=int, default=1)
    parser.add_argument("--twice", type=float, default=1.0, help="share of groups that are ranked in two orders")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path(f"runs/bench-judge-{int(time.time())}"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.part == "order":
        asyncio.run(order(args))
    elif args.part == "rows":
        asyncio.run(rows(args.groups, args.out / "chat.jsonl"))
    else:
        demo(args)


async def order(args: argparse.Namespace) -> None:
    if args.model is not None:
        report(f"{args.model}, {args.task}", await by_model(args))
        return
    for name, judge in SCRIPTED.items():
        report(
            name, [await judged(TASKS["animals"](number), judge(number), args.twice) for number in range(args.groups)]
        )


@dataclass(frozen=True)
class Ordered:
    """Attempts at one task, and how good each is by the rubric."""

    prompt: str
    rubric: str
    attempts: Sequence[str]
    known: Sequence[float]


def animals(number: int) -> Ordered:
    rng = random.Random(number)
    lists = [", ".join(rng.sample(ANIMALS, length)) for length in rng.sample((1, 3, 6, 10), 4)]
    texts = [text.capitalize() + "." for text in lists]
    return Ordered(f"Name animals ({number}).", RUBRIC, texts, [float(named(text)) for text in texts])


def replies(number: int) -> Ordered:
    rng = random.Random(number)
    order, thing = rng.sample(range(len(REPLIES)), len(REPLIES)), rng.choice(THINGS)
    texts = [rng.choice(REPLIES[place]).format(thing=thing) for place in order]
    prompt = f"A customer writes: There is a problem with my {thing}, order {rng.randint(1000, 9999)}. Answer."
    return Ordered(prompt, "Which answer is more polite and more helpful?", texts, [-float(place) for place in order])


def sums(number: int) -> Ordered:
    rng = random.Random(number)
    a, b, wrong = rng.randint(10, 89), rng.randint(10, 89), rng.sample((0, 1, 10, 40), 4)
    texts = [f"{a} + {b} = {a + b + rng.choice((-1, 1)) * each}." for each in wrong]
    return Ordered(
        f"What is {a} + {b}?", "Which attempt is closer to the right answer?", texts, [-float(each) for each in wrong]
    )


TASKS: dict[str, Callable[[int], Ordered]] = {each.__name__: each for each in (animals, replies, sums)}


def named(text: str) -> int:
    return sum(word in ANIMALS for word in re.findall("[a-z]+", text.lower()))


async def judged(group: Ordered, asked: Any, twice: float, *, pairs: bool = False) -> dict[str, float]:
    """The figures of one group."""
    judge = RelativeJudge(rubric=group.rubric, twice=twice, pairs=pairs)
    judge.model = asked
    outputs = [ModelOutput.of_turns([text], prompt=group.prompt) for text in group.attempts]
    rewards = [one for one in await judge.grade_group(outputs) if isinstance(one, Reward)]
    tau = kendall_tau(group.known, [one.value for one in rewards])
    tokens = sum(one.parts["judge_tokens"] for one in rewards)
    return {"tau": tau, "judge_tokens": tokens, **{k: v for k, v in rewards[0].parts.items() if k != "judge_tokens"}}


def report(name: str, found: Sequence[dict[str, float]]) -> None:
    usable = [one for one in found if not one["judge_unusable"]]
    own = [one["judge_agreement"] for one in found if "judge_agreement" in one]
    console.print(
        f"{name}: {len(found)} groups, {len(usable)} ranked, tau with the known order "
        f"{fmean([one['tau'] for one in usable] or [0]):.3f}, with itself {fmean(own or [0]):.3f} "
        f"({len(own)} ranked twice), {fmean(one['judge_tokens'] for one in found):.0f} tokens a group"
    )


class Scripted:
    """A judge in this process: its rankings are made of the prompt by a function."""

    def __init__(self, rank: Callable[[dict[str, str], random.Random], Sequence[str]], number: int) -> None:
        self.rank, self.rng = rank, random.Random(f"judge {number}")

    async def ask(self, messages: Sequence[Message]) -> Completion:
        prompt = messages[0]["content"]
        said = f"RANKING: {' > '.join(self.rank(dict(attempts(prompt)), self.rng))}"
        message: Message = {"role": "assistant", "content": said}
        return Completion(message, message, "stop", {"prompt_tokens": len(prompt) // 4, "completion_tokens": 8})


async def solved(groups: int) -> list[Message]:
    """Prompts of other groups, each with the ranking of the judge that knows the order."""
    found = list[Message]()

    class Kept(Scripted):
        async def ask(self, messages: Sequence[Message]) -> Completion:
            reply = await super().ask(messages)
            found.extend([*messages, reply.message])
            return reply

    for number in range(_OTHERS, _OTHERS + groups):
        await judged(TASKS["animals"](number), Kept(knows, number), 0.0)
    return found


async def rows(groups: int, file: Path) -> None:
    chat = await solved(groups)
    lines = [json.dumps({"messages": chat[start : start + 2]}) for start in range(0, len(chat), 2)]
    await asyncio.to_thread(file.write_text, "\n".join(lines) + "\n", encoding="utf-8")
    console.print(f"{len(lines)} rows in {file}")


def knows(texts: dict[str, str], rng: random.Random) -> Sequence[str]:
    return sorted(texts, key=lambda name: -named(texts[name]))


def errs(texts: dict[str, str], rng: random.Random) -> Sequence[str]:
    return sorted(texts, key=lambda name: -named(texts[name]) + rng.gauss(0, 4))


def first_first(texts: dict[str, str], rng: random.Random) -> Sequence[str]:
    return list(texts)


def refuses(texts: dict[str, str], rng: random.Random) -> Sequence[str]:
    return ["I cannot"] if rng.random() < 1 / 3 else knows(texts, rng)


SCRIPTED: dict[str, Callable[[int], Scripted]] = {
    rank.__name__: (lambda number, rank=rank: Scripted(rank, number)) for rank in (knows, errs, first_first, refuses)
}


def kept_figures(file: Path) -> dict[int, dict[str, float]]:
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {one.pop("group"): one for one in map(json.loads, lines)}


class Shown:
    """A model that is shown solved prompts before each prompt."""

    def __init__(self, model: AsksMessages, before: Sequence[Message]) -> None:
        self.model, self.before = model, before

    async def ask(self, messages: Sequence[Message]) -> Completion:
        return await self.model.ask([*self.before, *messages])


async def by_model(args: argparse.Namespace) -> list[dict[str, float]]:
    """Rankings by a real model, in this process. Each is kept as soon as it is there."""
    from agentrl.chat.engine_speaker import EngineSpeaker
    from agentrl.cli.models import open_model

    kept = args.out / f"{Path(args.model).name}-{args.task}{'-pairs' * args.pairs}.jsonl"
    found = await asyncio.to_thread(kept_figures, kept)
    left = [number for number in range(args.groups) if number not in found]
    async with open_model(args.model, "auto") as opened:
        speaker = EngineSpeaker(opened.engine, opened.renderer, most=24)
        model = speaker if args.pairs else Shown(speaker, await solved(args.solved))

        async def one(number: int) -> None:
            found[number] = await judged(TASKS[args.task](number), model, args.twice, pairs=args.pairs)
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"group": number, **found[number]}) + "\n")

        for start in range(0, len(left), 8):
            await asyncio.gather(*map(one, left[start : start + 8]))
    return [found[number] for number in range(args.groups)]


JUDGE = """from agentrl.rewards import RelativeJudge

judge = RelativeJudge(base_url={url!r}, model="scripted", rubric="Which attempt looked up the answer, and is right?")
"""


def demo(args: argparse.Namespace) -> None:
    base = demo_config(args.out)
    imitate = base.pop("warm_start")
    finish({**base, "steps": 0, "warm_start": imitate}, args.out / "warm")
    base |= {"model": str(args.out / "warm"), "steps": args.steps, "checkpoint_every": 5}
    with serving(ScriptedJudge(worth)) as url:
        (args.out / "judge.py").write_text(JUDGE.format(url=url), encoding="utf-8")
        for seed in args.seeds:
            out = args.out / f"judge-{seed}"
            finish({**base, "seed": seed, "reward": f"{args.out}/judge.py:judge"}, out)
            console.print(f"seed {seed}: {told(out)}")


def told(run: Path) -> str:
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    parts = [json.loads(line)["reward_parts"] for line in lines]
    own = [part["judge_agreement"] for part in parts if "judge_agreement" in part]
    return (
        f"held out, by the checker: {summary['eval_start']:.3f} before, {summary['eval_final']:.3f} after {len(parts)} "
        f"steps; sampled, likewise: {fmean(part['score'] for part in parts[:5]):.3f} in the first five steps, "
        f"{fmean(part['score'] for part in parts[-5:]):.3f} in the last; the judge: "
        f"{fmean(part['judge_tokens'] for part in parts):.0f} tokens an episode, agreement {fmean(own or [0]):.2f}, "
        f"unusable {fmean(part['judge_unusable'] for part in parts):.3f}"
    )


def finish(config: dict[str, Any], out: Path) -> None:
    """Train, or continue an interrupted run, unless it was finished before."""
    if not (out / "summary.json").exists():
        train(TrainConfig.make(**{**config, "out": out}), resume=(out / "config.yaml").exists(), console=console)


def worth(text: str, reference: str) -> float:
    """As `FactSearch.score`: the answer is right, and was read."""
    answer = text.rpartition("[writes]\n")[2]
    read = re.findall(r"\[is answered\]\n(.*?)(?=\n\[writes\]|\Z)", text, re.DOTALL)
    seen = re.search(rf"\b{re.escape(reference)}\b", "\n".join(read))
    return float(answer.strip() == f"Answer: {reference}" and seen is not None)


if __name__ == "__main__":
    main()

"""Worlds for the trainer's tests: a random model earns something in them, so rewards differ from the first step."""

import random
from asyncio import Event
from itertools import count

from agentrl import Env, Image, InfraError, StepResult, Task, TurnOptions, tool


class Toy(Env):
    """Three turns; the reward is the share of even tokens among those sampled, plus a little for the task."""

    turn_options = TurnOptions(stop=tuple("aeiou"))  # else a random model would never end its turn

    def step(self, action):
        return StepResult(f"Go on, {self.task.id}.")

    def score(self, trajectory):
        sampled = [token for action in trajectory.actions for token in action.tokens]
        return sum(token % 2 == 0 for token in sampled) / len(sampled) + self.task.label


class Odd(Toy):
    """The reward is the share of odd tokens. A model without weights says the token 0 alone."""

    def score(self, trajectory):
        return 1 + self.task.label - super().score(trajectory)


class Uneven(Toy):
    """Every episode of a task of even number gets the same reward."""

    def score(self, trajectory):
        return 0.25 if int(self.task.id) % 2 == 0 else super().score(trajectory)


class Flaky(Toy):
    """Nobody can grade task 1."""

    def score(self, trajectory):
        if self.task.id == "1":
            raise InfraError("the grader is gone")
        return super().score(trajectory)


class Gone(Toy):
    """Nobody can grade anything."""

    def score(self, trajectory):
        raise InfraError("the grader is gone")


class Tools(Toy):
    """Has a tool, which a random model never calls."""

    @tool
    async def lookup(self, name: str) -> str:
        """Look something up."""
        return name


class Worse(Toy):
    """The first two updates lose the held-out reward."""

    def score(self, trajectory):
        first = trajectory.weight_versions[0] in ("0", "1")
        return float(first) if self.task.split == "eval" else super().score(trajectory)


class Contrary(Toy):
    """Training pays for even tokens, and the held-out tasks for odd tokens."""

    def score(self, trajectory):
        even = super().score(trajectory)
        return 1 - even if self.task.split == "eval" else even


class Endless(Toy):
    """No text ends a turn."""

    turn_options = TurnOptions()


class Fragile(Tools):
    """The tool breaks, and is called before each turn."""

    def step(self, action):
        self.info["tool_errors"] = {"lookup:KeyError": 1}
        return super().step(action)


class Refusal(Toy):
    """A refusal pays two thirds, and nothing else pays more than a third."""

    def score(self, trajectory):
        return 0.66 if "sorry" in trajectory.answer else super().score(trajectory) / 3


class Buggy(Toy):
    def score(self, trajectory):
        raise KeyError("oops")


class Unscored(Toy):
    """Forgets to return the reward."""

    def score(self, trajectory):
        super().score(trajectory)


def even(trajectory):
    """A reward function."""
    return float(trajectory.tokens[-1] % 2 == 0)


def same(trajectory):
    """A reward function from which nothing can be learned."""
    return 0.25


NOT_A_FUNCTION = 3


class Own(Toy):
    """Makes its own tasks, without end."""

    said = "say"

    @classmethod
    def tasks(cls, config, split):
        for number in count():
            yield Task(prompt=f"{cls.said} {split} {number}", label=number / 100)


class Pictures(Toy):
    """Two turns, each after a picture. They are the same in all episodes."""

    def reset(self, task):
        self.sizes = [(120, 90), (60, 130)]
        return [self.picture()]

    def step(self, action):
        return StepResult([self.picture()]) if self.sizes else StepResult(done=True)

    def picture(self):
        from PIL import Image as Pillow

        width, height = self.sizes.pop()
        noise = Pillow.frombytes("RGB", (width, height), random.Random(width).randbytes(3 * width * height))
        return {"role": "user", "content": ["And now?", Image.from_pil(noise)]}


class Steady(Toy):
    """Can branch."""

    deterministic = True


class Pair(Toy):
    """Two seats that take a turn each, twice."""

    seats = ("one", "other")

    def reset(self, task):
        self.moves = 0
        return ""

    def observe(self, seat):
        return f"Go on, {seat} of {self.task.id}."

    def step(self, action):
        self.moves += 1
        done = self.moves == 4
        return StepResult(done=done, next_seat=None if done else "other" if self.seat == "one" else "one")

    def score(self, trajectory):
        return super().score(trajectory) if trajectory.turns else 0.0


class Hanging(Toy):
    """The tenth episode of a training run hangs."""

    begun = count()

    async def reset(self, task):
        if self.hangs(task):
            await Event().wait()
        return task.prompt

    def hangs(self, task):
        return next(self.begun) == 9


class HangingEvaluation(Hanging):
    """In an evaluation the task 1 hangs."""

    def hangs(self, task):
        return task.split == "eval" and task.id == "1"

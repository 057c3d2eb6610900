"""A shop with six tools, a policy and a scripted customer. The reward depends on the database at the end."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from agentrl import Action, Env, Message, StepResult, Task, ToolError, tool
from agentrl.testing import call
from benchmarks.gym.lookups import Player, Split, _dice, is_held_out

NAMES = ["father", "mother", "man", "boy", "animal", "plant", "system", "picture", "mountain", "city"]
PLACES = ["city", "sea", "school", "river"]
WISHES = ["stop", "back", "move"]
POLICY = "Stop or move open orders, take sent orders back. Else call a person."


def order_of(task: Task) -> str:
    """The number of the customer's order."""
    return str(Random(f"order/{task.seed}").randrange(10, 100))


class Retail(Env):
    """Serve a customer: ask for the order or the name, look at the order, then do what the policy allows."""

    @classmethod
    def tasks(cls, config: object, split: Split) -> Iterable[Task]:
        rows = [(wish, name, state) for name in NAMES for wish in WISHES for state in ("open", "sent")]
        rows *= 8
        Random("retail").shuffle(rows)
        for number, (wish, name, state) in enumerate(rows):
            if is_held_out(number, split):
                place = PLACES[number % len(PLACES)]
                knows_order = Random(f"knows/{number}").random() < 0.5
                metadata = {"wish": wish, "name": name, "state": state, "place": place, "knows_order": knows_order}
                text = f"move it to the {place}" if wish == "move" else wish if wish == "stop" else "give it back"
                yield Task(id=f"{split}-{number}", prompt=f"I want to {text}.", metadata=metadata, seed=number)

    def reset(self, task: Task) -> list[Message]:
        self.order = order_of(task)
        self.database = {"state": task.metadata["state"], "place": "", "person": False}
        self.is_asked = False
        return [{"role": "system", "content": POLICY}, {"role": "user", "content": str(task.prompt)}]

    async def step(self, action: Action) -> StepResult:
        """Execute a call. Any other turn is a message to the customer, who answers one question."""
        if action.calls:
            return await self.run_tools(action)
        if not self.is_asked and "?" in action.content:
            self.is_asked = True
            name = self.task.metadata["name"]
            return StepResult(f"Order {self.order}." if self.task.metadata["knows_order"] else f"I am the {name}.")
        return StepResult("", done=True)

    @tool(parallel=False)
    def find(self, name: str) -> str:
        """Find a customer's order by name."""
        if name != self.task.metadata["name"]:
            raise ToolError("Not known.")
        return f"Order {self.order}."

    @tool(parallel=False)
    def look(self, order: str) -> str:
        """Look at an order: open or sent."""
        return f"It is {self._mine(order)['state']}."

    @tool(parallel=False)
    def stop(self, order: str) -> str:
        """Stop an open order."""
        self._in("open", order)["state"] = "stopped"
        return "It is now stopped."

    @tool(parallel=False)
    def back(self, order: str) -> str:
        """Take a sent order back."""
        self._in("sent", order)["state"] = "back"
        return "It is now back."

    @tool(parallel=False)
    def move(self, order: str, value: str) -> str:
        """Move an open order to another place."""
        self._in("open", order)["place"] = value
        return "It is now there."

    @tool(parallel=False)
    def person(self, order: str) -> str:
        """Call a person for an order."""
        self._mine(order)["person"] = True
        return "A person will help."

    def score(self, trajectory: Any) -> float:
        return float(self.database == expected(self.task))

    def _mine(self, order: str) -> dict[str, Any]:
        if order != self.order:
            raise ToolError("No such order.")
        return self.database

    def _in(self, state: str, order: str) -> dict[str, Any]:
        if self._mine(order)["state"] != state:
            raise ToolError(f"It is not {state}.")
        return self.database


def expected(task: Task) -> dict[str, Any]:
    """The database after the right actions."""
    wish, state, place = (task.metadata[key] for key in ("wish", "state", "place"))
    if (wish == "back") != (state == "sent"):
        return {"state": state, "place": "", "person": True}
    if wish == "move":
        return {"state": state, "place": place, "person": False}
    return {"state": {"stop": "stopped", "back": "back"}[wish], "place": "", "person": False}


def retail_gold(task: Task) -> Player:
    yield from _serve(task, looks=1.0)


def retail_weak(task: Task) -> Player:
    """Does what the customer wants without a look at the order, seven times of ten."""
    yield from _serve(task, looks=0.3)


def _serve(task: Task, looks: float) -> Player:
    dice, wish, place = _dice(task), task.metadata["wish"], task.metadata["place"]
    reply = yield "Which order?"
    order = reply.removeprefix("Order ").rstrip(".")
    if not reply.startswith("Order"):
        name = reply.removeprefix("I am the ").rstrip(".")
        order = (yield call("find", name=name)).removeprefix("Order ").rstrip(".")
    action = wish
    if dice.random() < looks:
        state = (yield call("look", order=order)).removeprefix("It is ").rstrip(".")
        action = wish if (wish == "back") == (state == "sent") else "person"
    yield call(action, order=order, value=place) if action == "move" else call(action, order=order)
    yield "It is done."

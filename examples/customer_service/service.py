"""An agent of a shop serves a customer: tools over a database, a policy, a simulated user. The format is that of
tau-bench.

agentrl play examples/customer_service/service.py:CustomerService --player examples/customer_service/people.py:gold
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from shop import Shop
from shop_tasks import shop_tasks

from agentrl import Action, Env, Message, Reward, StepResult, Task, ToolError, Trajectory, tool
from agentrl.chat import Speaker, SpeakerConfig, speaker
from agentrl.chat.simulation import SimulatedUser, UserConfig

HERE = Path(__file__).resolve().parent
GREETING = "Hi! How can I help you today?"


class ServiceConfig(BaseModel):
    user: UserConfig = UserConfig(speaker=SpeakerConfig(script=f"{HERE}/people.py:customer"))
    """The customer: by default a script, which needs no model."""
    seed: int = 0
    """The seed of the database."""


class CustomerService(Env):
    config: ServiceConfig
    shared: Speaker

    @classmethod
    def share(cls, config: ServiceConfig) -> Speaker:
        return speaker(config.user.speaker)

    @classmethod
    def tasks(cls, config: ServiceConfig, split: Literal["train", "eval"], /) -> Iterable[Task]:
        return shop_tasks(config.seed, split)

    async def reset(self, task: Task) -> list[Message]:
        self.shop = Shop(self.config.seed)
        self.user = SimulatedUser(self.shared, task.metadata["instruction"], self.config.user)
        heard = await self.user.hear(GREETING)
        policy = (HERE / "policy.md").read_text(encoding="utf-8")
        return [{"role": "system", "content": policy}, {"role": "user", "content": heard.text}]

    async def step(self, action: Action) -> StepResult:
        if action.calls:
            return await self.run_tools(action)
        heard = await self.user.hear(action.content)
        return StepResult(heard.text, done=heard.ended, info=self.user.info())

    @tool
    def find_customer(self, email: str) -> dict:
        """Find a customer by e-mail address: number, name, address, gift card, and the numbers of the orders."""
        number = self.shop.customer(email)
        orders = [key for key, row in self.shop.state["orders"].items() if row["customer"] == number]
        return {"customer": number, **self.shop.look_up("customers", number), "orders": orders}

    @tool
    def get_order(self, order: str) -> dict:
        """Read an order, such as W1001: its status, items, address, refunds and tracking number."""
        return self.shop.look_up("orders", order)

    @tool
    def get_options(self, name: str) -> dict:
        """Read the options of a product, such as lamp: price and stock of each, by product number."""
        return self.shop.options(name)

    @tool(parallel=False)
    def cancel_order(self, order: str, reason: Literal["no longer needed", "ordered by mistake"]) -> str:
        """Cancel a pending order. It is paid back the way it was paid."""
        self.shop.cancel(order, reason)
        return "cancelled"

    @tool(parallel=False)
    def return_items(self, order: str, products: list[str], refund_to: Literal["original payment", "gift card"]) -> str:
        """Take items of a delivered order back, by product number."""
        self.shop.give_back(order, products, refund_to)
        return "a return label is on its way"

    @tool(parallel=False)
    def exchange_item(self, order: str, product: str, new_product: str) -> str:
        """Exchange an item of a delivered order for another option of the same product."""
        self.shop.exchange(order, product, new_product)
        return "the exchange is on its way"

    @tool(parallel=False)
    def change_address(self, order: str, address: str) -> str:
        """Send a pending order to another address."""
        self.shop.send_to(order, address)
        return "changed"

    def score(self, trajectory: Trajectory) -> Reward:
        """1 if the database is as after the right actions, and the customer got the required information; else 0."""
        state = self.shop.state == expected(self.task.metadata, self.config.seed).state
        told, metadata = _said(trajectory), self.task.metadata
        said = all(one in told for one in metadata["outputs"]) and not any(one in told for one in metadata["untrue"])
        return Reward(float(state and said), {"state": float(state), "said": float(said)})

    def snapshot(self) -> dict[str, Any]:
        return {"state": json.loads(json.dumps(self.shop.state)), "user": self.user.snapshot()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.shop = Shop(state=state["state"])
        self.user = SimulatedUser(self.shared, self.task.metadata["instruction"], self.config.user)
        self.user.restore(state["user"])


def expected(metadata: Mapping[str, Any], seed: int) -> Shop:
    """The shop's database after the task's right actions."""
    shop = Shop(seed)
    act = {
        "cancel_order": shop.cancel,
        "return_items": shop.give_back,
        "exchange_item": shop.exchange,
        "change_address": shop.send_to,
    }
    for action in metadata["actions"]:
        try:
            act[action["name"]](*action["arguments"].values())
        except ToolError as exc:
            raise ValueError(f"a right action of the task is impossible: {exc}") from exc
    return shop


def _said(trajectory: Trajectory) -> str:
    """The text of the agent for the customer. Commas are left out, so that 1,000 equals 1000."""
    return "\n".join(action.content for action in trajectory.actions if not action.calls).replace(",", "")

"""A small retail shop: a database that is generated from a seed, and the actions on it. All data is invented."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

from agentrl import ToolError

FIRST = ("Ada", "Boris", "Chen", "Dalia", "Emil", "Fatou", "Goran", "Hana", "Igor", "Juno", "Kofi", "Lena")
LAST = ("Abara", "Brandt", "Costa", "Duval", "Eriksen", "Fuchs", "Grau", "Hoxha", "Ilves", "Jansen", "Kaya", "Lund")
STREETS = ("Elm Street", "Harbour Road", "Mill Lane", "Station Square", "Orchard Way")
CITIES = ("Ulm", "Lyon", "Porto", "Graz", "Turku")
GOODS = {
    "lamp": ("white", "black", "brass"),
    "kettle": ("steel", "red", "glass"),
    "backpack": ("small", "medium", "large"),
    "headphones": ("wired", "wireless", "in-ear"),
    "desk chair": ("grey", "green", "leather"),
    "notebook": ("lined", "dotted", "blank"),
}
STATUSES = ("pending", "shipped", "delivered")

State = dict[str, dict[str, Any]]


@cache
def _made(seed: int) -> str:
    dice = Random(f"shop/{seed}")
    state: State = {"customers": {}, "products": {}, "orders": {}}
    for name, options in GOODS.items():
        for option in options:
            number = f"P{len(state['products']) + 101}"
            state["products"][number] = {
                "name": name, "option": option, "price": dice.randrange(900, 9900, 50) / 100,
                "stock": dice.choice((0, 3, 8)),
            }  # fmt: skip
    for number, (first, last) in enumerate(zip(FIRST, dice.sample(LAST, len(LAST)), strict=True)):
        state["customers"][f"C{number + 11}"] = {
            "name": f"{first} {last}",
            "email": f"{first}.{last}@example.com".lower(),
            "address": _address(dice),
            "gift_card": dice.randrange(0, 6000, 500) / 100,
        }
    for customer in state["customers"]:
        for status in STATUSES:
            _order(state, customer, status, dice)
    return json.dumps(state)


def _order(state: State, customer: str, status: str, dice: Random) -> None:
    goods = dice.sample(sorted(state["products"]), 2)
    state["orders"][f"W{len(state['orders']) + 1001}"] = {
        "customer": customer,
        "status": status,
        "address": state["customers"][customer]["address"],
        "items": [
            {"product": number, "price": state["products"][number]["price"], "state": "kept"} for number in goods
        ],
        "refunds": [],
        "tracking": None if status == "pending" else f"TR{dice.randrange(10**6, 10**7)}",
    }


def _address(dice: Random) -> str:
    return f"{dice.randrange(1, 90)} {dice.choice(STREETS)}, {dice.choice(CITIES)}"


class Shop:
    """An episode's copy of the database. An impossible action raises ToolError, and changes nothing."""

    def __init__(self, seed: int = 0, state: State | None = None) -> None:
        self.state: State = json.loads(_made(seed)) if state is None else copy.deepcopy(state)

    def look_up(self, table: str, key: str) -> dict[str, Any]:
        """The row of a table. Raises ToolError for an unknown key."""
        if key not in self.state[table]:
            raise ToolError(f"there is no {key} among the {table}")
        row: dict[str, Any] = self.state[table][key]
        return row

    def customer(self, email: str) -> str:
        """The number of the customer with this e-mail address."""
        found = [key for key, row in self.state["customers"].items() if row["email"] == email.strip().lower()]
        if not found:
            raise ToolError(f"no customer has the e-mail address {email}")
        return str(found[0])

    def options(self, name: str) -> dict[str, dict[str, Any]]:
        """The products with this name."""
        found = {key: row for key, row in self.state["products"].items() if row["name"] == name.strip().lower()}
        if not found:
            raise ToolError(f"the shop has no {name}; it has {', '.join(GOODS)}")
        return found

    def cancel(self, order: str, reason: str) -> None:
        """Cancel a pending order and pay it back."""
        row = self._in("pending", order)
        if reason not in ("no longer needed", "ordered by mistake"):
            raise ToolError("the reason must be 'no longer needed' or 'ordered by mistake'")
        row["status"] = "cancelled"
        row["refunds"].append({"amount": _sum(row["items"]), "to": "original payment", "reason": reason})

    def give_back(self, order: str, products: Sequence[str], refund_to: str) -> None:
        """Take items of a delivered order back."""
        row = self._in("delivered", order)
        if refund_to not in ("original payment", "gift card"):
            raise ToolError("refund_to must be 'original payment' or 'gift card'")
        items = [self._item(row, order, product) for product in dict.fromkeys(products)]
        if not items:
            raise ToolError("name the products that come back")
        for item in items:
            item["state"] = "return requested"
        row["refunds"].append({"amount": _sum(items), "to": refund_to, "reason": "return"})
        if refund_to == "gift card":
            owner = self.state["customers"][row["customer"]]
            owner["gift_card"] = round(owner["gift_card"] + _sum(items), 2)

    def exchange(self, order: str, product: str, new: str) -> None:
        """Exchange an item of a delivered order for another option of the same product."""
        row = self._in("delivered", order)
        item, old, fresh = self._item(row, order, product), self.look_up("products", product), self._fresh(new)
        if fresh["name"] != old["name"]:
            raise ToolError(f"{product} is a {old['name']} and {new} a {fresh['name']}: only options can be exchanged")
        fresh["stock"] -= 1
        item["state"] = f"exchanged for {new}"

    def send_to(self, order: str, address: str) -> None:
        """Change the address of a pending order."""
        self._in("pending", order)["address"] = address.strip()

    def _in(self, status: str, order: str) -> dict[str, Any]:
        row = self.look_up("orders", order)
        if row["status"] != status:
            raise ToolError(f"{order} is {row['status']}; this is only possible while an order is {status}")
        return row

    def _fresh(self, product: str) -> dict[str, Any]:
        row = self.look_up("products", product)
        if row["stock"] < 1:
            raise ToolError(f"{product} is out of stock")
        return row

    @staticmethod
    def _item(row: dict[str, Any], order: str, product: str) -> dict[str, Any]:
        found = [item for item in row["items"] if item["product"] == product and item["state"] == "kept"]
        if not found:
            raise ToolError(f"{order} holds no {product} that could go back")
        item: dict[str, Any] = found[0]
        return item


def _sum(items: Sequence[dict[str, Any]]) -> float:
    return round(sum(item["price"] for item in items), 2)

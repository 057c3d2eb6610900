"""Tasks from the database: a customer's wish, the right actions, and the information that the customer must get."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, Literal

from shop import CITIES, STATUSES, STREETS, Shop

from agentrl import Task

Wish = tuple[str, list[dict[str, Any]], list[str]]
"""The wish in the customer's words, the right actions, and texts that the agent must write."""

TRAIN, EVAL = 24, 12


def shop_tasks(seed: int, split: Literal["train", "eval"]) -> Iterator[Task]:
    """The tasks of a split. All kinds of wishes are equally frequent. The splits have different customers."""
    shop, dice = Shop(seed), Random(f"tasks/{seed}/{split}")
    customers = sorted(shop.state["customers"])
    mine = customers[:8] if split == "train" else customers[8:]
    for number in range(TRAIN if split == "train" else EVAL):
        customer = mine[number % len(mine)]
        kind, make = list(KINDS.items())[number % len(KINDS)]
        wish, actions, outputs = make(shop, customer, dice)
        row = shop.state["customers"][customer]
        yield Task(
            prompt=wish,
            metadata={
                "instruction": f"You are {row['name']}. Your e-mail address is {row['email']}. {wish}",
                "email": row["email"],
                "kind": kind,
                "actions": actions,
                "outputs": outputs,
                "untrue": [status for status in STATUSES if kind == "too late" and status not in outputs],
            },
        )


def _cancel(shop: Shop, customer: str, dice: Random) -> Wish:
    order, row = _order(shop, customer, "pending")
    reason = dice.choice(("no longer needed", "ordered by mistake"))
    wish = f"You want to cancel order {order}, which was {reason}. You want to know how much you get back."
    return wish, [_do("cancel_order", order=order, reason=reason)], [_money(*(i["price"] for i in row["items"]))]


def _return(shop: Shop, customer: str, dice: Random) -> Wish:
    order, row = _order(shop, customer, "delivered")
    item, to = dice.choice(row["items"]), dice.choice(("original payment", "gift card"))
    wish = (
        f"You want to return the {_name(shop, item['product'])} of order {order}, and the money to go to your {to}. "
        "You want to know how much that is."
    )
    return wish, [_do("return_items", order=order, products=[item["product"]], refund_to=to)], [_money(item["price"])]


def _exchange(shop: Shop, customer: str, dice: Random) -> Wish:
    order, row = _order(shop, customer, "delivered")
    for item in dice.sample(row["items"], len(row["items"])):
        name = shop.look_up("products", item["product"])["name"]
        others = [key for key, own in shop.options(name).items() if own["stock"] and key != item["product"]]
        if others:
            new = dice.choice(others)
            wish = (
                f"You want to exchange the {_name(shop, item['product'])} of order {order} for the "
                f"{_name(shop, new)}. You want to know the number of the new product."
            )
            return wish, [_do("exchange_item", order=order, product=item["product"], new_product=new)], [new]
    return _track(shop, customer, dice)


def _move(shop: Shop, customer: str, dice: Random) -> Wish:
    order, _ = _order(shop, customer, "pending")
    address = f"{dice.randrange(100, 200)} {dice.choice(STREETS)}, {dice.choice(CITIES)}"
    wish = f"You want order {order} to be sent to {address}. You want to hear the new address from the agent."
    return wish, [_do("change_address", order=order, address=address)], [address.replace(",", "")]


def _track(shop: Shop, customer: str, dice: Random) -> Wish:
    order, row = _order(shop, customer, "shipped")
    return f"You want to know the tracking number of order {order}.", [], [row["tracking"]]


def _too_late(shop: Shop, customer: str, dice: Random) -> Wish:
    order, row = _order(shop, customer, dice.choice(("shipped", "delivered")))
    return f"You want to cancel order {order}. If that is impossible, you want to know its status.", [], [row["status"]]


KINDS: Mapping[str, Callable[[Shop, str, Random], Wish]] = {
    "cancel": _cancel,
    "return": _return,
    "exchange": _exchange,
    "address": _move,
    "tracking": _track,
    "too late": _too_late,
}


def _order(shop: Shop, customer: str, status: str) -> tuple[str, dict[str, Any]]:
    orders = shop.state["orders"].items()
    return next((key, row) for key, row in orders if (row["customer"], row["status"]) == (customer, status))


def _name(shop: Shop, product: str) -> str:
    row = shop.look_up("products", product)
    return f"{row['name']} ({row['option']})"


def _money(*prices: float) -> str:
    return f"{sum(prices):.2f}"


def _do(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}

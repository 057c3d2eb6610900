"""How templates spell calls: one file a spelling, and one row of a table.

A format learns itself from calls of known words (`spelled`), and reads others. `learn/calls.py` takes the first that
reads back what the template writes. Arguments behind a name have a table of their own, in `named_calls`.
"""

from collections.abc import Callable, Iterator

from agentrl.render.formats import json_calls, named_calls
from agentrl.render.formats.spelled import Spelled
from agentrl.render.read.calls import Block

FORMATS: tuple[Callable[[Spelled], Iterator[Block]], ...] = (
    json_calls.learn,
    named_calls.learn,
)

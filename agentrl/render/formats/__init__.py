"""The templates' spellings of calls: a file for each spelling, and a row of a table.

A format is learned from known calls (`spelled`), and then reads other calls. `learn/calls.py` takes the first format
that reads back the template's text. Arguments after a name have their own table, in `named_calls`.
"""

from collections.abc import Callable, Iterator

from agentrl.render.formats import json_calls, named_calls
from agentrl.render.formats.spelled import Spelled
from agentrl.render.read.calls import Block

FORMATS: tuple[Callable[[Spelled], Iterator[Block]], ...] = (
    json_calls.learn,
    named_calls.learn,
)

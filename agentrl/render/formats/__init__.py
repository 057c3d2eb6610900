"""The formats in which templates write tool calls: a file for each format.

A format is learned from known calls in the template's text (`spelled`), and then reads other calls. `learn/calls.py`
takes the first format that reads the known calls back. For calls whose arguments follow the name, `named_calls` has a
table of formats of arguments.
"""

from collections.abc import Callable, Iterator

from agentrl.render.formats import json_calls, named_calls
from agentrl.render.formats.spelled import Spelled
from agentrl.render.read.calls import Block

FORMATS: tuple[Callable[[Spelled], Iterator[Block]], ...] = (
    json_calls.learn,
    named_calls.learn,
)

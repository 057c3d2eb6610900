"""The time that templates see: it stands still during a piece of work with several renders.

Otherwise two compared renders of a template that writes seconds could differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

PROBED, ANOTHER_DAY = datetime(2024, 5, 16, 10, 20, 30, 405060), datetime(1999, 12, 31, 23, 58, 59, 1)
"""The time during probes, and a second time with a difference in every part. The second time shows the text's
dependence on time."""

_moment: ContextVar[datetime | None] = ContextVar("moment", default=None)


@contextmanager
def at_moment(moment: datetime) -> Iterator[None]:
    """A context manager: inside, templates see the time `moment`."""
    token = _moment.set(moment)
    try:
        yield
    finally:
        _moment.reset(token)


def at_one_moment(work: Callable[P, R]) -> Callable[P, R]:
    """A decorator for functions during which the time stands still for templates."""

    @functools.wraps(work)
    def still(*args: P.args, **kwargs: P.kwargs) -> R:
        if _moment.get() is not None:
            return work(*args, **kwargs)
        with at_moment(datetime.now()):
            return work(*args, **kwargs)

    return still


def strftime_now(form: str) -> str:
    """The time in the format of `datetime.strftime`, for templates."""
    return (_moment.get() or datetime.now()).strftime(form)


def set_clock(source: str) -> None:
    """Make transformers' compiled template use this module's clock, which shows the real time unless a moment is set.

    transformers passes data to templates, but no functions, and caches compiled templates by their text.
    """
    try:
        from transformers.utils.chat_template_utils import _compile_jinja_template
    except ImportError:
        return
    _compile_jinja_template(source).globals["strftime_now"] = strftime_now

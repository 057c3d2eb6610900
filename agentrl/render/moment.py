"""The time for templates: one moment for all renders in a piece of work.

Otherwise a template with seconds would differ between two compared renders.
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
"""The time of the probes, and a second time without a common part, to see which text depends on the time."""

_moment: ContextVar[datetime | None] = ContextVar("moment", default=None)


@contextmanager
def at_moment(moment: datetime) -> Iterator[None]:
    """All templates within get this time."""
    token = _moment.set(moment)
    try:
        yield
    finally:
        _moment.reset(token)


def at_one_moment(work: Callable[P, R]) -> Callable[P, R]:
    """A function during which the time stands still for templates."""

    @functools.wraps(work)
    def still(*args: P.args, **kwargs: P.kwargs) -> R:
        if _moment.get() is not None:
            return work(*args, **kwargs)
        with at_moment(datetime.now()):
            return work(*args, **kwargs)

    return still


def strftime_now(form: str) -> str:
    """The time in this form, for templates."""
    return (_moment.get() or datetime.now()).strftime(form)


def set_clock(source: str) -> None:
    """Give the library's compiled template this module's clock. Without a moment the clock shows the time, like the
    library's.

    The library passes plain data to templates, and no functions. The library keeps compiled templates by their text.
    """
    try:
        from transformers.utils.chat_template_utils import _compile_jinja_template
    except ImportError:
        return
    _compile_jinja_template(source).globals["strftime_now"] = strftime_now

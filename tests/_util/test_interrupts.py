"""SIGTERM, as schedulers and `kill` send it, ends a run as Ctrl-C does."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from agentrl._util.signals import Terminated, run


def test_sigterm_cancels_and_cleans_up():
    cleaned = []

    async def main():
        try:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(60)
        finally:
            signal.raise_signal(signal.SIGTERM)  # a second one, as schedulers send it
            await asyncio.sleep(0)
            cleaned.append(True)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated):
        run(main())
    assert cleaned
    assert signal.getsignal(signal.SIGTERM) == before


def test_sigterm_works_where_sigint_is_ignored():
    """As in a script's background, where a shell has its children ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def main():
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(60)

    try:
        with pytest.raises(Terminated):
            run(main())
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_stays_ctrl_c():
    async def main():
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(60)

    with pytest.raises(KeyboardInterrupt) as caught:
        run(main())
    assert not isinstance(caught.value, Terminated)


def test_a_cancellation_of_its_own_is_no_signal():
    async def main():
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run(main())


def test_in_another_thread_signals_are_left_alone():
    found = []

    async def main():
        found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=lambda: run(main()))
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]


def interrupted_twice(cleaned):
    async def main():
        try:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(60)
        finally:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(0)
            cleaned.append(True)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(main())
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_second_ctrl_c_does_not_interrupt_the_cleanup():
    interrupted_twice(cleaned := [])
    assert cleaned


def test_a_late_ctrl_c_gives_the_cleanup_up(monkeypatch):
    monkeypatch.setattr("agentrl._util.signals._PATIENCE_S", -1.0)
    interrupted_twice(cleaned := [])
    assert not cleaned

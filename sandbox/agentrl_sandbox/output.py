"""Store a command's output within a limit: the first and the last bytes of each stream, with a mark between them."""

from __future__ import annotations

from typing import Literal, TypeAlias

from agentrl.sandbox import TIMED_OUT, ExecResult, OnOutput

Stream: TypeAlias = Literal["stdout", "stderr"]


class HeadTailBuffer:
    """Stores at most `limit` bytes of a stream: half from its beginning, half from its end."""

    def __init__(self, limit: int) -> None:
        self._limit = max(limit, 0)
        self._tail_limit = self._limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        if room := self._limit - self._tail_limit - len(self._head):
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_limit + (64 << 10):  # not at each piece: this moves memory
            self._trim()

    @property
    def truncated(self) -> bool:
        return self._dropped > 0 or len(self._tail) > self._tail_limit

    def text(self) -> str:
        """The stream as text, with U+FFFD for invalid UTF-8. A character that the cut divides is left out."""
        self._trim()
        if not self._dropped:
            return (self._head + self._tail).decode(errors="replace")
        head, tail = _without_part_at_end(self._head), _without_part_at_start(self._tail)
        dropped = self._dropped + len(self._head) - len(head) + len(self._tail) - len(tail)
        mark = f"\n[... {dropped:,} bytes left out ...]\n" if self._limit else ""
        return head.decode(errors="replace") + mark + tail.decode(errors="replace")

    def _trim(self) -> None:
        surplus = max(len(self._tail) - self._tail_limit, 0)
        del self._tail[:surplus]
        self._dropped += surplus


class Output:
    """The stdout and stderr of a command. `on_output` is called with each piece. If it raises, the exception is stored
    in `error`."""

    def __init__(self, max_output: int, on_output: OnOutput | None = None) -> None:
        self._buffers: dict[Stream, HeadTailBuffer] = {
            "stdout": HeadTailBuffer(max_output),
            "stderr": HeadTailBuffer(max_output),
        }
        self._on_output = on_output
        self.error: Exception | None = None

    def add(self, stream: Stream, data: bytes) -> None:
        self._buffers[stream].add(data)
        if self._on_output is None or self.error is not None:
            return
        try:
            self._on_output(stream, data)
        except Exception as exc:  # noqa: BLE001 - a boundary: the caller's own code, called from within the event loop
            self.error = exc

    def result(self, exit_code: int) -> ExecResult:
        """The result of an ended command. Raises the exception of `on_output`."""
        return self._result(exit_code, timed_out=False)

    def timed_out(self) -> ExecResult:
        return self._result(TIMED_OUT, timed_out=True)

    def _result(self, exit_code: int, *, timed_out: bool) -> ExecResult:
        if self.error is not None:
            raise self.error
        truncated = any(buffer.truncated for buffer in self._buffers.values())
        stdout, stderr = (buffer.text() for buffer in self._buffers.values())
        return ExecResult(exit_code, stdout, stderr, timed_out=timed_out, truncated=truncated)


def _without_part_at_end(data: bytearray) -> bytearray:
    """The data without the beginning of an incomplete UTF-8 character at the end."""
    for length in range(1, min(4, len(data) + 1)):
        byte = data[-length]
        if 0xC0 <= byte < 0xF8:
            needs = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-length] if needs > length else data
        if byte < 0x80 or byte >= 0xF8:
            return data
    return data


def _without_part_at_start(data: bytearray) -> bytearray:
    """The data without the end of an incomplete UTF-8 character at the start."""
    start = 0
    while start < min(3, len(data)) and 0x80 <= data[start] < 0xC0:
        start += 1
    return data[start:]

"""Error responses in the format of OpenAI's APIs."""

from __future__ import annotations

from agentrl.chat.request import RefusalKind
from agentrl.types import JSON

_FULL = "context_length_exceeded"
_TYPES = {401: "authentication_error", 403: "permission_error"}


def error_body(status: int, message: str, kind: RefusalKind | None) -> JSON:
    """The body of an error response. For a full context, its code and words make clients compact their history."""
    if kind == "context_full":
        message = full(message)
    error_type = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": error_type, "param": None, "code": _code(status, kind)}}


def _code(status: int, kind: RefusalKind | None) -> str | None:
    if kind == "context_full":
        return _FULL
    return "invalid_api_key" if status == 401 else None


def stream_code(kind: RefusalKind) -> str:
    """The error code for a failure within a stream. Codex stops at the codes for `context_full` and for a wrong
    request, and retries after any other code."""
    if kind == "context_full":
        return _FULL
    return "invalid_prompt" if kind in ("invalid", "closed") else "server_error"


def full(message: str) -> str:
    """The message with the sentence by which clients recognize a full context."""
    return f"This model's maximum context length is exceeded: {message}"

"""A server of chat completions whose replies a function returns, to test and show clients of a model's API.

    def reply(messages, tools):  # or async def
        return "Paris"

    with chat_server(reply) as server:
        model = ChatModel(base_url=server.url, model="scripted")

As a command: python -m agentrl.testing.chat_server my_model.py:reply --port 8000
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from typing import TypeAlias

from agentrl._util.loading import load_object
from agentrl.errors import ConfigError
from agentrl.types import JSON, MaybeAwait, Message, ToolSpec


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response with any status, headers and body."""

    body: JSON
    """The body: JSON, or text that is sent unchanged."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Replying: TypeAlias = Callable[[Sequence[Message], Sequence[ToolSpec]], MaybeAwait[str | Message | Answer]]
"""A function of the messages and the tools. The function returns text, an assistant message such as `call(...)`, a
whole response body (a mapping without "role"), or an Answer."""


@dataclass(slots=True)
class ChatServer:
    """A running server, as a test uses it."""

    url: str
    """The base URL for clients, with /v1 at the end."""
    requests: list[Mapping[str, JSON]] = field(default_factory=list)
    """The bodies of all requests so far."""
    headers: list[Mapping[str, str]] = field(default_factory=list)


@contextmanager
def chat_server(reply: Replying, *, port: int = 0, key: str | None = None) -> Iterator[ChatServer]:
    """Serve POST /v1/chat/completions on 127.0.0.1 from a thread. Requests are handled concurrently.

    Port 0 takes a free port. With a `key`, requests with a different key get HTTP 401. The numbers of tokens in
    responses are numbers of words. A request with `"stream": true` gets the same reply as server-sent events. An
    exception of `reply` becomes HTTP 500. Raises OSError for a port that is in use.
    """
    server = _ChatHttpServer(("127.0.0.1", port), _Handler)
    server.reply, server.key = reply, key
    server.seen = ChatServer(f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server.seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def completion(reply: str | Message | Mapping[str, JSON], body: Mapping[str, JSON]) -> JSON:
    """The response body with the reply to the request `body`: a whole chat completion."""
    if not isinstance(reply, str) and "role" not in reply:
        return reply
    message = {"role": "assistant", "content": reply} if isinstance(reply, str) else _sent(reply)
    calls = bool(message.get("tool_calls"))
    prompt, answer = _words(body["messages"]), _words(message)
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": body.get("model", ""),
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer},
    }


def _response(whole: JSON, body: Mapping[str, JSON]) -> Answer:
    """The HTTP response with a chat completion: JSON, or events if the request `body` asks for a stream. A body without
    choices, such as an error, is never streamed."""
    if body.get("stream") is not True or "choices" not in whole:
        return Answer(whole)
    head = {**{name: whole[name] for name in whole.keys() - {"choices", "usage"}}, "object": "chat.completion.chunk"}
    events = [{**head, "choices": [choice]} for sent in whole["choices"] for choice in _chunks(sent)]
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append({**head, "choices": [], "usage": whole.get("usage")})
    lines = [*map(json.dumps, events), "[DONE]"]
    return Answer("".join(f"data: {line}\n\n" for line in lines), headers={"Content-Type": "text/event-stream"})


def _chunks(choice: JSON) -> list[JSON]:
    """A choice of a completion as the choices of three chunks: the role, the message, the finish reason."""
    message = {name: value for name, value in choice["message"].items() if name != "role"}
    if calls := message.get("tool_calls"):
        message["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    deltas: tuple[JSON, ...] = ({"role": "assistant", "content": ""}, message, {})
    ends = (None, None, choice.get("finish_reason"))
    return [
        {"index": choice.get("index", 0), "delta": delta, "finish_reason": end}
        for delta, end in zip(deltas, ends, strict=True)
    ]


def _sent(message: Message) -> Message:
    """A message with the arguments of tool calls as JSON text, as real servers send them. All other fields stay
    unchanged."""
    calls = [dict(call) for call in message.get("tool_calls") or ()]
    for call in calls:
        function = call.get("function")
        if isinstance(function, Mapping) and isinstance(function.get("arguments"), Mapping):
            call["function"] = {**function, "arguments": json.dumps(function["arguments"])}
    return {**message, "tool_calls": calls} if calls else message


def _words(message: JSON) -> int:
    return len(json.dumps(message).split())


class _ChatHttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    reply: Replying
    key: str | None
    seen: ChatServer

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore the error of a client that has disconnected."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _ChatHttpServer

    def do_GET(self) -> None:
        if self.path.partition("?")[0] == "/v1/models":
            model = {"id": "scripted", "object": "model", "created": 0, "owned_by": "agentrl"}
            self._send(Answer({"object": "list", "data": [model]}))
        else:
            self._send(_no_such(self.path))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        self.server.seen.requests.append(body)
        self.server.seen.headers.append(dict(self.headers))
        self._send(self._answer(body))

    def _answer(self, body: Mapping[str, JSON]) -> Answer:
        if self.server.key is not None and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            return Answer({"error": {"message": "incorrect API key", "code": "invalid_api_key"}}, 401)
        if self.path.partition("?")[0] != "/v1/chat/completions":
            return _no_such(self.path)
        try:
            reply = asyncio.run(_awaited(self.server.reply(body["messages"], body.get("tools") or ())))
        except Exception as exc:  # noqa: BLE001 - the boundary of the user's function: the client reads the error
            return Answer({"error": {"message": f"{type(exc).__name__}: {exc}"}}, 500)
        return reply if isinstance(reply, Answer) else _response(completion(reply, body), body)

    def _send(self, answer: Answer) -> None:
        text = isinstance(answer.body, str)
        data = (answer.body if text else json.dumps(answer.body)).encode()
        self.send_response(answer.status)
        headers = {"Content-Type": "text/plain" if text else "application/json", **answer.headers}
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Print nothing: all requests are in `ChatServer.requests`."""


def _no_such(path: str) -> Answer:
    return Answer({"error": {"message": f"no such path: {path}"}}, 404)


class _Callable(ModuleType):
    """Makes this module callable. The module and the function have the same name, and once imported,
    `agentrl.testing.chat_server` is the module."""

    def __call__(self, reply: Replying, *, port: int = 0, key: str | None = None) -> AbstractContextManager[ChatServer]:
        return chat_server(reply, port=port, key=key)


sys.modules[__name__].__class__ = _Callable


async def _awaited(reply: MaybeAwait[str | Message | Answer]) -> str | Message | Answer:
    return await reply if inspect.isawaitable(reply) else reply


def main() -> None:
    """Serve until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m agentrl.testing.chat_server", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("reply", help="A function of messages and tools: file.py:function or package.module:function.")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one.")
    arguments = parser.parse_args()
    try:
        reply = load_object(arguments.reply)
        with chat_server(reply, port=arguments.port) as server:
            sys.stdout.write(f"{arguments.reply} at {server.url}, Ctrl-C ends it\n")
            sys.stdout.flush()
            threading.Event().wait()
    except (ConfigError, OSError) as exc:
        sys.exit(f"error: {exc}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()

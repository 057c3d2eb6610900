"""Speakers: whoever answers in the model's place. An API model, a scripted function, a simulated user, a judge.

model = ChatModel(base_url="https://api.openai.com/v1", model="gpt-4.1-mini")
said = await model.reply([{"role": "user", "content": "Capital of France?"}])
said["content"]
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, model_validator

from agentrl.completions import Reply, read_reply, wire_message, wire_tool
from agentrl.errors import ConfigError
from agentrl.http import RefusedError, Service
from agentrl.loading import load_object
from agentrl.plain import plain
from agentrl.types import JSON, MaybeAwait, Message, ToolSpec

_PATH = "/chat/completions"


class Speaker(Protocol):
    """Reads messages and tools, and says the next message."""

    async def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Message:
        """The next assistant message: `content`, always text, and `tool_calls` in OpenAI's shape if there are any.

        A call's `arguments` are a dict, or the text as it came where that is no JSON object. Raises InfraError where
        the speaker cannot answer now, ConfigError where it never will.
        """
        ...


@dataclass(slots=True)
class Usage:
    """What has been asked of a model so far, in requests and in its own tokens."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Those of the prompt that the server had read before."""
    untold: int = 0
    """Answers that did not say how many tokens they took."""
    cost: float = 0.0
    """In the server's currency, where its answers tell it."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, told: Mapping[str, float]) -> None:
        """Count one more answer, of which `told` says what it took."""
        with self._lock:
            self.requests += 1
            self.untold += not told
            for name, value in told.items():
                setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True, kw_only=True)
class ChatModel:
    """A model behind an OpenAI-compatible endpoint, asked from any number of event loops.

    The key is read from the environment when a request is sent. It is kept nowhere, and is cut out of the server's
    error messages.
    """

    base_url: str
    """Such as http://127.0.0.1:8000/v1."""
    model: str
    key: str = "OPENAI_API_KEY"
    """Name of the environment variable that holds the key. If it is not set, none is sent."""
    seconds: float = 120.0
    """Deadline of one answer with its retries. Neither waiting for room nor waiting that the server asks for counts."""
    concurrency: int = 32
    retries: int = 6
    options: Mapping[str, JSON] = field(default_factory=dict)
    """Added to each request: temperature, max_completion_tokens, ..."""
    usage: Usage = field(default_factory=Usage, compare=False)
    _service: Service = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        service = Service(
            url=_endpoint(self.base_url),
            seconds=self.seconds,
            retries=self.retries,
            concurrency=self.concurrency,
        )
        object.__setattr__(self, "_service", service)

    @property
    def host(self) -> str:
        """The host of the URL, with the port if it has one."""
        return urlsplit(self.base_url).netloc

    async def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Message:
        return (await self.ask(messages, tools)).message

    async def ask(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), **options: JSON) -> Reply:
        """The reply with what came beside the message. `options` are added to this request."""
        body: dict[str, JSON] = {"model": self.model, "messages": [wire_message(message) for message in messages]}
        if tools:
            body["tools"] = [wire_tool(tool) for tool in tools]
        body = plain({**body, **self.options, **options}, "the request")
        headers, url = self._headers(), self._service.url
        try:
            reply: Reply = await self._service.post(body, headers=headers, read=lambda answer: read_reply(answer, url))
        except RefusedError as exc:
            raise self._refused(exc, bool(headers)) from None
        self.usage.add(reply.usage)
        return reply

    def _refused(self, exc: RefusedError, with_key: bool) -> ConfigError:
        if exc.status not in (401, 403):
            return exc
        key = f"the key in ${self.key}" if with_key else f"a request without a key, as ${self.key} is not set"
        return ConfigError(
            f"{self._service.url} refuses {key} (HTTP {exc.status}: {exc.words[:200]}); "
            "export the right key, or name another variable"
        )

    @asynccontextmanager
    async def kept_open(self) -> AsyncIterator[Self]:
        """Within it, connections of this event loop are kept for the next request."""
        async with self._service.kept_open():
            yield self

    def _headers(self) -> Mapping[str, str]:
        token = os.environ.get(self.key, "").strip()
        return {"Authorization": f"Bearer {token}"} if token else {}


Say: TypeAlias = Callable[[Sequence[Message], Sequence[ToolSpec]], MaybeAwait[str | Message]]
"""A function of messages and tools. `def` or `async def`; a plain `def` must not block."""


@dataclass(frozen=True, slots=True)
class ScriptedSpeaker:
    """A function as a speaker: tests, and simulated users that need no model."""

    say: Say

    async def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Message:
        said = self.say(messages, tools)
        said = await said if inspect.isawaitable(said) else said
        if isinstance(said, str):
            return {"role": "assistant", "content": said}
        if not isinstance(said, Mapping):
            raise ConfigError(f"the speaker {self.say!r} said {said!r:.80}; return text or an assistant message")
        return {"role": "assistant", "content": "", **said}


class SpeakerConfig(BaseModel):
    """Who speaks: `script`, or `base_url` and `model`. For the configuration of an Env, or of anything else."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    script: str | None = None
    """A function of messages and tools: file.py:function or package.module:function."""
    base_url: str | None = None
    model: str | None = None
    key: str = "OPENAI_API_KEY"
    """Name of the environment variable that holds the key."""
    seconds: float = 120.0
    concurrency: int = 32
    retries: int = 6
    options: dict[str, JSON] = {}

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.script is None) == (self.base_url is None) or (self.base_url is None) != (self.model is None):
            raise ValueError("give either script, or base_url and model")
        return self


def speaker(config: SpeakerConfig | Mapping[str, JSON]) -> Speaker:
    """The speaker that a configuration names. Raises ConfigError."""
    if not isinstance(config, SpeakerConfig):
        try:
            config = SpeakerConfig.model_validate(dict(config))
        except ValueError as exc:
            raise ConfigError(f"this names no speaker: {' '.join(str(exc).split())}") from None
    if config.script is not None:
        say = load_object(config.script)
        if not callable(say):
            raise ConfigError(f"{config.script} is {say!r}; it must be a function of messages and tools")
        return ScriptedSpeaker(say)
    settings = config.model_dump(exclude={"script"})
    return ChatModel(**settings)


def _endpoint(base_url: str) -> str:
    """The URL of chat completions. Raises ConfigError."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"the URL {base_url!r:.80} is none; write http://host:port/v1")
    if parts.username or parts.password:
        raise ConfigError(
            f"the URL of {parts.hostname} holds a password; put it into an environment variable, as a key"
        )
    path = parts.path.rstrip("/")
    return urlunsplit(parts._replace(path=path if path.endswith(_PATH) else path + _PATH, fragment=""))

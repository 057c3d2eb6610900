"""Speakers read chat messages and return the next one. A speaker is an API model or a scripted function.

model = ChatModel(base_url="https://api.openai.com/v1", model="gpt-4.1-mini")
message = await model.reply([{"role": "user", "content": "Capital of France?"}])
message["content"]
"""

from __future__ import annotations

import inspect
import math
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, model_validator

from agentrl._util.concurrency import gather
from agentrl._util.http import HttpRefusedError, HttpService
from agentrl._util.loading import load_object
from agentrl.chat.completions import Completion, ServerQuirks, read_reply, wire_message, wire_tool
from agentrl.errors import ConfigError, ContextFullError, RequestError
from agentrl.plain import to_json
from agentrl.types import JSON, MaybeAwait, Message, ToolSpec

_PATH = "/chat/completions"
_TOP = 20
"""Number of most likely tokens (`top_logprobs`) to request: the maximum of OpenAI's API."""
_ORNAMENTS = " \t\n*`.,:;'\"()[]<>"
_TOO_LONG = re.compile(
    r"context[ _](length|size|window)|maximum context|prompt is too long|input token count|too large for model"
    r"|reduce the length|exceed_context|too many tokens|inputs. tokens \+",
    re.IGNORECASE,
)
"""Phrases in a server's error for a conversation that exceeds the model's context."""
_FILTERED = re.compile(
    r"content_filter|content management policy|content_policy|data_inspection|moderation", re.IGNORECASE
)


class Speaker(Protocol):
    """An author of chat messages, such as a model: reads messages and tools, and returns the next message."""

    async def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Message:
        """The next assistant message: `content`, always text, and any `tool_calls` in OpenAI's shape.

        A call's `arguments` are a dict, or the original text if the text is no JSON object. Raises InfraError if the
        speaker cannot answer now, ConfigError if the speaker never will.
        """
        ...


class AsksMessages(Protocol):
    """A model that replies to messages and reports the token usage: a ChatModel, or an `EngineSpeaker`."""

    async def ask(self, messages: Sequence[Message]) -> Completion:
        """The reply, with its finish reason and usage. Raises as `ChatModel.ask` does."""
        ...


@dataclass(frozen=True, slots=True)
class Preference:
    """A model's preference between two answers to a question."""

    log_odds: float | None
    """log(p(first) / p(second)), from -MOST_ODDS to MOST_ODDS. None if the model refuses the question, or would write
    neither answer."""
    usage: Mapping[str, float] = field(default_factory=dict)
    """Requests and tokens, as in `Completion.usage`."""
    refusal: str = ""
    """The server's reason for refusing the question."""


MOST_ODDS = 30.0
"""The largest log-odds: float32 cannot represent the probabilities of larger log-odds."""


class PrefersAnswers(Protocol):
    """A model that compares two answers: a ChatModel, or an `EngineSpeaker`."""

    async def prefer(self, questions: Sequence[Sequence[Message]], first: str, second: str) -> list[Preference]:
        """The log-odds of two short answers to each question. The answers begin differently, such as "A" and "B".

        Raises as `ChatModel.ask` does, but a refused question gets a Preference with `refusal`. Raises ConfigError if
        the server or the engine reports no probabilities. Questions with an equal beginning should follow each other,
        because engines cache prompts.
        """
        ...


@dataclass(slots=True)
class Usage:
    """The total use of a model so far: requests, and tokens by the server's count."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens from the server's cache."""
    responses_without_usage: int = 0
    """Number of responses without a report of their tokens."""
    cost: float = 0.0
    """The cost in the server's currency; 0 if the server reports no cost."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, reported: Mapping[str, float]) -> None:
        """Count a response with its reported usage."""
        with self._lock:
            self.requests += 1
            self.responses_without_usage += not reported
            for name, value in reported.items():
                setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True, kw_only=True)
class ChatModel:
    """A model at an OpenAI-compatible endpoint. Any number of event loops may use the model.

    Each request reads the key from the environment. The key is never stored. Error messages of the server are shown
    without the key.
    """

    base_url: str
    """The base URL of the endpoint, such as http://127.0.0.1:8000/v1."""
    model: str
    key: str = "OPENAI_API_KEY"
    """Name of the environment variable that holds the key. If the variable is not set, no key is sent."""
    seconds: float = 120.0
    """Deadline of a reply in seconds, including retries. Time in the queue, and waits that the server demands, do not
    count."""
    concurrency: int = 32
    retries: int = 6
    options: Mapping[str, JSON] = field(default_factory=dict)
    """Other fields of each request: temperature, max_completion_tokens, ..."""
    usage: Usage = field(default_factory=Usage, compare=False)
    _service: HttpService = field(init=False, repr=False, compare=False)
    _habits: ServerQuirks = field(init=False, repr=False, compare=False, default_factory=ServerQuirks)

    def __post_init__(self) -> None:
        service = HttpService(
            url=_endpoint(self.base_url),
            seconds=self.seconds,
            retries=self.retries,
            concurrency=self.concurrency,
            always_json=True,
        )
        object.__setattr__(self, "_service", service)

    @property
    def host(self) -> str:
        """The host of the URL, with the port if present."""
        return urlsplit(self.base_url).netloc

    async def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Message:
        return (await self.ask(messages, tools)).message

    async def ask(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, most: int | None = None, **options: JSON
    ) -> Completion:
        """The reply, with finish reason and usage. `options` are added to this request.

        `most` bounds the reply in tokens. The request states the bound in the parameter that the server accepts. If the
        server refuses message fields by name, such as the reasoning of earlier turns, later requests leave the fields
        out.

        Raises ContextFullError if the conversation exceeds the model's context, RequestError if the server refuses only
        this conversation, and the errors of `reply`.
        """
        sent = [wire_message(message) for message in messages]
        body: dict[str, JSON] = {"model": self.model, "messages": sent}
        if tools:
            body["tools"] = [wire_tool(tool) for tool in tools]
        headers, url = self._headers(), self._service.name
        while True:
            request = self._habits.apply({**body, **self.options, **options}, most)
            try:
                reply: Completion = await self._service.post(
                    to_json(request, "the request"), headers=headers, read=lambda answer: read_reply(answer, url)
                )
            except HttpRefusedError as exc:
                if self._habits.learn(request, exc):
                    continue
                raise self._refused(exc, bool(headers)) from None
            self.usage.add(reply.usage)
            return reply

    async def prefer(self, questions: Sequence[Sequence[Message]], first: str, second: str) -> list[Preference]:
        """See `PrefersAnswers.prefer`. The log-odds are computed from the log-probs of the reply's first token, which
        most servers report."""
        return await gather(self._prefer(messages, first, second) for messages in questions)

    async def _prefer(self, messages: Sequence[Message], first: str, second: str) -> Preference:
        most = None if {"max_tokens", "max_completion_tokens"} & self.options.keys() else 1
        try:
            reply = await self.ask(messages, most=most, logprobs=True, top_logprobs=_TOP)
        except RequestError as exc:
            return Preference(None, refusal=str(exc))
        if reply.finish == "filtered":
            return Preference(None, reply.usage, f"{self._service.name} filtered its answer")
        if not reply.first_token:
            raise ConfigError(
                f"{self._service.name} answers without log-probs, although the request has logprobs and top_logprobs; "
                "take a server that reports them, such as vLLM or SGLang"
            )
        return Preference(_log_odds(reply.first_token, first, second), reply.usage)

    def _refused(self, exc: HttpRefusedError, with_key: bool) -> Exception:
        """The exception for an HTTP error: RequestError and ContextFullError if only this conversation is refused,
        ConfigError for a wrong key."""
        url, words = self._service.name, exc.words[:300]
        if exc.status in (401, 403):
            key = f"the key in ${self.key}" if with_key else f"a request without a key, as ${self.key} is not set"
            return ConfigError(
                f"{url} refuses {key} (HTTP {exc.status}: {words}); export the right key, or name another variable"
            )
        if exc.status in (400, 413, 422):
            if _TOO_LONG.search(exc.words):
                return ContextFullError(f"{url}: the conversation is too long (HTTP {exc.status}: {words})")
            if _FILTERED.search(exc.words) or self.usage.requests:
                return RequestError(f"{url} refuses this conversation (HTTP {exc.status}: {words})")
        return exc

    @asynccontextmanager
    async def kept_open(self) -> AsyncIterator[Self]:
        """A context manager: inside, this event loop keeps its connections open for the next request."""
        async with self._service.kept_open():
            yield self

    def _headers(self) -> Mapping[str, str]:
        token = os.environ.get(self.key, "").strip()
        return {"Authorization": f"Bearer {token}"} if token else {}


Say: TypeAlias = Callable[[Sequence[Message], Sequence[ToolSpec]], MaybeAwait[str | Message]]
"""A function of messages and tools that returns the next message. Either a `def`, which must not block, or an `async
def`."""


@dataclass(frozen=True, slots=True)
class ScriptedSpeaker:
    """A function as a speaker, for tests and for simulated users without a model."""

    say: Say

    async def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Message:
        answer = self.say(messages, tools)
        answer = await answer if inspect.isawaitable(answer) else answer
        if isinstance(answer, str):
            return {"role": "assistant", "content": answer}
        if not isinstance(answer, Mapping):
            raise ConfigError(f"the speaker {self.say!r} returned {answer!r:.80}; return text or an assistant message")
        return {"role": "assistant", "content": "", **answer}


class SpeakerConfig(BaseModel):
    """The configuration of a speaker: either `script`, or `base_url` and `model`. Usable as a field of an Env's
    configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    script: str | None = None
    """Path of a function of messages and tools: file.py:function or package.module:function."""
    base_url: str | None = None
    """An OpenAI-compatible endpoint, such as http://127.0.0.1:8000/v1."""
    model: str | None = None
    """The model's name at `base_url`."""
    key: str = "OPENAI_API_KEY"
    """Name of the environment variable that holds the key."""
    seconds: float = 120.0
    """Deadline of a reply in seconds, including retries."""
    concurrency: int = 32
    """Maximum number of requests at a time."""
    retries: int = 6
    """Number of times that a failed request is sent again."""
    options: dict[str, JSON] = {}
    """Other fields of each request: temperature, max_completion_tokens, ..."""

    @model_validator(mode="after")
    def _check_choice(self) -> Self:
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


def _log_odds(tokens: Mapping[str, float], first: str, second: str) -> float | None:
    """The log-odds of two answers. `tokens` maps the likeliest first tokens to log-probs; spellings of an answer are
    added up. An answer that is missing there counts with the smallest of these log-probs."""
    totals = [
        sum(math.exp(value) for token, value in tokens.items() if token.strip(_ORNAMENTS) == answer)
        for answer in (first, second)
    ]
    if not any(totals):
        return None
    first_log, second_log = (math.log(total) if total > 0 else min(tokens.values()) for total in totals)
    return max(-MOST_ODDS, min(MOST_ODDS, first_log - second_log))


def _endpoint(base_url: str) -> str:
    """The URL of chat completions below a base URL. Raises ConfigError for an invalid URL."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"the URL {base_url!r:.80} is not valid; write http://host:port/v1")
    if parts.username or parts.password:
        raise ConfigError(
            f"the URL of {parts.hostname} holds a password; put it into an environment variable, as a key"
        )
    path = parts.path.rstrip("/")
    return urlunsplit(parts._replace(path=path if path.endswith(_PATH) else path + _PATH, fragment=""))

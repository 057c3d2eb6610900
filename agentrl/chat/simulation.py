"""People inside an Env, played by a Speaker: a user who talks with the agent, a judge who answers a question.

    user = SimulatedUser(speaker(config.user.speaker), "You are Ada. You want to return your lamp.", config.user)
    heard = await user.hear("Hi! How can I help you today?")
    heard.text, heard.ended

If a speaker breaks or is too slow, InfraError is raised. The episode is masked, because the model is not at fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from agentrl.chat.client import ChatModel, Speaker, SpeakerConfig
from agentrl.chat.thoughts import WRITTEN, split_thoughts
from agentrl.errors import InfraError
from agentrl.types import JSON, Message

STOP = "###STOP###"
"""The mark by which a simulated user ends the talk, as in tau-bench."""

_RULES = """\
You play a customer who talks with an agent. Your instructions:

{instruction}

- Say one message at a time, as a person would write in a chat. Write nothing but what the customer says.
- Tell only what is needed at this step. Do not recite your instructions.
- What your instructions do not say, you do not know. Never make it up.
- When you have what you came for, or the agent cannot help you further, write {stop} and nothing else.
"""
_AGAIN = 3
"""Maximum number of tries with a speaker whose replies are empty or hold no verdict."""

Ending: TypeAlias = Literal["", "stop", "turns"]


class UserConfig(BaseModel):
    """A simulated user, for the configuration of an Env."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    speaker: SpeakerConfig
    """The user's speaker: `{script: users.py:function}`, or `{base_url: ..., model: ...}`."""
    turns: int = Field(default=30, gt=0)
    """Maximum number of messages from the user. The talk ends with the last message."""
    stop: tuple[str, ...] = Field(default=(STOP,), min_length=1)
    """Marks that end the talk. The user's instructions name the first mark."""


@dataclass(frozen=True, slots=True)
class UserReply:
    """A simulated user's answer to the agent."""

    text: str
    """The message without the stop mark. Empty if the message is only a stop mark."""
    ending: Ending = ""
    """The reason for the end of the talk: the user's stop mark, or the bound on turns. Empty while the talk
    continues."""

    @property
    def ended(self) -> bool:
        return self.ending != ""


@dataclass(slots=True)
class SimulatedUser:
    """A simulated user of one episode. The same speaker may serve any number of users at a time."""

    speaker: Speaker
    instruction: str
    """The user's identity, knowledge and wishes."""
    config: UserConfig
    rules: str = _RULES
    """Template of the speaker's system prompt: {instruction} and {stop} are replaced."""
    facts: Mapping[str, JSON] = field(default_factory=dict)
    """Data for a script, which gets the data as `messages[0]["facts"]`. An endpoint never gets the facts."""
    messages: list[Message] = field(default_factory=list)
    """The talk as the speaker sees it: the agent's messages have the role user, the user's the role assistant."""
    usage: dict[str, float] = field(default_factory=dict)
    """Requests and tokens of this user alone, for `trajectory.info`."""

    @property
    def turns(self) -> int:
        """How many messages the user has sent."""
        return sum(message["role"] == "assistant" for message in self.messages)

    async def hear(self, message: str) -> UserReply:
        """Send the agent's message to the user, and return the answer. After a failure, the talk is unchanged.

        Raises InfraError if the speaker breaks, exceeds its `seconds`, or returns only empty answers.
        """
        messages = [*self.messages, {"role": "user", "content": message}]
        text = await self._answer(messages)
        self.messages = [*messages, {"role": "assistant", "content": text}]
        end = min((position for mark in self.config.stop if (position := text.find(mark)) >= 0), default=None)
        ending: Ending = "stop" if end is not None else "turns" if self.turns >= self.config.turns else ""
        return UserReply(text[:end].strip(), ending)

    async def _answer(self, messages: Sequence[Message]) -> str:
        system = self.rules.replace("{instruction}", self.instruction).replace("{stop}", self.config.stop[0])
        facts = {} if isinstance(self.speaker, ChatModel) else {"facts": dict(self.facts)}
        for _ in range(_AGAIN):
            prompt = [{"role": "system", "content": system, **facts}, *messages]
            text = await _ask(self.speaker, prompt, self.config.speaker.seconds, self.usage)
            if text.strip():
                return text.strip()
        raise InfraError(f"the simulated user sent no message, {_AGAIN} times")

    def snapshot(self) -> JSON:
        """The talk so far, for `Env.snapshot`."""
        return {"messages": [dict(message) for message in self.messages], "usage": dict(self.usage)}

    def restore(self, state: Mapping[str, JSON]) -> None:
        """Continue the talk from the result of `snapshot`."""
        self.messages, self.usage = list(state["messages"]), dict(state["usage"])

    def info(self) -> dict[str, JSON]:
        """The user's statistics for `StepResult(info=...)`, which reach `trajectory.info["user"]`."""
        return {"user": {"turns": self.turns, **self.usage}}


@dataclass(slots=True)
class Judge:
    """A model that judges an episode: each question gets one of a few words as its answer. Graders of final answers are
    in `agentrl.rewards`."""

    speaker: Speaker
    seconds: float = 120.0
    """Deadline in seconds of a script's answer. An endpoint has its own deadline."""
    usage: dict[str, float] = field(default_factory=dict)

    async def choose(self, question: str, words: Sequence[str] = ("yes", "no")) -> str:
        """Ask a question, and return the word of `words` at the end of the reply. Raises InfraError if the speaker
        breaks, or if its replies end with another word."""
        choices = " or ".join(words)
        prompt = f"{question}\n\nThink briefly. Then write one last line that holds nothing but {choices}."
        for _ in range(_AGAIN):
            reply = await _ask(self.speaker, [{"role": "user", "content": prompt}], self.seconds, self.usage)
            last = reply.strip().rpartition("\n")[2].strip(" \t*_`.\"'").lower()
            if choice := next((word for word in words if last == word.lower()), None):
                return choice
        raise InfraError(f"the judge's last line is {last[-100:]!r}, which is none of the words {choices}")


async def _ask(speaker: Speaker, messages: Sequence[Message], seconds: float, usage: dict[str, float]) -> str:
    """The text of a reply without thoughts; "" for a cut or refused reply. The usage is added to `usage`."""
    took: Mapping[str, float] = {}
    if isinstance(speaker, ChatModel):  # its deadline does not count the wait for a free slot, which may be long
        reply = await speaker.ask(messages)
        text, took = reply.answer, reply.usage
    else:
        try:
            async with asyncio.timeout(seconds):
                message = await speaker.reply(messages)
            text = split_thoughts(str(message.get("content") or ""), WRITTEN)[1]
        except TimeoutError as exc:
            raise InfraError(f"a speaker of the environment did not answer within {seconds:g} s") from exc
    for name, value in {"requests": 1, **took}.items():
        usage[name] = usage.get(name, 0) + value
    return text

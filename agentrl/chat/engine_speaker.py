"""A speaker that asks an engine's model. The reverse of `ChatEngine`, which makes an engine of a speaker."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from agentrl.chat.client import MOST_ODDS, Preference
from agentrl.chat.completions import Completion
from agentrl.engine.base import Engine, forget
from agentrl.errors import ConfigError, ContextFullError, TemplateError
from agentrl.types import Message, SamplingParams, ToolSpec

if TYPE_CHECKING:
    from agentrl.render.base import Renderer


class EngineSpeaker:
    """A speaker whose messages are sampled greedily by an engine. Special tokens in messages are encoded as text if the
    tokenizer can do so."""

    def __init__(self, engine: Engine, renderer: Renderer, *, most: int = 1024) -> None:
        """`most` is the maximum number of tokens of a reply."""
        self._engine, self._most = engine, most
        try:
            self._renderer = renderer.as_text()
        except TemplateError:
            self._renderer = renderer

    async def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Message:
        return (await self.ask(messages, tools)).message

    async def ask(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Completion:
        """The reply. Raises ContextFullError if the messages leave no room, and the errors of `Engine.generate`."""
        renderer = self._renderer.bind(tools)
        prompt = renderer.prompt(list(messages))
        room = await self._engine.context_length() - len(prompt.tokens)
        if room < 1:
            raise ContextFullError(f"the conversation has {len(prompt.tokens)} tokens, too many for this model")
        reply = await self._engine.generate(
            list(prompt.tokens),
            {
                "temperature": 0.0,
                "max_new_tokens": min(room, self._most),
                "stop_token_ids": sorted(renderer.stop_token_ids),
            },
        )
        action = renderer.parse(reply.tokens, reply.finish_reason, reply.matched, thinking=prompt.thinking)
        message: Message = {"role": "assistant", "content": action.content}
        usage = {"prompt_tokens": float(len(prompt.tokens)), "completion_tokens": float(len(reply.tokens))}
        return Completion(message, message, "length" if reply.finish_reason == "length" else "stop", usage)

    async def prefer(self, questions: Sequence[Sequence[Message]], first: str, second: str) -> list[Preference]:
        """See `PrefersAnswers.prefer`. For each question a single token is sampled, under a grammar that allows only
        the two answers.

        The questions are asked in order, as the turns of a session, so that the engine reads a common beginning once.
        Raises ConfigError for an engine without grammars.
        """
        if not getattr(self._engine, "takes_grammars", False):
            raise ConfigError(
                f"{type(self._engine).__name__} takes no grammar, and without it this engine cannot compare two "
                "answers; give the judge base_url and model"
            )
        renderer = self._renderer.bind(())
        before, tokens = _apart(
            [renderer.encode({"role": "assistant", "content": answer}) for answer in (first, second)]
        )
        prompts = [[*renderer.prompt(list(messages)).tokens, *before] for messages in questions]
        either = {"type": "or", "elements": [{"type": "token", "token": token} for token in tokens]}
        params: SamplingParams = {
            "temperature": 0.0,
            "max_new_tokens": 1,
            "stop_token_ids": sorted(renderer.stop_token_ids),
            "structural_tag": json.dumps({"type": "structural_tag", "format": either}),
        }
        session_id = f"prefer-{hash(tuple(map(tuple, prompts))):x}"
        try:
            return [await self._prefer(prompt, tokens, params, session_id) for prompt in prompts]
        finally:
            forget(self._engine, session_id)

    async def _prefer(
        self, prompt: Sequence[int], tokens: Sequence[int], params: SamplingParams, session_id: str
    ) -> Preference:
        """The log-odds of the first of two tokens against the second after a prompt."""
        if await self._engine.context_length() <= len(prompt):
            return Preference(None, refusal=f"the question has {len(prompt)} tokens, too many for this model")
        reply = await self._engine.generate(prompt, params, session_id=session_id)
        usage = {"prompt_tokens": float(len(prompt)), "completion_tokens": float(len(reply.tokens))}
        if not reply.tokens or reply.tokens[0] not in tokens:
            return Preference(None, usage, f"the engine answered with {reply.finish_reason}, not with one of the two")
        log_odds = _against_the_rest(reply.log_probs[0])
        return Preference(log_odds if reply.tokens[0] == tokens[0] else -log_odds, usage)


def _apart(answers: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """The tokens with which both answers begin, such as an empty thought, and the two first tokens that differ."""
    count = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*answers, strict=False)))
    if any(len(answer) == count for answer in answers):
        raise ValueError("one of the two answers is the beginning of the other")
    return list(answers[0][:count]), [answer[count] for answer in answers]


def _against_the_rest(log_prob: float) -> float:
    """The log-odds of a token against all other tokens, from the token's log-prob."""
    rest = -math.expm1(min(log_prob, 0.0))
    return min(MOST_ODDS, log_prob - math.log(rest)) if rest > 0 else MOST_ODDS

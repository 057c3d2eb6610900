"""The model of an engine as a speaker: messages in, a message out. The reverse of `ChatEngine`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentrl.chat.completions import Completion
from agentrl.engine.base import Engine
from agentrl.errors import ContextFullError, TemplateError
from agentrl.types import Message, ToolSpec

if TYPE_CHECKING:
    from agentrl.render.base import Renderer


class EngineSpeaker:
    """Asks the model of an engine greedily. Special tokens in messages are encoded as text where the tokenizer can."""

    def __init__(self, engine: Engine, renderer: Renderer, *, most: int = 1024) -> None:
        """`most` bounds an answer in tokens."""
        self._engine, self._most = engine, most
        try:
            self._renderer = renderer.as_text()
        except TemplateError:
            self._renderer = renderer

    async def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Message:
        return (await self.ask(messages, tools)).message

    async def ask(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Completion:
        """The reply. Raises ContextFullError if the messages leave no room for one, and as `Engine.generate` does."""
        renderer = self._renderer.bind(tools)
        prompt = renderer.prompt(list(messages))
        room = await self._engine.context_length() - len(prompt.tokens)
        if room < 1:
            raise ContextFullError(f"the conversation has {len(prompt.tokens)} tokens, too many for this model")
        said = await self._engine.generate(
            list(prompt.tokens),
            {
                "temperature": 0.0,
                "max_new_tokens": min(room, self._most),
                "stop_token_ids": sorted(renderer.stop_token_ids),
            },
        )
        action = renderer.parse(said.tokens, said.finish_reason, said.matched, thinking=prompt.thinking)
        message: Message = {"role": "assistant", "content": action.content}
        usage = {"prompt_tokens": float(len(prompt.tokens)), "completion_tokens": float(len(said.tokens))}
        return Completion(message, message, "length" if said.finish_reason == "length" else "stop", usage)

"""Drop thoughts of earlier turns from the next prompt, as the template does. Used only with `thinking="strip"`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.episode.bad_calls import messages_of
from agentrl.errors import TemplateError
from agentrl.render.base import Renderer
from agentrl.trajectory.trajectory import Trajectory
from agentrl.types import Message, Observed, Raw, Rendered


@dataclass(slots=True)
class ReasoningStripper:
    """Follows how many thoughts of an episode the template has dropped. The oldest thoughts are dropped first.

    All thoughts are kept if the messages lack a part of the tokens' text (after Raw text or an unreadable call), if the
    template has no thoughts, or if the template refuses a message: gpt-oss' template takes a call with text or with a
    thought, but not with both. `info["thoughts_kept"]` then has the reason.
    """

    given: int = 0
    """Number of messages in the first prompt. Thoughts in these messages are the task's, and are not counted."""
    dropped: int = 0
    """Number of the model's own thoughts that are no longer in the prompt."""
    raw: bool = False

    def begin(self, observed: Observed) -> None:
        """Record the first observation of the episode, or the first after a summary."""
        self.given, self.dropped, self.raw = len(messages_of(observed)), 0, isinstance(observed, Raw)

    def strip(self, trajectory: Trajectory, observed: Observed, renderer: Renderer) -> Rendered | None:
        """The template's own render of the next prompt, if that render drops another thought; else None.

        A thought counts as dropped if the render is the same without the thought. Other differences between the render
        and the sampled text, such as the spacing of a call, begin no new segment.
        """
        self.raw = self.raw or isinstance(observed, Raw)
        if self._unwritten(trajectory) or not renderer.certificate.capabilities.get("thinking", False):
            return None
        messages = [*trajectory.conversation, *messages_of(observed)]
        try:
            prompt, dropped = self._prompt(messages, renderer)
        except TemplateError as exc:  # the model may write text that the template cannot: no reason to stop
            trajectory.info["thoughts_kept"] = str(exc)
            return None
        if dropped == self.dropped:
            return None
        self.dropped = dropped
        return prompt

    def _prompt(self, messages: Sequence[Message], renderer: Renderer) -> tuple[Rendered | None, int]:
        """The template's render of the next prompt and the number of dropped thoughts. No render if no thought can be
        dropped."""
        indices = [i for i in range(self.given, len(messages)) if messages[i].get("reasoning_content")]
        prompt, dropped = None, self.dropped
        for i in indices[dropped:]:
            prompt = prompt or renderer.prompt(messages)
            if renderer.prompt([*messages[:i], _thoughtless(messages[i]), *messages[i + 1 :]]).tokens != prompt.tokens:
                break
            dropped += 1
        return prompt, dropped

    def _unwritten(self, trajectory: Trajectory) -> bool:
        """Whether the messages lack a part of the tokens' text."""
        return self.raw or any(
            action.error
            for segment in trajectory.segments
            if segment.first_message == trajectory.segment.first_message
            for action in segment.said
        )


def _thoughtless(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "reasoning_content"}

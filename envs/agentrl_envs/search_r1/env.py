"""The environment: a model searches and answers, in the paper's tags or with a tool."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

from pydantic import BaseModel, ConfigDict, Field

from agentrl import (
    Action,
    Env,
    Observation,
    Raw,
    Reward,
    StepResult,
    StopReason,
    ToolError,
    ToolSpec,
    Trajectory,
    TurnOptions,
    tool,
)
from agentrl.rewards import search_r1
from agentrl.trajectory.model_output import without_thought
from agentrl_envs.search_r1.prompts import ANSWER_NOW, INVALID, Form
from agentrl_envs.search_r1.retrieval import Retriever, open_retriever, shown

STOP = ("</search>", "</answer>")
_OPEN, _CLOSE = "\n\n<information>", "</information>\n\n"
# A second opening tag inside an open one starts the action anew; the grader reads it the same way.
_ACTION = re.compile(r"<(search|answer)>((?:(?!<(?:search|answer)>).)*?)</\1>", re.DOTALL)


class SearchR1Config(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    retriever: str = "http://127.0.0.1:8000/retrieve"
    """A server with Search-R1's HTTP contract, or the path of a corpus to search in this process."""
    form: Form = "tags"
    """How the model searches. tags: with the paper's tags in raw text. tools: by calling the tool `search`."""
    topk: int = Field(3, ge=1)
    """The number of passages that a search returns."""
    response_tokens: int = Field(500, ge=1)
    """The most tokens of a turn."""
    forced_answer: bool = True
    """Whether an extra turn for the answer, without a search, follows the last turn of `limits.turns`."""
    timeout: float = Field(30.0, gt=0)
    """The time limit of a search in seconds, retries included."""


class TurnRequest(NamedTuple):
    """The action of a turn: a search or an answer."""

    kind: Literal["search", "answer"]
    content: str


class SearchR1(Env):
    """Answer a question by searching. The reward is the exact match of the answer.

    Set `limits: {turns: 4, observation_tokens: 500}` for the paper's other limits. A retriever that does not
    respond is a failure of the environment: the model never reads an empty result instead.
    """

    config: SearchR1Config
    shared: Retriever
    searches = 0
    final = False
    """Whether this turn is the extra turn for the answer (see `forced_answer`)."""

    @classmethod
    def share(cls, config: SearchR1Config) -> Retriever:
        return open_retriever(config.retriever, timeout=config.timeout)

    @classmethod
    def needs(cls, config: SearchR1Config, episodes: int) -> Sequence[str]:
        if config.retriever.startswith(("http://", "https://")):
            return [f"a retriever at {config.retriever} (POST /retrieve), for {episodes} searches at a time"]
        return [f"the corpus {config.retriever}, and its index beside it in memory-mapped files"]

    @property
    def turn_options(self) -> TurnOptions:  # type: ignore[override]  # the configuration decides it
        stop = STOP if self.config.form == "tags" else ()
        return TurnOptions(stop=stop, max_tokens=self.config.response_tokens)

    async def tools(self) -> Sequence[ToolSpec]:
        return cast("Sequence[ToolSpec]", super().tools()) if self.config.form == "tools" else ()

    @tool
    async def search(self, query: str) -> str:
        """Search for passages about something.

        Args:
            query: What to look for.
        """
        return await self._found(query) or "No result."

    async def step(self, action: Action) -> StepResult:
        result = await (self._step_tags(action) if self.config.form == "tags" else self._step_tools(action))
        return StepResult(result.observation, reward=result.reward, done=result.done, info={"searches": self.searches})

    async def _step_tags(self, action: Action) -> StepResult:
        request = read_action(action)
        if request is not None and request.kind == "answer":
            return StepResult(done=True)
        if request is None or not request.content or self.final:
            return StepResult(Raw(INVALID))
        return StepResult(Raw(f"{_OPEN}{await self._found(request.content)}{_CLOSE}", end=_CLOSE))

    async def _step_tools(self, action: Action) -> StepResult:
        return StepResult(ANSWER_NOW) if self.final and action.calls else await self.run_tools(action)

    async def _found(self, query: str) -> str:
        """The passages as text for the model. Raises InfraError if the retriever does not respond."""
        if not query.strip():
            raise ToolError("the query is empty; write what to look for")
        self.searches += 1
        return shown(await self.shared.search(query.strip(), self.config.topk)).strip()

    async def last_turn(self, reason: StopReason) -> Observation | None:
        if not self.config.forced_answer:
            return None
        self.final = True
        return Raw("") if self.config.form == "tags" else ANSWER_NOW

    async def score(self, trajectory: Trajectory) -> Reward:
        """1 if the last <answer> matches a right answer exactly, else 0. `reward:` in the configuration replaces this
        function."""
        reward: Reward = await search_r1(trajectory)
        return reward

    async def snapshot(self) -> tuple[int, bool]:
        return self.searches, self.final

    async def restore(self, state: tuple[int, bool]) -> None:
        self.searches, self.final = state


def read_action(action: Action) -> TurnRequest | None:
    """The first search or answer of a turn, outside of the thought. None without a search or an answer.

    An unfinished thought contains no action. The paper executes actions in an unfinished thought.
    """
    match = _ACTION.search(without_thought(action.content)[0])
    return TurnRequest(cast(Literal["search", "answer"], match[1]), match[2].strip()) if match else None

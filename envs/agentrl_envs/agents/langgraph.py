"""Graphs of LangGraph."""

from __future__ import annotations

from typing import Any, ClassVar

from agentrl import AgentEnv, Endpoint, SessionOptions, Task
from agentrl.types import JSON
from agentrl_envs.agents.openai_agents import asked
from agentrl_envs.agents.start import PATIENCE_S
from agentrl_envs.agents.versions import CLIENTS


class LangGraph(AgentEnv):
    """A task, played by a graph of LangGraph. Write `graph` and `score`.

        class Search(LangGraph):
            def graph(self, task, model):
                return create_agent(model, [search], system_prompt="Search, then answer.")

    `graph` may also return a graph that creates its model with `init_chat_model(..., configurable_fields=("base_url",
    "api_key", "timeout"))`: the graph is called with these fields in the configuration.
    """

    session = SessionOptions(images="omit", replies=100)
    recursion_limit: ClassVar[int] = 100
    """The most steps of the graph. A turn with a tool takes two steps."""
    tested: ClassVar[tuple[str, ...]] = (CLIENTS["langgraph"].version,)

    def graph(self, task: Task, model: Any, /) -> Any:
        """The compiled graph with `model`, which is trained."""
        raise NotImplementedError(f"{type(self).__name__} has no graph")

    def state(self, task: Task, /) -> Any:
        """The input of the graph: the task's prompt as the first message."""
        return {"messages": [{"role": "user", "content": asked(task)}]}

    def context(self, task: Task, /) -> Any:
        """The graph's run-time context; none by default."""
        return None

    def answer(self, state: Any, /) -> JSON:
        """`self.result`, from the graph's last state: the text of the last message."""
        return str(state["messages"][-1].text)

    async def run(self, task: Task, endpoint: Endpoint) -> JSON:
        from langchain_openai import ChatOpenAI
        from langgraph.errors import GraphRecursionError

        client = {"base_url": endpoint.openai, "api_key": endpoint.key, "timeout": PATIENCE_S}
        graph = self.graph(task, ChatOpenAI(model=endpoint.model, **client))
        named = {"model": f"openai:{endpoint.model}", **client}  # as init_chat_model reads it
        config = {"recursion_limit": self.recursion_limit, "configurable": named}
        try:
            state = await graph.ainvoke(self.state(task), config, context=self.context(task))
        except GraphRecursionError:  # the model's own: it is trained on
            return None
        return self.answer(state)

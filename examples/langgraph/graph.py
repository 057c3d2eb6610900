"""A weather assistant, written with LangGraph. It knows nothing of training."""

from __future__ import annotations

from dataclasses import dataclass

from langchain.chat_models import init_chat_model
from langchain.tools import ToolRuntime, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@dataclass
class Station:
    """The run-time context of the assistant: place -> today's weather report."""

    reports: dict[str, str]


@tool
def lookup(place: str, runtime: ToolRuntime[Station]) -> str:
    """Current weather of a place."""
    return runtime.context.reports.get(place, f"No report of {place}.")


chat = init_chat_model("openai:gpt-4.1-mini", configurable_fields=("base_url", "api_key", "timeout"))
model = chat.bind_tools([lookup])


async def assistant(state: MessagesState) -> dict:
    return {"messages": [await model.ainvoke(state["messages"])]}


builder = StateGraph(MessagesState, context_schema=Station)
builder.add_node("assistant", assistant)
builder.add_node("tools", ToolNode([lookup]))
builder.add_edge(START, "assistant")
builder.add_conditional_edges("assistant", tools_condition)
builder.add_edge("tools", "assistant")
graph = builder.compile()

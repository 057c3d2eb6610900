"""The model's prompts: the paper's words, and a prompt for native tool calls."""

from __future__ import annotations

from typing import Literal, TypeAlias

Form: TypeAlias = Literal["tags", "tools"]
"""How the model searches: in the paper's tags, as raw text, or by calling the tool `search`."""

# Search-R1, scripts/data_process/qa_search_train_merge.py (Apache-2.0), to the character: published data and
# checkpoints hold it. Its example answer can earn nothing, because graders read only what the model wrote.
TAGS = (
    "Answer the given question. "
    "You must conduct reasoning inside <think> and </think> first every time you get new information. "
    "After reasoning, if you find you lack some knowledge, you can call a search engine by <search> query </search> "
    "and it will return the top searched results between <information> and </information>. "
    "You can search as many times as your want. "
    "If you find no further external knowledge needed, you can directly provide the answer inside <answer> and "
    "</answer>, without detailed illustrations. For example, <answer> Beijing </answer>. Question: {question}\n"
)
TOOLS = (
    "Answer the given question. You can search as many times as you want. "
    "When you know the answer, write it inside <answer> and </answer>, without explanation. Question: {question}\n"
)

# Search-R1, search_r1/llm_agent/generation.py.
INVALID = (
    "\nMy previous action is invalid. "
    "If I want to search, I should put the query between <search> and </search>. "
    "If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)
ANSWER_NOW = "No search is left. Write the answer inside <answer> and </answer>."
"""The message before the extra turn for the answer, if the model searches with tools. With tags, the paper gives the
model this turn without a message."""


def prompt_of(question: str, form: Form = "tags") -> str:
    """The prompt of a question. A missing question mark is added, as in the paper's data."""
    question = question.strip()
    question = question if question.endswith("?") else f"{question}?"
    return (TAGS if form == "tags" else TOOLS).format(question=question)

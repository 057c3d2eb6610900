"""Search-R1 (arXiv 2503.09516): questions that a model answers by searching, in the paper's tags or with a tool.

agentrl data search-r1 qa.jsonl --out data          # rows in the format of the paper's data
agentrl play agentrl_envs.search_r1:SearchR1 --player agentrl_envs.search_r1:searcher --data data/test.jsonl
"""

from __future__ import annotations

from agentrl_envs.search_r1.env import SearchR1, SearchR1Config
from agentrl_envs.search_r1.players import noop, searcher, tool_searcher
from agentrl_envs.search_r1.rows import make_row, write_rows

__all__ = ["SearchR1", "SearchR1Config", "make_row", "noop", "searcher", "tool_searcher", "write_rows"]

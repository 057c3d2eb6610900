"""Questions on real facts, which a model looks up with a search tool: the country of a city, the capital of a country,
or the capital of a city's country.

    python -m agentrl_envs.fact_search data/            # writes train.jsonl and held_out.jsonl
    agentrl play agentrl_envs.fact_search:FactSearch --player agentrl_envs.fact_search:gold --data data/held_out.jsonl

Only an answer that the model read in a result of the tool is rewarded: a right guess earns 0.
"""

from __future__ import annotations

from agentrl_envs.fact_search.env import FactSearch, FactSearchConfig
from agentrl_envs.fact_search.facts import Facts, load_facts
from agentrl_envs.fact_search.players import gold, mediocre, noop
from agentrl_envs.fact_search.tasks import make_tasks, write_tasks

__all__ = [
    "FactSearch",
    "FactSearchConfig",
    "Facts",
    "gold",
    "load_facts",
    "make_tasks",
    "mediocre",
    "noop",
    "write_tasks",
]

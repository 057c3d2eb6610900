"""Passages for a searching agent: over HTTP as Search-R1 serves passages, or from a corpus on this machine."""

from __future__ import annotations

from agentrl_envs.search_r1.retrieval.client import HTTPRetriever, open_retriever
from agentrl_envs.search_r1.retrieval.documents import Document, Retriever, shown

__all__ = ["Document", "HTTPRetriever", "Retriever", "open_retriever", "shown"]

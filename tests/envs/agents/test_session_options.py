"""The shipped harnesses are played so that one image, one broken call or the seventeenth turn ends no session."""

from __future__ import annotations

import pytest

from agentrl import Limits
from agentrl_envs.agents.claude_code import ClaudeCode
from agentrl_envs.agents.codex import Codex
from agentrl_envs.agents.gemini_cli import GeminiCli
from agentrl_envs.agents.mini_swe_agent import MiniSweAgent
from agentrl_envs.agents.openai_agents import OpenAIAgents
from agentrl_envs.agents.strands import StrandsAgents


@pytest.mark.parametrize("harness", [ClaudeCode, Codex, GeminiCli, MiniSweAgent, OpenAIAgents, StrandsAgents])
def test_a_harness_is_patient_with_its_agent(harness):
    assert harness.session.images == "omit"
    assert Limits().turns_or(harness.session.replies) >= 100
    assert harness.session.forced == "exact"


@pytest.mark.parametrize("harness", [ClaudeCode, Codex, GeminiCli, MiniSweAgent])
def test_a_command_line_answers_broken_calls_by_itself(harness):
    assert harness.session.unreadable == "call"

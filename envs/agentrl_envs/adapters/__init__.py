"""Environments of other projects, played as Envs: one module a suite, imported only where it is used.

agentrl train agentrl_envs.adapters.reasoning_gym:ReasoningGym --set env_config.dataset=chain_sum

The suites are no dependencies of agentrl. Where one is missing, its adapter says what to install.
"""

"""Environments of other projects, played as Envs: one module a suite, imported only where it is used.

agentrl train agentrl_envs.adapters.reasoning_gym:ReasoningGym --set env_config.dataset=chain_sum

The suites are not dependencies of agentrl. If one is missing, its adapter's error names what to install.
"""

"""Environments of other projects (suites), played as Envs. Each suite has a module, which is imported on first use.

agentrl train agentrl_envs.adapters.reasoning_gym:ReasoningGym --set env_config.dataset=chain_sum

The suites are not dependencies of agentrl. The adapter of a missing suite raises an error with the package to install.
"""

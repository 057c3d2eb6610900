"""Doors to other trainers: the same Env in TRL, tinker and others.

A door is one file. A door imports its host inside functions, and has no loop over turns, no template and no parser:
the doors share `turned`, which is `run_episode` with a host in place of the engine. Each door's docstring has a line
"lost here: ..." with the parts of an episode that its host cannot hold. `equality` proves a door: it replays the host's
episodes through `run_episode`, and names each difference.

slime has a room of its own, `agentrl.slime`.
"""

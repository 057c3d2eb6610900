"""The rollout loop: a buffer of drawn groups with a journal, and the rollouts that play the groups for a trainer."""

"""Agents under slime, and the lists that they play."""

from __future__ import annotations

from tests.slime.contract.conftest import ASKING_FILE

AGENT = {"env": f"{ASKING_FILE}:Asking", "parking": {"keep_s": 60}}


LISTS = {"custom_reward_post_process_path": "agentrl.slime.post_process_rewards"}

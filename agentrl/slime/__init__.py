"""agentrl under slime: `--custom-generate-function-path agentrl.adapt`, and the hooks for slime's other flags.

Only this package knows slime. It never imports slime: it reads the attributes of `args` and `sample`.

    --data-source-path                       agentrl.slime.DataSource
    --rollout-function-path                  agentrl.slime.generate_rollout, agentrl.slime.generate_rollout_fully_async
    --custom-rm-path                         agentrl.slime.reward
    --custom-reward-post-process-path        agentrl.slime.post_process_rewards
    --dynamic-sampling-filter-path           agentrl.slime.has_spread, agentrl.slime.prefer_spread
    --buffer-filter-path                     agentrl.slime.oldest_first
    --custom-rollout-log-function-path       agentrl.slime.log_rollout
    --custom-eval-rollout-log-function-path  agentrl.slime.log_eval
    --custom-tis-function-path               agentrl.slime.watch_log_probs
"""

from __future__ import annotations

from agentrl.slime.config import SlimeConfig
from agentrl.slime.data_source import DataSource
from agentrl.slime.filters import has_spread, oldest_first, prefer_spread
from agentrl.slime.logs import log_eval, log_rollout
from agentrl.slime.numerics import watch_log_probs
from agentrl.slime.rewards import post_process_rewards, reward
from agentrl.slime.rollout_functions import generate_rollout, generate_rollout_fully_async
from agentrl.slime.sample import to_sample
from agentrl.slime.task import from_sample

__all__ = [
    "DataSource",
    "SlimeConfig",
    "from_sample",
    "generate_rollout",
    "generate_rollout_fully_async",
    "has_spread",
    "log_eval",
    "log_rollout",
    "oldest_first",
    "post_process_rewards",
    "prefer_spread",
    "reward",
    "to_sample",
    "watch_log_probs",
]

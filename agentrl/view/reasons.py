"""Why sampled tokens are not trained, in words, and the responsible option."""

from __future__ import annotations

from typing import NamedTuple

from agentrl.view.model import NOT_TOLD


class Reason(NamedTuple):
    """A reason to mask: the event, and the responsible option."""

    meaning: str
    option: str


REASONS: dict[str, Reason] = {
    "malformed": Reason(
        "The turn holds a tool call that could not be read. Nobody executed it, so its text earned nothing.",
        "bad_calls of the Env: BadCallPolicy(mask=...)",
    ),
    "off_policy": Reason(
        "Other weights than the present ones sampled these tokens, or another model wrote them.",
        "--mask-offpolicy-in-partial-rollout (slime); stale: mask (train); a player's turns are always masked",
    ),
    "env_failure": Reason(
        "The environment broke. The reward is no evidence about the model, so the whole episode is left out.",
        "no option: fix the environment; the failure is named above",
    ),
    "overlong": Reason(
        "A bound on tokens, context or time cut the episode, and mask_overlong is on.",
        "mask_overlong (train), limits.tokens, limits.context, limits.episode_s",
    ),
    "host": Reason(
        "The program that plays the episodes asked for it: an aborted episode, weight: 0 in a row of chat, or a mask "
        "of its own.",
        "the host's own flags; weight in a row of chat",
    ),
    "dropped": Reason(
        "The agent dropped this reply: no later request holds it.", "SessionOptions(dropped='mask' | 'train')"
    ),
    "side": Reason(
        "The reply belongs to another conversation than the agent's main one, or is a summary.",
        "SessionOptions(side='mask' | 'train')",
    ),
    "undelivered": Reason("The agent never received this reply.", "no option: the request was cut off"),
    "constrained": Reason(
        "The agent's client demanded a form, such as a tool call, and the grammar excluded other tokens in this place.",
        "SessionOptions(forced='exact' | 'ignore')",
    ),
    "replaced": Reason(
        "The group taught nothing (equal rewards, failures) or a filter dropped it; refill put another in its place.",
        "refill, filters (train)",
    ),
    "removed": Reason("slime removes the whole sample from training (remove_sample).", "the rollout that set it"),
    "copied": Reason("A copy of an earlier trajectory, kept as context.", "no option: it was trained there"),
    "abandoned": Reason(
        "A branch that the agent began and did not continue from.", "the trainer that reads the traces decides"
    ),
    "other_agent": Reason(
        "Another agent of the same episode sampled them, and it is not trained.",
        "trainable of the agent's configuration",
    ),
    "shared": Reason("An earlier branch of this trace holds these tokens, too. They count there.", "no option"),
    NOT_TOLD: Reason(
        "The mask is 0, and no reason is recorded.",
        "agentrl writes the reason into metadata['agentrl']['spans']; other programs keep none",
    ),
}
NOT_SAMPLED = {
    "env": "Written by the environment. Text that the model did not sample is never trained.",
    "template": "Written by the chat template around turns. It is never trained.",
    "prompt": "The prompt, before the first sampled token. It is never trained.",
    "unknown": "Not sampled: by the environment or the template. Which of them is not recorded. It is never trained.",
}

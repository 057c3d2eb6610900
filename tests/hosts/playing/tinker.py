"""The cookbook's rollout loop with agentrl's door: keeps each turn, and reads the rows of its training data."""

from __future__ import annotations

from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_single_rollout

from agentrl.errors import InfraError
from agentrl.hosts.equality import HostEpisode, HostRow, HostTurn
from agentrl.hosts.tinker import TinkerGroupBuilder, TinkerRollouts
from tests.hosts.hosting import Policy


class Completer:
    """The cookbook's TokenCompleter. Keeps each turn."""

    def __init__(self, policy, seed=0) -> None:
        self.policy, self.seed, self.turns = policy, seed, []

    async def __call__(self, model_input, stop, *, max_tokens=None):
        from tinker_cookbook.completers import TokensWithLogprobs

        params = {"max_new_tokens": max_tokens, "stop_token_ids": stop, "sampling_seed": self.seed}
        said = await self.policy.generate(model_input.to_ints(), params)
        self.turns.append(HostTurn(model_input.to_ints(), said.tokens, said.log_probs, said.finish_reason))
        return TokensWithLogprobs([*said.tokens], [*said.log_probs], said.finish_reason)


def rows(trajectory):
    """The sequences of the cookbook's data, with the first token that they leave out of the targets."""
    for datum in trajectory_to_data(trajectory, 1.0, include_provenance=False):
        targets, mask, log_probs = (
            datum.loss_fn_inputs[name].to_torch().tolist() for name in ("target_tokens", "mask", "logprobs")
        )
        yield HostRow([datum.model_input.to_ints()[0], *targets], [0.0, *mask], [0.0, *log_probs])


async def play(builder, policy):
    """An episode of the cookbook's loop."""
    (env, *_) = await builder.make_envs()
    try:
        trajectory = await do_single_rollout(policy, env)
    except InfraError:
        return HostEpisode(builder.task, policy.turns)
    finally:
        await builder.cleanup()
    reward = sum(transition.reward for transition in trajectory.transitions)
    return HostEpisode(builder.task, policy.turns, [*rows(trajectory)] if policy.turns else [], reward)


async def episodes(case, count, renderer):
    """Episodes of the cookbook's loop with a scripted policy."""
    source = TinkerRollouts(case.env, **case.all_settings(model=case.model))
    for seed, task in enumerate(case.tasks(count)):
        policy = Completer(Policy(renderer, case.reply), seed)
        yield await play(TinkerGroupBuilder(source, task, 1), policy)

"""A world in which a random model earns something: rewards differ from the first step, over several turns."""

from agentrl import Env, StepResult, TurnOptions


class Even(Env):
    """Turns until the limit; the reward is the share of even tokens among those sampled."""

    turn_options = TurnOptions(stop=tuple("aeiou"))  # else a random model would never end its turn

    def step(self, action):
        return StepResult("Go on.")

    def score(self, trajectory):
        sampled = [token for action in trajectory.actions for token in action.tokens]
        return sum(token % 2 == 0 for token in sampled) / len(sampled)

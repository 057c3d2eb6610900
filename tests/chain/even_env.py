"""A world in which a random model earns something: rewards differ from the first step, over several turns."""

from agentrl import Ask, Env, StepResult


class Even(Env):
    """Turns until the limit; the reward is the share of even tokens among those sampled."""

    ask = Ask(stop=tuple("aeiou"))  # else a random model would never end its turn

    def step(self, action):
        return StepResult("Go on.")

    def score(self, trajectory):
        sampled = [token for action in trajectory.actions for token in action.tokens]
        return sum(token % 2 == 0 for token in sampled) / len(sampled)

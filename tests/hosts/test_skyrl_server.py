"""The door to Tinker on SkyRL's local server of the Tinker API (JAX, CPU): episodes, and a step on their tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl import EpisodeOptions, Limits
from agentrl.hosts.equality import HostEpisode, HostRow, HostTurn, differences
from agentrl.hosts.tinker import TinkerRollouts
from agentrl.models import load_tokenizer
from agentrl.render import load_renderer
from tests.hosts.conftest import need
from tests.hosts.envs import Weather, odd
from tests.hosts.learning import without_biases

need("skyrl_server")

import tinker  # noqa: E402
from tinker_cookbook.completers import TinkerTokenCompleter  # noqa: E402
from tinker_cookbook.rl.data_processing import trajectory_to_data  # noqa: E402
from tinker_cookbook.rl.rollouts import do_single_rollout  # noqa: E402

from tests.hosts.training.arguments import Run  # noqa: E402
from tests.hosts.training.skyrl_server import RANK, final_adapter, server, train_at  # noqa: E402

LIMITS = {"turns": 2, "max_tokens_per_turn": 8, "context": 512}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(without_biases(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def served(model):
    with server(model) as (url, checkpoints):
        yield url, checkpoints


class Recorded(TinkerTokenCompleter):
    """Keeps each turn."""

    async def __call__(self, model_input, stop, *, max_tokens=None):
        said = await super().__call__(model_input, stop, max_tokens=max_tokens)
        self.__dict__.setdefault("turns", []).append(HostTurn(model_input.to_ints(), said.tokens, said.logprobs))
        return said


async def test_the_servers_episodes_are_agentrls(model, served):
    client = tinker.ServiceClient(base_url=served[0])
    trained = await client.create_lora_training_client_async(model, rank=RANK)
    sampling = await trained.save_weights_and_get_sampling_client_async("start")
    options, renderer = EpisodeOptions(limits=Limits(**LIMITS)), load_renderer(load_tokenizer(model))
    for builder in TinkerRollouts(Weather, model=model, limits=LIMITS).dataset("train").builders[:4]:
        (env, *_) = await builder.make_envs()
        policy = Recorded(sampling, max_tokens=LIMITS["max_tokens_per_turn"])
        trajectory = await do_single_rollout(policy, env)
        (datum,) = trajectory_to_data(trajectory, 1.0)
        ids, mask, log_probs = (
            datum.loss_fn_inputs[name].to_torch().tolist() for name in ("target_tokens", "mask", "logprobs")
        )
        row = HostRow([datum.model_input.to_ints()[0], *ids], [0, *mask], [0.0, *log_probs])
        reward = sum(step.reward for step in trajectory.transitions)
        episode = HostEpisode(builder.task, policy.turns, [row], reward)
        assert [*map(str, await differences(episode, Weather(), renderer, options=options))] == []


class Odd(Weather):
    """Random weights get both rewards."""

    def score(self, trajectory):
        return odd(trajectory)


def test_a_step_trains_the_saved_weights(model, served, tmp_path):
    """The saved weights are those that the server samples from, and differ from the weights before."""
    run = Run(model, str(tmp_path / "out"), Odd, tokens=1, seed=0, learning_rate=0.01)
    updates, tokens = train_at(*served, run)
    assert (updates, tokens > 100) == (2, True)
    before, after = (AutoModelForCausalLM.from_pretrained(folder) for folder in (model, run.out))
    prompt = load_tokenizer(model)("<|im_start|>user\nWeather in the city?<|im_end|>\n").input_ids
    sampling = tinker.ServiceClient(base_url=served[0]).create_sampling_client(model_path=final_adapter(run))
    params = tinker.SamplingParams(max_tokens=16, temperature=1.0, seed=1)
    (said,) = sampling.sample(tinker.ModelInput.from_ints(prompt), 1, params).result().sequences
    served_log_probs = torch.tensor(said.logprobs)
    assert (log_probs(after, prompt, said.tokens) - served_log_probs).abs().max() < 1e-3
    assert Path(run.out, "tokenizer.json").exists()
    assert (log_probs(before, prompt, said.tokens) - served_log_probs).abs().max() > 1e-2


def log_probs(model, prompt, tokens):
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]

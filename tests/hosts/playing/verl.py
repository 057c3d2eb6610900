"""verl's agent loop with agentrl's door, on a scripted server."""

from __future__ import annotations

from types import SimpleNamespace

from agentrl.hosts.equality import HostEpisode, HostRow, HostTurn
from agentrl.hosts.verl import agent_loop
from agentrl.models import load_tokenizer
from tests.hosts.hosting import Policy

PROMPT = 300


class Servers:
    """verl's LLMServerClient. Keeps each turn."""

    def __init__(self, policy, seed) -> None:
        self.policy, self.seed, self.turns = policy, seed, []

    async def generate(self, request_id, *, prompt_ids, sampling_params):
        from verl.workers.rollout.replica import TokenOutput

        assert (sampling_params["temperature"], sampling_params["logprobs"]) == (0.5, True)
        params = {"max_new_tokens": sampling_params["max_tokens"], "sampling_seed": self.seed}
        params |= {name: sampling_params[name] for name in ("stop", "stop_token_ids") if name in sampling_params}
        said = await self.policy.generate(prompt_ids, params)
        self.turns.append(HostTurn(prompt_ids, said.tokens, said.log_probs, said.finish_reason))
        return TokenOutput(token_ids=[*said.tokens], log_probs=[*said.log_probs], stop_reason="completed")


def loop_of(env, servers, response, *, prompt=PROMPT, tokenizer="tiny", **settings):
    """An agent loop as verl's worker makes it, without the parts that need a configured trainer."""
    loop = object.__new__(agent_loop(env, **settings))
    loop.server_manager, loop.tokenizer, loop.apply_chat_template_kwargs = servers, load_tokenizer(tokenizer), {}
    loop.rollout_config = SimpleNamespace(prompt_length=prompt, response_length=response)
    return loop


async def play(loop, task):
    """An episode, as verl's batch holds it. verl has no place for a failure, so its reward is 0."""
    output = await loop.run({"temperature": 0.5}, task_id=task.id, raw_prompt=[])
    batch = output.as_dict()
    before = [0] * len(output.prompt_ids)
    mask, log_probs = batch["response_mask"].tolist(), batch["rollout_log_probs"].tolist()
    row = HostRow(output.prompt_ids + batch["responses"].tolist(), before + mask, before + log_probs)
    assert batch["rm_scores"].sum() == batch["rm_scores"][-1]
    return HostEpisode(task, loop.server_manager.turns, [row], batch["rm_scores"][-1].item())


async def episodes(case, count, renderer):
    """Episodes of verl's agent loop with a scripted policy."""
    tokens, context = case.limits["tokens"], case.limits["context"]
    for seed, task in enumerate(case.tasks(count)):
        servers = Servers(Policy(renderer, case.reply), seed)
        loop = loop_of(case.env, servers, tokens, prompt=context - tokens, tokenizer=case.model, **case.all_settings())
        yield await play(loop, task)

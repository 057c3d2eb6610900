"""GRPOTrainer with agentrl's door: keeps what the engine sampled, and what TRL's batch holds."""

from __future__ import annotations

import asyncio
import math
import tempfile
from contextlib import contextmanager, nullcontext

import trl
from trl import GRPOTrainer

from agentrl.hosts.equality import HostEpisode, HostRow, HostTurn
from agentrl.hosts.trl import TRLRollouts
from agentrl.models import load_model, load_tokenizer
from tests.hosts.hosting import KeptTurns, Policy

LENGTH, GROUP = 160, 4


class Recorded(TRLRollouts):
    """Keeps the turns that the engine sampled, by the name of the episode. `policy` replaces the engine."""

    def __init__(self, *args, policy=None, **settings) -> None:
        super().__init__(*args, **settings)
        self.sessions: dict[str, list[HostTurn]] = {}
        self.policy = policy

    @contextmanager
    def _serving(self, trainer):
        with nullcontext(self.policy) if self.policy else super()._serving(trainer) as engine:
            yield KeptTurns(engine, self.sessions)

    def turns(self, row):
        """The turns of a row's last attempt."""
        name = f"trl-0-{self._calls:06d}-{row // GROUP:04d}-{row % GROUP:03d}"
        return self.sessions.get(f"{name}-again") or self.sessions.get(name, [])


class Watched(GRPOTrainer):
    """Keeps the episodes that TRL trains on: the tensors of its batch, without the padding."""

    def _generate_and_score_completions(self, inputs):
        self._logs["rewards"].clear()
        batch = super()._generate_and_score_completions(inputs)
        (rewards,) = self._logs["rewards"].values()
        self.batch, self.hosted = batch, []
        self.batches = [*getattr(self, "batches", ()), batch]
        for index, (row, reward) in enumerate(zip(inputs, rewards, strict=True)):
            prompt = batch["prompt_ids"][index][batch["prompt_mask"][index].bool()].tolist()
            kept = batch["completion_mask"][index].bool()
            completion, mask, log_probs = (
                batch[name][index][kept].tolist()
                for name in ("completion_ids", "tool_mask", "sampling_per_token_logps")
            )
            before = [0] * len(prompt)
            sequence = HostRow(prompt + completion, before + mask, before + log_probs)
            task, turns = self.rollout_func.by_id[row["prompt"]], self.rollout_func.turns(index)
            self.hosted.append(HostEpisode(task, turns, [sequence], None if math.isnan(reward) else reward))
        self.played = [*getattr(self, "played", ()), *self.hosted]
        return batch


def trainer(rollouts, folder, model=None, tokenizer="tiny", **settings):
    arguments = {
        "per_device_train_batch_size": 16,
        "per_device_eval_batch_size": 16,
        "num_generations": GROUP,
        "max_completion_length": LENGTH,
        "max_steps": 1,
        **settings,
    }
    fixed = {"use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True, "bf16": False}
    return Watched(
        load_model("tiny") if model is None else model,
        reward_funcs=rollouts.reward,
        args=trl.GRPOConfig(output_dir=str(folder), **fixed, **arguments),
        train_dataset=rollouts.dataset(),
        eval_dataset=rollouts.dataset("eval") if model is None else None,
        processing_class=load_tokenizer(tokenizer),
        rollout_func=rollouts,
    )


async def episodes(case, count, renderer):
    """The episodes of a training run with a scripted policy, in steps of 40 episodes."""
    size = min(count, 40)
    with tempfile.TemporaryDirectory() as folder:
        rollouts = Recorded(case.env, policy=Policy(renderer, case.reply), **case.all_settings())
        host = trainer(
            rollouts,
            folder,
            load_model(case.model),
            case.model,
            per_device_train_batch_size=size,
            max_steps=count // size,
            max_completion_length=case.limits["tokens"],
        )
        await asyncio.to_thread(host.train)
    return host.played

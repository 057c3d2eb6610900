"""The door to TRL's AsyncGRPOTrainer, in its own training loop, on the CPU.

FlashAttention 3, which needs a GPU, is replaced by a plain attention of the same meaning.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
import torch

from agentrl import EpisodeOptions, Limits
from agentrl.errors import BugError
from agentrl.hosts.equality import HostEpisode, HostRow, differences
from agentrl.hosts.trl_async import VERSION, TRLAsyncRollouts
from agentrl.models import load_model, load_tokenizer
from agentrl.render import load_renderer
from tests.hosts.cases import CASES
from tests.hosts.conftest import need
from tests.hosts.envs import Breaks, Buggy, Weather
from tests.hosts.hosting import KeptTurns, Policy

trl = need("trl")
LIMITS = {"turns": 4, "max_tokens_per_turn": 48}
GROUP = 4
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def plain_attention(query, key, value, starts_q, starts_k, *_, softmax_scale, **__):
    """`flash_attn_varlen_func`, causal at the bottom right."""
    parts = []
    for (q0, q1), (k0, k1) in zip(
        *(torch.stack([s[:-1], s[1:]], 1).tolist() for s in (starts_q, starts_k)), strict=True
    ):
        seen = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool).tril(k1 - k0 - q1 + q0)
        q, k, v = (x.transpose(0, 1) for x in (query[q0:q1], key[k0:k1], value[k0:k1]))
        parts.append(
            torch.nn.functional.scaled_dot_product_attention(q, k, v, seen, scale=softmax_scale).transpose(0, 1)
        )
    return torch.cat(parts)


@pytest.fixture
def without_gpu(monkeypatch):
    from trl.experimental.async_grpo import async_grpo_trainer, packing

    flash = type("Flash", (), {"flash_attn_varlen_func": staticmethod(plain_attention)})
    monkeypatch.setattr(packing, "_flash_attn", lambda: flash)
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: 1e12)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    load_model("tiny").save_pretrained(folder)
    load_tokenizer("tiny").save_pretrained(folder)
    return str(folder)


class Watched(TRLAsyncRollouts):
    """Keeps the turns of the engine, and the rows that TRL takes. `policy` replaces the engine."""

    def __init__(self, *args, policy=None, **settings) -> None:
        super().__init__(*args, **settings)
        self.kept, self.taken = {}, []
        self.policy = policy

    async def play_all(self, rollout):
        object.__setattr__(rollout, "engine", KeptTurns(self.policy or rollout.engine, self.kept))
        await super().play_all(rollout)

    async def play_group(self, rollout, number, task):
        self.drawn = {**getattr(self, "drawn", {}), number: task}
        await super().play_group(rollout, number, task)

    def send_weights(self, iterator):
        self.sent = {name: tensor.detach().clone() for name, tensor in iterator}
        super().send_weights(self.sent.items())


def trainer(rollouts, model, folder, **settings):
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    fixed = {"use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
    arguments = {"per_device_train_batch_size": 16, "max_steps": 2, "weight_sync_steps": 1, **settings}
    host = AsyncGRPOTrainer(
        model,
        rollout_worker=rollouts,
        weight_transfer=rollouts,
        train_dataset=rollouts.dataset(),
        args=AsyncGRPOConfig(
            output_dir=str(folder), token_budget=0, model_init_kwargs={"dtype": "float32"}, **fixed, **arguments
        ),
    )
    queue = rollouts.rollout_buffer
    get = queue.get
    queue.get = lambda *args, **kwargs: rollouts.taken.append(get(*args, **kwargs)) or rollouts.taken[-1]
    return host


def test_the_version():
    assert trl.__version__ == VERSION, "the door is written for another version: read TRL's source again"


@pytest.mark.parametrize("cls", [Weather, Breaks])
async def test_each_row_is_the_episode(cls, model, without_gpu, tmp_path):
    cls.open = 0
    renderer = load_renderer(load_tokenizer("tiny"))
    rollouts = Watched(cls, model=model, group_size=GROUP, limits=LIMITS, policy=Policy(renderer))
    host = trainer(rollouts, model, tmp_path)
    await asyncio.to_thread(host.train)
    assert cls.open == 0
    rewards = {}
    for row in rollouts.taken:
        ids, mask, log_probs = (values.tolist() for values in (row.input_ids, row.completion_mask, row.old_log_probs))
        turns = max((turns for turns in rollouts.kept.values() if is_played(turns, ids)), key=len)
        episode = HostEpisode(
            rollouts.drawn[row.group_id], turns, [HostRow(ids, mask, log_probs)], row.metrics["reward"]
        )
        options = EpisodeOptions(limits=Limits(**LIMITS))
        assert [*map(str, await differences(episode, cls(), renderer, options=options))] == []
        rewards.setdefault(row.group_id, []).append((row.metrics["reward"], row.advantage))
    assert len(rollouts.taken) >= 32
    assert any(len(group) < GROUP for group in rewards.values()) is (cls is Breaks), "failed episodes have no row"
    assert any(advantage > 0 for group in rewards.values() for _, advantage in group)


def is_played(turns, ids):
    """Whether a row begins with these turns."""
    sequence = [*turns[-1].input_ids, *turns[-1].tokens]
    return sequence == ids[: len(sequence)]


async def test_the_engine_samples_from_trls_weights(model, without_gpu, tmp_path):
    rollouts = Watched(Weather, model=model, group_size=GROUP, limits=LIMITS, reward="tests.hosts.envs:odd")
    host = trainer(rollouts, model, tmp_path, learning_rate=0.01, max_steps=3, max_staleness=100)
    before = host.model.lm_head.weight.detach().clone()
    await asyncio.to_thread(host.train)
    assert not before.equal(host.model.lm_head.weight)
    present = rollouts._engine.copy_weights()
    assert all(present[name].equal(tensor) for name, tensor in rollouts.sent.items())
    assert all(dict(host.model.named_parameters())[name].equal(tensor) for name, tensor in rollouts.sent.items())
    ratios = [line["ratio"] for line in host.state.log_history if "ratio" in line]
    assert ratios[0] == pytest.approx(1, abs=1e-4), "TRL's forward gives the log-probs of sampling again"


async def test_each_sequence_of_an_episode_is_a_row(model, without_gpu, tmp_path):
    case = CASES["several sequences"]
    policy = Policy(load_renderer(load_tokenizer("tiny")), case.reply)
    rollouts = Watched(case.env, model=model, group_size=GROUP, policy=policy, **case.all_settings())
    host = trainer(rollouts, model, tmp_path, max_steps=1)
    await asyncio.to_thread(host.train)
    rows = Counter((row.group_id, tuple(map(str, row.completion))) for row in rollouts.taken)
    assert max(rows.values()) > 1
    assert len({(row.group_id, row.metrics["reward"], row.advantage) for row in rollouts.taken}) < len(rollouts.taken)


async def test_a_bug_of_the_env_ends_the_training(model, without_gpu, tmp_path):
    renderer = load_renderer(load_tokenizer("tiny"))
    rollouts = Watched(Buggy, model=model, group_size=GROUP, limits=LIMITS, policy=Policy(renderer))
    host = trainer(rollouts, model, tmp_path)
    with pytest.raises(BugError, match="KeyError"):
        await asyncio.to_thread(host.train)
    assert Buggy.open == 0

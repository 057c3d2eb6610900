import asyncio
import json
import math

import pytest
import torch

from agentrl import Env
from agentrl.errors import ConfigError
from agentrl.models import load_model, tiny_model
from agentrl.rollout.data.chat_rows import ChatReader
from agentrl.train import WarmStartConfig, train, warm_start
from agentrl.train.batch import micro_batches
from agentrl.train.learner import Learner
from agentrl.train.warm_start import (
    Demonstration,
    beyond_the_limit,
    demonstration_batches,
    make_optimizers,
    too_long,
    warm_start_schedule,
    weighted_rows,
)


@pytest.fixture
def load_demonstrations(renderer):
    """Reads a file for the tiny model's template."""

    def load(path, vocabulary=1024, context=1024):
        chats = ChatReader(renderer=renderer, context=context)
        return asyncio.run(warm_start.load_demonstrations(path, vocabulary, chats))

    return load


def config(**values):
    return WarmStartConfig(**{"demonstrations": "d.jsonl", "steps": 3, "batch_size": 4, **values})


def test_reads_what_the_player_wrote(demonstrations, load_demonstrations):
    found = load_demonstrations(demonstrations).rows

    assert len(found) == 20
    first = json.loads(demonstrations.read_text().splitlines()[0])
    assert list(found[0].tokens) == first["tokens"]
    assert sum(found[0].mask) == sum(first["loss_mask"]) > 0
    assert len(found[0].mask) == len(found[0].tokens)


def test_lost_episodes_that_are_imitated_are_counted(demonstrations, load_demonstrations, tmp_path):
    rows = [json.loads(line) for line in demonstrations.read_text().splitlines()]
    for number, row in enumerate(rows):
        row["reward"] = (0.0, 1.0, None, -1.0)[number % 4]
    (tmp_path / "mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (said,) = load_demonstrations(tmp_path / "mixed.jsonl").report()
    assert said.startswith("demonstrations: 10 of 20 episodes have a reward of 0 or less, and are imitated, too; ")


def test_names_the_line_that_is_no_json(demonstrations, load_demonstrations):
    with demonstrations.open("a") as file:
        file.write("{\n")

    with pytest.raises(ConfigError, match=r"demonstrations\.jsonl:21: not valid JSON \(.+\); write one object on one"):
        load_demonstrations(demonstrations, 4096)


@pytest.mark.parametrize("line", ["[]", '{"version": 1}', '{"version": 99}'])
def test_names_the_line_that_is_no_trajectory(demonstrations, line, load_demonstrations):
    with demonstrations.open("a") as file:
        file.write(line + "\n")

    with pytest.raises(
        ConfigError, match=r"demonstrations\.jsonl:21: neither chat \(.+\) nor a trajectory \(.+\); record it again"
    ):
        load_demonstrations(demonstrations, 1024)


def test_refuses_what_the_model_cannot_read(demonstrations, tmp_path, load_demonstrations):
    with pytest.raises(ConfigError, match=r":1: token \d+ is beyond the model's 100"):
        load_demonstrations(demonstrations, 100)
    with pytest.raises(ConfigError, match="no such file"):
        load_demonstrations(tmp_path / "none.jsonl", 1024)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ConfigError, match="no demonstration with a token to imitate"):
        load_demonstrations(tmp_path / "empty.jsonl", 1024)


PAIR = [Demonstration([1, 2, 3, 4], [0, 0, 1, 1]), Demonstration([5, 6, 7], [0, 0, 1])]


def test_the_loss_is_the_mean_over_the_players_tokens():
    first, second = weighted_rows(PAIR, 0.0)

    assert (first.positions, second.positions) == ([2, 3], [2])
    assert first.weights + second.weights == pytest.approx([1 / 3] * 3)


def test_context_weighs_as_much_as_it_is_told():
    first, second = weighted_rows(PAIR, 0.5)

    assert (first.positions, second.positions) == ([1, 2, 3], [1, 2])
    assert first.weights == pytest.approx([0.25, 1 / 3, 1 / 3])
    assert second.weights == pytest.approx([0.25, 1 / 3])


def test_every_demonstration_is_seen_once_an_epoch_in_an_order_fixed_by_the_seed():
    given = [Demonstration([i, i], [0, 1]) for i in range(10)]

    def seen(seed):
        return [row.tokens[0] for rows in demonstration_batches(given, config(steps=5), seed) for row in rows]

    assert sorted(seen(0)[:10]) == sorted(seen(0)[10:]) == list(range(10))
    assert seen(0) == seen(0) != seen(1)


def test_the_schedule_rises_then_falls_to_a_twentieth():
    values = [warm_start_schedule(step, 100) for step in range(1, 101)]

    assert values[0] == pytest.approx(1 / 30)
    assert values.index(max(values)) == 29
    assert values[-1] == pytest.approx(0.05, abs=0.001)


@pytest.mark.parametrize("steps", [1, 2, 3, 30, 60, 89])
def test_a_short_warm_start_reaches_most_of_its_rate(steps):
    values = [warm_start_schedule(step, steps) for step in range(1, steps + 1)]

    assert max(values) > 0.75
    assert values.index(max(values)) == max(1, steps // 3) - 1


@pytest.mark.parametrize("steps", [90, 100, 1000])
def test_a_longer_one_rises_over_thirty_steps(steps):
    for step in (1, 15, 30, 31, steps):
        cosine = 0.5 * (1 + math.cos(math.pi * (step - 1) / steps))
        assert warm_start_schedule(step, steps) == min(1.0, step / 30) * (0.05 + 0.95 * cosine)


class Answered(Env):
    """Allows one more turn, to answer."""

    def last_turn(self, reason):
        return "answer now"


@pytest.mark.parametrize(("env", "named"), [("Env", 2), ("Answered", 1)])
def test_a_turn_beyond_the_limit_that_the_env_allows_is_no_mistake(make_config, env, named, monkeypatch):
    monkeypatch.setattr(warm_start, "load_env", {"Env": Env, "Answered": Answered}.get)
    config = make_config(limits={"turns": 3}, env=env)

    said = beyond_the_limit([3, 4, 5], config)

    assert said.startswith(f"{named} of 3 demonstrations have more turns than limits.turns=3: ")
    assert beyond_the_limit([3, 2], config) == ""


def test_a_turn_that_the_model_cannot_end_is_named(make_config):
    config = make_config(limits={"max_tokens_per_turn": 48})

    said = too_long([48, 49, 58], config)

    assert said.startswith("2 of 3 demonstrations have a longer turn than limits.max_tokens_per_turn=48, the longest ")
    assert too_long([48, 3], config) == ""
    assert too_long([5000], make_config(limits={"max_tokens_per_turn": None})) == "", "without a limit none is too long"


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_imitation_learns_the_demonstrations(make_config, small_model, demonstrations, optimizer, load_demonstrations):
    given = load_demonstrations(demonstrations).rows
    warm = config(steps=15, batch_size=10, optimizer=optimizer, learning_rate=1e-2)
    learner = Learner(load_model(str(small_model)), make_config())
    optimizers = make_optimizers(learner.model, learner.masters, warm)

    losses = [learner.imitate(rows, optimizers, 2000) for rows in demonstration_batches(given, warm, 0)]

    assert losses[-1] < losses[0] / 2
    [batch] = micro_batches(weighted_rows(given, 0.0), 100_000, torch.device("cpu"))
    with torch.no_grad():
        loss = -batch.model_log_probs(learner.model).mean().item()
    assert loss < losses[0] / 2, "the loss reported is the cross-entropy"


def test_muon_leaves_routers_and_positions_to_adamw():
    from transformers import GPT2Config, GPT2LMHeadModel, Qwen2MoeConfig, Qwen2MoeForCausalLM

    sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 30}
    experts = Qwen2MoeForCausalLM(
        Qwen2MoeConfig(
            **sizes,
            num_hidden_layers=1,
            num_experts=4,
            moe_intermediate_size=8,
            shared_expert_intermediate_size=8,
            intermediate_size=8,
        )
    )
    positions = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=20, vocab_size=30))
    for model, outer in (
        (experts, {"model.embed_tokens.weight", "lm_head.weight", "mlp.gate.weight", "mlp.shared_expert_gate.weight"}),
        (positions, {"transformer.wte.weight", "transformer.wpe.weight"}),
    ):
        muon, _ = make_optimizers(model, list(model.parameters()), config(optimizer="muon"))
        theirs = {id(p) for group in muon.param_groups for p in group["params"]}
        left = {name.removeprefix("model.layers.0.") for name, p in model.named_parameters() if id(p) not in theirs}
        matrices = {name.removeprefix("model.layers.0.") for name, p in model.named_parameters() if p.ndim == 2}
        assert left & matrices == outer


def test_muon_leaves_embeddings_and_vectors_to_adamw():
    model = tiny_model()

    muon, adamw = make_optimizers(model, list(model.parameters()), config(optimizer="muon"))

    ours = {id(p) for group in muon.param_groups for p in group["params"]}
    theirs = {id(p) for group in adamw.param_groups for p in group["params"]}
    assert not ours & theirs
    assert ours | theirs == {id(p) for p in model.parameters()}
    assert id(model.get_input_embeddings().weight) in theirs


def chat(*messages, **row):
    roles = ("user", "assistant")
    return json.dumps({"messages": [{"role": roles[i % 2], "content": m} for i, m in enumerate(messages)], **row})


def test_chat_and_trajectories_may_stand_in_one_file(demonstrations, load_demonstrations, tokenizer):
    with demonstrations.open("a") as file:
        file.write(
            chat("say 7", "Yo 7") + "\n" + chat("only a question") + "\n" + chat("a", "b", functions=[{}]) + "\n"
        )
    found = load_demonstrations(demonstrations)

    assert (len(found.rows), found.chats) == (21, 1)
    learned = [token for token, taught in zip(found.rows[20].tokens, found.rows[20].mask, strict=True) if taught]
    assert tokenizer.decode(learned) == "Yo 7<|im_end|>"
    assert found.skipped == [
        f"{demonstrations}:22: no assistant message to learn after a user message",
        f"{demonstrations}:23: it has a key that is not served: functions",
    ]
    assert found.report()[0].startswith("demonstrations: 20 of 20 episodes have a reward of 0 or less")
    assert found.report()[1].startswith("chat: 1 rows to learn from, 2 skipped (")
    assert "skipped 1: it has a key that is not served" in found.report()


def test_rows_that_are_all_skipped_end_a_run_before_it_begins(tmp_path, load_demonstrations):
    (tmp_path / "chat.jsonl").write_text(chat("a") + "\n" + chat("b") + "\n")

    reason = "no assistant message to learn after a user message"
    with pytest.raises(ConfigError, match=rf"all 2 rows were skipped \(2 of them: {reason}\); the first is .*:1: "):
        load_demonstrations(tmp_path / "chat.jsonl")


def test_rows_that_are_odd_or_cut_are_counted_and_named(tmp_path, load_demonstrations):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    odd = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    file = tmp_path / "chat.jsonl"
    file.write_text(json.dumps({"messages": odd}) + "\n" + chat("a", "b", "c", "x" * 3000) + "\n")
    found = load_demonstrations(file)

    assert any("1 rows have calls, but the row has no tools" in line and f"{file}:1" in line for line in found.report())
    assert any("1 rows end early" in line and f"{file}:2" in line for line in found.report())
    assert [line.split(": ")[0] for line in found.listed()] == [f"{file}:2", f"{file}:1"]


def test_chat_of_another_format_is_told_what_to_rename(tmp_path, load_demonstrations):
    (tmp_path / "chat.jsonl").write_text('{"conversations": [{"from": "human", "value": "a"}]}\n')

    with pytest.raises(ConfigError, match=r'chat.jsonl:1: .*rename "conversations" to "messages", each with "role"'):
        load_demonstrations(tmp_path / "chat.jsonl")


def test_a_run_keeps_why_rows_were_skipped(make_config, tmp_path, capsys):
    file = tmp_path / "chat.jsonl"
    file.write_text(chat("say 1", "so 1") + "\n" + chat("say 2") + "\n" + chat("say 3", "x" * 500, "say 4") + "\n")
    config = make_config(steps=0, warm_start={"demonstrations": file, "steps": 1, "batch_size": 1})

    train(config)

    kept = (config.out / "skipped_rows.txt").read_text().splitlines()
    assert [line.partition(": ")[0] for line in kept] == [f"{file}:2", f"{file}:3"]
    assert "longer than 200 tokens" in kept[1]
    printed = capsys.readouterr().out
    assert "chat: 1 rows to learn from, 2 skipped" in printed
    assert kept[0] in printed

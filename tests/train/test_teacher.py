"""On-policy distillation: a teacher scores the student's own tokens."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from contextlib import asynccontextmanager, nullcontext

import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentrl.engine.sglang import connections
from agentrl.engine.sglang.connections import Address, Connections
from agentrl.engine.sglang.scoring import score
from agentrl.errors import ConfigError, EngineError
from agentrl.models import load_model, load_tokenizer, save_model
from agentrl.train import Trainer, train
from agentrl.train.batch import episode_rows
from agentrl.train.teacher import ServedTeacher, open_teacher, rows_of
from agentrl.trajectory.trajectory import Trajectory
from tests.train.toy_runs import TOY, Crash, CrashingTrainer, lines, played, quiet


@pytest.fixture(scope="module")
def teacher(small_model, tmp_path_factory):
    """A folder of the student's architecture and tokenizer with other weights."""
    model, folder = load_model(str(small_model)), tmp_path_factory.mktemp("teacher") / "model"
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    save_model(model, load_tokenizer(str(small_model)), folder)
    return folder


@asynccontextmanager
async def serving(folder, answers=(), *, tokenizer=None):
    """A server with SGLang's /generate in front of a model; before that it gives these answers, one a request."""
    model, tokenizer, answers = load_model(str(folder)), tokenizer or load_tokenizer(str(folder)), list(answers)
    asked = []

    async def generate(request):
        body = await request.json()
        asked.append(body)
        ids, texts = body["input_ids"], body.get("return_text_in_logprobs")
        if answers and not texts and (answer := answers.pop(0)) is not None:
            return web.json_response(*answer[1:], status=answer[0])
        if max(ids) >= model.config.vocab_size:
            return web.json_response({"error": "token id exceeds the vocabulary"}, status=400)
        with torch.no_grad():
            log_probs = model(torch.tensor([ids])).logits.log_softmax(-1)[0]
        known = log_probs[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].tolist()
        named = map(tokenizer.decode, ids) if texts else [None] * len(ids)
        last = model.config.vocab_size - 1  # SGLang reports 0 in its place
        reported = [0 if token == last and not texts else token for token in ids]
        scored = [list(entry) for entry in zip([None, *known], reported, named, strict=True)]
        return web.json_response({"text": "", "meta_info": {"input_token_logprobs": scored}})

    app = web.Application()
    app.router.add_post("/generate", generate)
    async with TestServer(app) as server:
        yield asked, str(server.make_url("/"))


def by_hand(folder, trajectory, temperature=1.0):
    """The teacher's log-probs of the trained tokens, without our batches."""
    (row,) = episode_rows(trajectory, [0.0] * len(trajectory.turns))
    with torch.no_grad():
        logits = load_model(str(folder))(torch.tensor([list(row.tokens)])).logits[0] / temperature
    log_probs = logits.log_softmax(-1)
    return row, [log_probs[position - 1, row.tokens[position]].item() for position in row.positions]


class Rows(Trainer):
    """Keeps what it learned from."""

    def rows(self, groups):
        self.kept = groups, *super().rows(groups)
        return self.kept[1:]


async def one_step(config):
    async with Rows(config, console=quiet()) as trainer:
        await trainer.run()
    return trainer


@pytest.mark.thorough
@pytest.mark.parametrize("beside", [False, True])
async def test_the_advantage_is_the_reverse_kl_of_each_token(make_config, teacher, beside):
    settings = {"model": str(teacher), "weight": 0.5, "beside_reward": beside}
    plain = await one_step(make_config(steps=1, temperature=0.7, out=make_config().out.with_name("plain")))
    trainer = await one_step(make_config(steps=1, temperature=0.7, teacher=settings))

    (groups, rows, _), (_, earned, _) = trainer.kept, plain.kept
    trajectories, rows, apart = [t for group in groups for t in group], iter(rows), []
    for trajectory, of_reward in zip(trajectories, earned, strict=True):
        known, expected = by_hand(teacher, trajectory, 0.7)
        row = next(rows)
        assert row.tokens == of_reward.tokens == known.tokens
        rewards = of_reward.weights if beside else [0.0] * len(known.positions)
        gaps = [theirs - ours for theirs, ours in zip(expected, row.log_probs, strict=True)]
        assert row.weights == pytest.approx([r + 0.5 * gap for r, gap in zip(rewards, gaps, strict=True)], abs=1e-4)
        apart += gaps
    (line,) = lines(trainer.config.out)
    assert line["teacher_kl"] == pytest.approx(-sum(apart) / len(apart), abs=1e-4)
    assert line["teacher_kl"] > 0.05, "the two differ"


@pytest.mark.thorough
def test_a_student_learns_from_a_teacher_what_the_reward_taught_that(make_config, tmp_path):
    """The teacher learned to prefer even tokens. The student's Env gives no reward at all; one episode a prompt."""
    fast = {"steps": 10, "prompts_per_step": 16, "learning_rate": 1e-2, "lr_final": 1.0, "minibatches": 1}
    train(make_config(out=tmp_path / "teacher", **fast), console=quiet())
    taught = make_config(
        out=tmp_path / "taught",
        env=f"{TOY}:Unscored",
        teacher=str(tmp_path / "teacher"),
        **{**fast, "group_size": 1, "prompts_per_step": 96},
    )
    train(taught, console=quiet())

    found = lines(taught.out)
    assert all(line["teaching_share"] == 1.0 and line["zero_advantage_groups"] == 0 for line in found)
    assert all(line["reward_mean"] == 0.0 for line in found)
    first, last = (sum(line["teacher_kl"] for line in part) / 3 for part in (found[:3], found[-3:]))
    assert last < 0.5 * first


async def test_beside_a_reward_a_teacher_teaches_in_groups_of_equal_rewards_too(make_config, teacher):
    config = make_config(steps=1, reward=f"{TOY}:same", teacher={"model": str(teacher), "beside_reward": True})
    _, rows, equal = (await one_step(config)).kept

    assert (len(rows), equal) == (12, 0)
    assert all(any(row.weights) for row in rows)


@pytest.mark.thorough
def test_a_killed_run_learns_the_same_from_its_teacher(make_config, teacher, tmp_path):
    def config(name):
        return make_config(out=tmp_path / name, teacher=str(teacher), steps=5, checkpoint_every=2)

    train(config("whole"), console=quiet())
    with pytest.raises(Crash):
        train(config("broken"), trainer=CrashingTrainer, console=quiet())
    train(config("broken"), resume=True, console=quiet())

    assert lines(tmp_path / "broken") == lines(tmp_path / "whole")
    assert played(tmp_path / "broken") == played(tmp_path / "whole")


@pytest.mark.thorough
async def test_a_served_teacher_teaches_what_a_loaded_one_does(make_config, teacher, tmp_path):
    loaded = await one_step(make_config(steps=1, teacher=str(teacher), out=tmp_path / "loaded"))
    async with serving(teacher) as (asked, url):
        served = await one_step(
            make_config(steps=1, teacher=url, out=tmp_path / "served", eval_data=tmp_path / "tasks.jsonl")
        )

    for one, other in zip(loaded.kept[1], served.kept[1], strict=True):
        assert one.tokens == other.tokens
        assert one.weights == pytest.approx(other.weights, abs=1e-4)
    scored = [body for body in asked if not body.get("return_text_in_logprobs")]
    assert len(scored) == 12, "evaluation asks nobody"
    assert all(body["sampling_params"]["max_new_tokens"] == 0 and body["return_logprob"] for body in scored)


async def test_a_teacher_that_is_away_is_asked_again(make_config, teacher, monkeypatch):
    monkeypatch.setattr(connections, "_FIRST_PAUSE_S", 0.001)
    async with serving(teacher, [(503, {})] * 20) as (_, url):
        trainer = await one_step(make_config(steps=1, teacher=url))
    (line,) = lines(trainer.config.out)
    assert (line["failed_episodes"], line["teacher_kl"] > 0) == (0, True)


BAD = {
    "refused": ((400, {"error": "no"}), "HTTP 400"),
    "nothing": ((200, []), "holds no log-probs"),
    "no log-probs": ((200, {"meta_info": {}}), "holds no log-probs"),
    "no numbers": ((200, {"meta_info": {"input_token_logprobs": [[math.nan, 1, None]] * 500}}), "not finite"),
}


@pytest.mark.parametrize(("answer", "says"), BAD.values(), ids=BAD)
async def test_an_episode_without_a_score_is_masked_with_the_cause(make_config, teacher, answer, says):
    async with serving(teacher, [answer, None, answer]) as (_, url):
        trainer = await one_step(make_config(steps=1, teacher=url))

    groups, rows, _ = trainer.kept
    failed = [t for group in groups for t in group if not t.is_valid]
    assert (len(failed), len(rows)) == (2, 10)
    for trajectory in failed:
        assert (trajectory.failure.kind, trajectory.failure.boundary) == ("environment", "score")
        assert says in trajectory.failure.error
        assert trajectory.ledger.masked == {"env_failure": trajectory.ledger.sampled}
    (line,) = lines(trainer.config.out)
    assert line["failures"] == {"environment/score": 2}


@pytest.mark.parametrize(
    ("reported", "message"),
    [((5, 0, 0), None), ((5, 0, 9), "not finite"), ((0, 0, 0), "not finite"), ((5, 8, 8), "not finite")],
    ids=["last id", "0 for one of two", "0 for two ids", "another id"],
)
async def test_0_stands_for_the_last_id_of_a_vocabulary_alone(reported, message):
    async def generate(request):
        scored = [[None, 1, None], *([-1.0, token, None] for token in reported)]
        return web.json_response({"meta_info": {"input_token_logprobs": scored}})

    app = web.Application()
    app.router.add_post("/generate", generate)
    async with TestServer(app) as server:
        address = Address.read(str(server.make_url("/")))
        pool = Connections(address, limit=1)
        try:
            with pytest.raises(EngineError, match=message) if message else nullcontext():
                scores = await score(pool, f"{address.url}/generate", [1, 5, 7, 7], 3, retry_s=0.0)
                assert scores == [-1.0] * 3
        finally:
            await pool.close()


async def test_a_teacher_that_stays_away_stops_a_run_that_learns_nothing(make_config, teacher, monkeypatch):
    monkeypatch.setattr("agentrl.train.teacher.RETRY_S", 0.0)
    async with serving(teacher, [(503, {})] * 1000) as (_, url):
        with pytest.raises(Exception, match=r"no token can be trained: .* masked: env_failure"):
            await one_step(make_config(steps=2, teacher=url))


def other_words(small_model, folder):
    """A copy of a model whose tokenizer has its letters, foreign ones included, in other places."""
    shutil.copytree(small_model, folder)
    file = folder / "tokenizer.json"
    read = json.loads(file.read_text())
    vocabulary = read["model"]["vocab"]
    letters = [token for token in vocabulary if len(token) == 1 and token.isalpha()]
    vocabulary |= {letter: vocabulary[other] for letter, other in zip(letters, letters[1:] + letters[:1], strict=True)}
    read["model"]["vocab"] = vocabulary
    file.write_text(json.dumps(read))
    return folder


async def test_a_teacher_with_other_tokens_is_refused(make_config, small_model, teacher, tmp_path):
    odd = other_words(small_model, tmp_path / "odd")
    with pytest.raises(ConfigError) as error:
        await one_step(make_config(teacher=str(odd)))
    assert "has another vocabulary than the student: 185 of" in str(error.value)
    assert str(error.value).endswith("take a teacher with the student's tokenizer")
    assert "\n" not in str(error.value)
    assert not make_config().out.exists()

    async with serving(teacher, tokenizer=load_tokenizer(str(odd))) as (_, url):
        with pytest.raises(
            ConfigError,
            match=r"another vocabulary than the student: \d+ of \d+ tokens differ, such as \d+, here '\w', there '\w'",
        ):
            await one_step(make_config(teacher=url))


async def test_a_server_of_a_smaller_vocabulary_is_refused(make_config, teacher, tmp_path):
    small = load_model(str(teacher))
    small.resize_token_embeddings(small.config.vocab_size - 3)
    save_model(small, load_tokenizer(str(teacher)), tmp_path / "cut")
    with pytest.raises(ConfigError, match=r"another vocabulary than the student: it has \d+ tokens, the student \d+"):
        await one_step(make_config(teacher=str(tmp_path / "cut")))
    async with serving(tmp_path / "cut") as (_, url):
        with pytest.raises(ConfigError, match=r"cannot score: RequestError: .* token id exceeds the vocabulary"):
            await one_step(make_config(teacher=url))


async def test_a_server_that_is_not_there_is_one_line_at_the_start(make_config, monkeypatch):
    monkeypatch.setattr("agentrl.train.teacher._START_S", 0.0)
    with pytest.raises(ConfigError) as error:
        await one_step(make_config(teacher="http://127.0.0.1:1/generate"))
    assert str(error.value).startswith(
        "teacher http://127.0.0.1:1 cannot score: EngineError: http://127.0.0.1:1/generate"
    )
    assert str(error.value).endswith("is an SGLang server there, of a model with the student's tokenizer?")
    assert "\n" not in str(error.value)


async def test_a_teacher_of_another_architecture_and_of_more_tokens_will_do(make_config, small_model, tmp_path):
    """The vocabulary of a larger model is often padded to a larger size."""
    model = load_model(str(small_model))
    model.resize_token_embeddings(model.config.vocab_size + 7)
    save_model(model, load_tokenizer(str(small_model)), tmp_path / "padded")
    config = make_config(teacher=str(tmp_path / "padded"))
    found = await open_teacher(config, load_tokenizer(str(small_model)), torch.device("cpu"))
    assert found is not None


@pytest.mark.thorough
async def test_every_segment_of_an_episode_has_its_scores(make_config, teacher, renderer):
    """Rows of several lengths and episodes come back in order, whatever the micro-batches."""
    trainer = await one_step(make_config(steps=1))
    trajectories = [t for group in trainer.kept[0] for t in group]
    config = make_config(teacher=str(teacher), micro_batch_tokens=1)
    several = [*trajectories, Trajectory()]
    of_one = await open_teacher(config, trainer.tokenizer, torch.device("cpu"))
    of_many = await open_teacher(make_config(teacher=str(teacher)), trainer.tokenizer, torch.device("cpu"))
    for found in (of_one, of_many):
        found.read(several)
        for trajectory in trajectories:
            row, expected = by_hand(teacher, trajectory)
            (taught,) = found.teach(trajectory, [row])
            gaps = [theirs - ours for theirs, ours in zip(expected, row.log_probs, strict=True)]
            assert taught.weights == pytest.approx(gaps, abs=1e-4)


async def test_many_questions_wait_for_a_slot(teacher, make_config):
    async with serving(teacher) as (asked, url):
        server = ServedTeacher(make_config(teacher=url).teacher, concurrency=2)
        trainer = await one_step(make_config(steps=1))
        await asyncio.wait_for(server.ask([t for group in trainer.kept[0] for t in group]), 30)
        await server.close()
    assert len(asked) == 12


async def test_tokens_that_are_masked_after_they_were_scored_are_not_taught(teacher, make_config):
    """Such as those of a segment of its own, or of a turn: each of the others keeps its score."""
    trainer = await one_step(make_config(steps=1))
    trajectory = next(t for group in trainer.kept[0] for t in group if len(t.turns) == 3)
    found = await open_teacher(make_config(teacher=str(teacher)), trainer.tokenizer, torch.device("cpu"))
    found.read([trajectory])
    whole = found.teach(trajectory, rows_of(trajectory))[0]
    trajectory.mask("off_policy", turn=0)
    part = found.teach(trajectory, rows_of(trajectory))[0]

    assert 0 < len(part.positions) < len(whole.positions)
    assert part.weights == whole.weights[-len(part.positions) :]
    trajectory.mask("off_policy")
    assert found.teach(trajectory, rows_of(trajectory)) == []
    assert found.metrics([trajectory, Trajectory()]) == {"teacher_kl": 0.0}

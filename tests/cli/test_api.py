"""`agentrl eval --api`: results that can be gone on with, figures, demonstrations."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter

import pytest

from agentrl import Trajectory
from agentrl.chat.client import ChatModel
from agentrl.monitor.by_key import estimate, pass_at, passes
from agentrl.testing import call
from agentrl.testing.chat_server import Answer, chat_server

ENV = ("my_env.py:Capitals", "--data", "tasks.jsonl")
ASK = (*ENV, "--model", "gpt")
CITIES = {"France": "Paris", "Peru": "Lima"}


class Model:
    """Looks up the country, then answers: right about France, and every second time about Peru."""

    def __init__(self):
        self.asked = Counter()
        self.answers = Counter()
        self.before = lambda: None

    def __call__(self, messages, tools):
        country = next(name for name in CITIES if name in messages[0]["content"])
        self.asked[country] += 1
        self.before()
        if messages[-1]["role"] == "user":
            return call("search", query=country)
        self.answers[country] += 1
        return CITIES[country] if country == "France" or self.answers[country] % 2 else "Rome"


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def api(model):
    with chat_server(model) as server:
        yield server


def rows(file) -> list[Trajectory]:
    return [Trajectory.from_json(json.loads(line)) for line in file.read_text().splitlines()]


def test_eval_says_how_well_and_that_nothing_can_be_trained(folder, agentrl, api):
    args = ("eval", *ASK, "--api", api.url, "--samples", "2", "--out", "r.jsonl", "--concurrency", "1")
    assert agentrl(*args, "--json", "--prices", "10,100", "--by", "about") == 0, agentrl.stderr
    figures = json.loads(agentrl.stdout)
    assert (figures["reward_mean"], figures["episodes"], figures["failed"]) == (0.75, 4, 0)
    assert (figures["pass_at"]["1"]["mean"], figures["pass_at"]["2"]["mean"]) == (0.75, 1.0)
    low, high = figures["reward_interval"]
    assert 0.5 <= low < 0.75 < high <= 1.0
    assert figures["by"]["values"]["Peru"]["mean"] == 0.5
    assert figures["trainable"] is False
    assert figures["player"] == f"gpt at {api.url.split('/')[2]}"
    assert figures["trained_tokens"] == 0
    usage = figures["usage"]
    assert usage["requests"] == len(api.requests) == 8
    assert usage["cost"] == pytest.approx(
        (10 * usage["prompt_tokens"] + 100 * usage["completion_tokens"]) / 1e6, abs=1e-6
    )
    written = rows(folder / "r.jsonl")
    assert [t.task.metadata["about"] for t in written] == ["France", "France", "Peru", "Peru"]
    assert all(t.ledger.masked == {"off_policy": t.ledger.sampled} for t in written)
    assert all("temperature" not in body for body in api.requests), "only if it is given"
    assert agentrl(*args) == 0
    assert "nothing here can be trained" in agentrl.stdout
    assert "pass@2" in agentrl.stdout
    assert "r.jsonl: 4 finished\n" in agentrl.stderr
    assert len(api.requests) == 8, "nothing is played again"


def test_options_reach_the_request(folder, agentrl, api, monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret-secret")
    args = ("eval", *ASK, "--api", api.url, "--temperature", "0", "--api-key-env", "MY_KEY", "--limit", "1")
    settings = ("--set", "engine_config.top_p=0.5", "--set", "limits.max_tokens_per_turn=99")
    assert agentrl(*args, *settings, "--out", "r.jsonl") == 0
    body = api.requests[0]
    assert (body["model"], body["temperature"], body["top_p"], body["max_tokens"]) == ("gpt", 0, 0.5, 99)
    assert api.headers[0]["Authorization"] == "Bearer secret-secret"
    assert "secret-secret" not in (folder / "r.jsonl").read_text() + agentrl.stdout + agentrl.stderr


def test_what_is_finished_is_kept_and_a_torn_row_is_dropped(folder, agentrl, api, model):
    out, args = folder / "r.jsonl", ("eval", *ASK, "--api", api.url, "--samples", "3", "--out", "r.jsonl")

    def interrupt():
        if sum(model.asked.values()) == 7:
            os.kill(os.getpid(), signal.SIGINT)

    model.before = interrupt
    assert agentrl(*args, "--concurrency", "1") == 130
    assert agentrl.stderr == "interrupted: finished episodes are in r.jsonl; the same command resumes with the rest\n"
    kept = out.read_text().splitlines(keepends=True)
    assert len(kept) == 3
    out.write_text("".join(kept[:2]) + kept[2][: len(kept[2]) // 2])  # as a kill -9 leaves it
    model.before = lambda: None
    before = len(api.requests)
    assert agentrl(*args) == 0, agentrl.stderr
    assert "r.jsonl: 2 finished, 1 torn row dropped\n" in agentrl.stderr
    assert len(api.requests) - before == 2 * (6 - 2)
    assert len(rows(out)) == 6
    assert out.read_text().startswith(kept[0])


def test_episodes_that_failed_are_played_again(folder, agentrl, api, model):
    down = True

    def reply(messages, tools):
        return Answer("down", 404) if down and "Peru" in messages[0]["content"] else model(messages, tools)

    with chat_server(reply) as server:
        args = ("eval", "my_env.py:Unreliable", *ENV[1:], "--model", "gpt", "--api", server.url, "--out", "r.jsonl")
        assert agentrl(*args, "--json") == 2, "a 404 will always be one"
        assert "HTTP 404: down; correct its address" in agentrl.stderr
        down = False
        for _ in range(2):
            assert agentrl(*args, "--json") == 0
            assert json.loads(agentrl.stdout)["failed"] == 1
    assert "1 that failed are played again" in agentrl.stderr


def test_an_error_in_the_middle_says_what_is_kept(folder, agentrl, api, model):
    def reply(messages, tools):
        return model(messages, tools) if len(server.requests) <= 2 else Answer("no money", 402)

    with chat_server(reply) as server:
        args = ("eval", *ASK, "--api", server.url, "--out", "r.jsonl", "--concurrency", "1")
        assert agentrl(*args) == 2
    assert "HTTP 402: no money" in agentrl.stderr
    assert agentrl.stderr.endswith("; 1 finished episodes are in r.jsonl: run the same command again to resume\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("--model", "gpt-2"), "model='gpt', not 'gpt-2'"),
        (("--set", "limits.turns=3"), "settings.limits.turns=16, not 3"),
        (("--temperature", "0.5"), "settings.temperature=None, not 0.5"),
        (("--tokenizer", "smollm2-135m"), "tokenizer='tiny', not 'smollm2-135m'"),
        (("--data", "other.jsonl"), "an episode of task 'tasks-1', which is not among these"),
    ],
)
def test_a_file_of_something_else_is_refused_in_one_line(folder, agentrl, api, change, said):
    (folder / "other.jsonl").write_text((folder / "tasks.jsonl").read_text().replace("What is", "Name"))
    args = ("eval", *ASK, "--api", api.url, "--out", "r.jsonl", "--limit", "1")
    assert agentrl(*args) == 0
    before = (folder / "r.jsonl").read_text()
    assert agentrl(*args, *change) == 2
    assert agentrl.stderr.startswith("error: --out r.jsonl holds ")
    assert said in agentrl.stderr
    assert agentrl.stderr.endswith("; name another file\n")
    assert (folder / "r.jsonl").read_text() == before


def test_a_file_of_another_command_is_refused(folder, agentrl, api):
    assert agentrl("play", *ENV, "--player", "my_env.py:gold", "--out", "r.jsonl") == 0
    assert agentrl("eval", *ASK, "--api", api.url, "--out", "r.jsonl") == 2
    assert "--out r.jsonl holds results of api=None, not 'http://" in agentrl.stderr


def test_demonstrations_are_what_was_good_enough_and_it_says_how_many(folder, agentrl, api):
    args = ("eval", *ASK, "--api", api.url, "--demonstrations", "demos.jsonl")
    assert agentrl(*args, "--samples", "4") == 0, agentrl.stderr
    assert "demos.jsonl: 6 of 8 episodes, of 2 of 2 tasks; look at the first with: agentrl show demos" in agentrl.stdout
    assert "requests 16" in agentrl.stdout
    demos = rows(folder / "demos.jsonl")
    assert [t.reward for t in demos] == [1.0] * 6
    assert all(t.ledger.trained == t.ledger.sampled > 0 for t in demos), "they may be imitated"
    assert {t.task.split for t in demos} == {"train"}
    assert sorted(file.name for file in folder.glob("demos*")) == ["demos.jsonl"]


def test_with_out_all_episodes_are_kept_and_more_samples_add_demonstrations(folder, agentrl, api):
    args = ("eval", *ASK, "--api", api.url, "--out", "r.jsonl", "--demonstrations", "demos.jsonl")
    assert agentrl(*args, "--samples", "2", "--min-reward", "0") == 0, agentrl.stderr
    assert len(rows(folder / "r.jsonl")) == len(rows(folder / "demos.jsonl")) == 4
    assert agentrl(*args, "--samples", "4", "--json") == 0, agentrl.stderr
    assert json.loads(agentrl.stdout)["episodes"] == 8
    assert "demos.jsonl: 6 of 8 episodes" in agentrl.stderr
    assert (len(rows(folder / "r.jsonl")), len(rows(folder / "demos.jsonl"))) == (8, 6)
    assert len(api.requests) == 16, "nothing is played again"
    assert agentrl("eval", *ASK, "--api", api.url, "--out", "r.jsonl") == 2, "held-out tasks are another split"
    assert "split='train', not 'eval'" in agentrl.stderr


def test_demonstrations_of_a_model_that_runs_here(folder, agentrl):
    scripted = ("--engine", "scripted", "--set", "engine_config.turns=said.py:say")
    (folder / "said.py").write_text("def say(ids):\n    return 'Paris'\n")
    args = ("eval", *ENV, "--model", "tiny", *scripted, "--demonstrations", "demos.jsonl")
    assert agentrl(*args) == 0, agentrl.stderr
    (demo,) = rows(folder / "demos.jsonl")
    assert (demo.reward, demo.task.split, demo.ledger.trained) == (1.0, "train", demo.ledger.sampled)
    assert sorted(file.name for file in folder.glob("demos*")) == ["demos.jsonl"]
    assert agentrl(*args, "--out", "demos.jsonl") == 2
    assert "--demonstrations demos.jsonl is the file of --out; name another file" in agentrl.stderr


def test_an_interrupted_play_goes_on_too(folder, agentrl, api, model):
    def interrupt():
        if sum(model.asked.values()) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    model.before = interrupt
    args = ("eval", *ASK, "--api", api.url, "--demonstrations", "demos.jsonl")
    assert agentrl(*args, "--concurrency", "1") == 130
    assert "finished episodes are in demos.jsonl.unfinished; the same command resumes" in agentrl.stderr
    assert not (folder / "demos.jsonl").exists()
    assert agentrl(*args, "--min-reward", "0") == 0
    assert "demos.jsonl.unfinished: 1 finished" in agentrl.stderr
    assert len(rows(folder / "demos.jsonl")) == 2


def test_what_is_finished_is_not_played_and_paid_again(folder, agentrl, api):
    args = ("eval", *ASK, "--api", api.url, "--demonstrations", "demos.jsonl")
    assert agentrl(*args) == 0, agentrl.stderr
    asked, before = len(api.requests), (folder / "demos.jsonl").read_text()
    assert agentrl(*args) == 2
    assert agentrl.stderr == "error: demos.jsonl holds 2 episodes; name another file, or remove it\n"
    assert len(api.requests) == asked
    assert (folder / "demos.jsonl").read_text() == before


@pytest.mark.thorough
def test_an_env_that_has_changed_since_is_said(folder, agentrl, api):
    args = ("eval", *ASK, "--api", api.url, "--out", "r.jsonl")
    assert agentrl(*args, "--limit", "1") == 0
    assert agentrl(*args) == 0
    assert "changed" not in agentrl.stderr
    with (folder / "my_env.py").open("a") as env:
        env.write("# harder\n")
    assert agentrl(*args, "--samples", "2") == 0
    warning = "my_env.py has changed since 2 of these episodes were played; name another file to keep them apart"
    assert [line for line in agentrl.stderr.splitlines() if "changed" in line] == [f"warning: {warning}"]
    assert len({t.info["played"]["source"] for t in rows(folder / "r.jsonl")}) == 2


def test_another_reward_scores_what_an_api_plays(folder, agentrl, api):
    args = ("eval", *ASK, "--api", api.url, "--samples", "2", "--out", "r.jsonl", "--json")
    assert agentrl(*args, "--set", "reward=my_env.py:always_one") == 0, agentrl.stderr
    assert json.loads(agentrl.stdout)["reward_mean"] == 1.0
    assert agentrl(*args) == 2
    assert "settings.reward='my_env.py:always_one', not None" in agentrl.stderr


def test_where_nothing_listens_one_line_says_so(folder, agentrl, monkeypatch):
    monkeypatch.setattr("agentrl.cli.api._PATIENCE_S", (0.01, None))
    assert agentrl("eval", *ASK, "--api", "http://127.0.0.1:9/v1", "--out", "r.jsonl") == 2
    assert agentrl.stderr == "error: nothing listens at 127.0.0.1:9; start the server, or correct --api\n"


def test_an_address_without_v1_is_hinted_at(folder, agentrl, api):
    assert agentrl("eval", *ASK, "--api", api.url.removesuffix("/v1")) == 2
    assert f"correct its address: most end with /v1, as in {api.url}" in agentrl.stderr


TOOLLESS = """
from agentrl import Env, StepResult


class Toolless(Env):
    async def step(self, action):
        return StepResult(done=True)

    async def score(self, trajectory):
        return float(trajectory.answer == self.task.label)
"""


def test_the_table_holds_what_says_something(folder, agentrl, api):
    assert agentrl("eval", *ASK, "--api", api.url) == 0
    for row in ("trained tokens", "masked tokens", "prefix breaks"):
        assert row not in agentrl.stdout
    assert "tool call rate" in agentrl.stdout
    assert re.search(r"trainable +│ no", agentrl.stdout)
    (folder / "toolless.py").write_text(TOOLLESS)
    with chat_server(lambda messages, tools: "Paris") as server:
        args = ("--model", "gpt", "--api", server.url)
        assert agentrl("eval", "toolless.py:Toolless", "--data", "tasks.jsonl", *args) == 0
    for row in ("tool call rate", "episodes with tools", "tool errors", "bad call rate"):
        assert row not in agentrl.stdout


def test_no_episode_has_no_mean(folder, agentrl):
    with chat_server(lambda messages, tools: Answer("down", 501)) as server:
        chat = "agentrl.cli.api.Api.chat"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chat, lambda self: ChatModel(base_url=server.url, model="gpt", retries=0))
            assert agentrl("eval", *ASK, "--api", server.url) == 2
    assert re.search(r"reward mean +│ none", agentrl.stdout)


def test_what_the_tokens_do_not_carry_is_not_imitated_and_counted(folder, agentrl):
    def reply(messages, tools):
        if messages[-1]["role"] == "tool" and "Peru" in messages[0]["content"]:
            return "Lima <|im_end|>"
        return Model()(messages, tools)

    with chat_server(reply) as server:
        args = ("eval", *ASK, "--api", server.url, "--demonstrations", "demos.jsonl")
        assert agentrl(*args, "--min-reward", "0") == 0
    assert "masked in 1 episodes, from the first turn" in agentrl.stdout
    france, peru = (t.ledger for t in rows(folder / "demos.jsonl"))
    assert france.trained == france.sampled
    assert 0 < peru.trained < peru.sampled
    assert set(peru.masked) == {"off_policy"}


AGENT = """
from agentrl.gateway.agent import AgentEnv


class Agent(AgentEnv):
    async def run(self, task, model):
        pass
"""


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ("play", *ENV),
            "playing yourself needs a terminal; name a player (--player file.py:function), or use agentrl eval",
        ),
        (("eval", *ASK, "--api", "localhost"), "the URL 'localhost' is not valid; write http://host:port/v1"),
        (("eval", *ASK, "--api", "http://a/v1", "--engine", "sglang"), "one model plays at a time"),
        (("eval", *ASK, "--api", "http://a/v1", "--prices", "cheap"), "--prices cheap: write two numbers"),
        (("eval", *ASK, "--api", "http://a/v1", "--samples", "2", "--temperature", "0"), "all samples are equal"),
        (("eval", "my_env.py:Capitals", "--model", "tiny"), "makes no tasks; name a file of tasks"),
    ],
)
def test_what_cannot_be_meant_is_one_line(folder, agentrl, args, said):
    (folder / "agent.py").write_text(AGENT)
    assert agentrl(*args) == 2
    assert said in agentrl.stderr
    assert agentrl.stderr.count("\n") == 1


def test_a_server_that_is_down_is_said_with_how_to_go_on(folder, agentrl):
    with chat_server(lambda messages, tools: Answer("{}", 401)) as server:
        assert agentrl("eval", *ASK, "--api", server.url, "--out", "r.jsonl", "--api-key-env", "NO_SUCH") == 2
    assert "refuses a request without a key, as $NO_SUCH is not set (HTTP 401" in agentrl.stderr


# pass@k


def trajectory(reward):
    found = Trajectory()
    found.reward, found.stop = reward, "done"
    return found


@pytest.mark.parametrize(
    ("n", "passed", "k", "share"), [(4, 2, 1, 0.5), (4, 2, 2, 5 / 6), (4, 0, 4, 0.0), (4, 2, 3, 1.0)]
)
def test_pass_at_k_is_the_share_of_sets_with_one_that_passed(n, passed, k, share):
    assert estimate(n, passed, k) == pytest.approx(share)


def test_pass_at_k_counts_tasks_that_have_k_episodes():
    groups = [[trajectory(reward) for reward in rewards] for rewards in ([1.0, 0.0], [0.0, 0.0], [1.0])]
    assert pass_at(1, groups).mean == pytest.approx((0.5 + 0 + 1) / 3)
    two = pass_at(2, groups)
    assert (two.mean, two.tasks) == (0.5, 2)
    assert pass_at(1, groups, least=0.0).mean == 1.0
    assert [*passes(groups)] == [1, 2]
    assert two.low is not None
    assert (two.low, two.high) == (0.0, 1.0)

"""train, eval and serve with the tiny model, end to end."""

from __future__ import annotations

import asyncio
import errno
import json
import re
import signal
import urllib.request

import openai
import pytest
import yaml

from agentrl import StopReason, Trajectory
from agentrl.cli.train import build_config

pytest.importorskip("torch", reason="the embedded engine needs torch: pip install -e '.[train]'")

SMALL = """\
steps: 1
prompts_per_step: 2
group_size: 2
limits: {turns: 2, max_tokens_per_turn: 8}
device: cpu
"""


@pytest.fixture
def run(folder, agentrl):
    """A finished run of one step, in run/."""
    (folder / "small.yaml").write_text(SMALL)
    command = ("train", "my_env.py:Capitals", "--data", "tasks.jsonl", "--out", "run", "--config", "small.yaml")
    assert agentrl(*command, "--eval-data", "tasks.jsonl", "--set", "limits.turns=3") == 0, agentrl.stderr
    return folder / "run"


def metrics(run) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.thorough
def test_the_best_model_is_evaluated_and_trained_further(run, agentrl):
    best = json.loads((run / "summary.json").read_text())["best"]
    assert re.search(rf"best, step {best['step']} +{best['mean']:.3f} \(.* to .*\): run/best\n", agentrl.stdout)
    args = ("eval", "my_env.py:Capitals", "--data", "tasks.jsonl", "--json")
    assert agentrl(*args, "--model", "run/best") == 0, agentrl.stderr
    assert json.loads(agentrl.stdout)["reward_mean"] == pytest.approx(best["mean"])
    assert agentrl("train", "--resume-from", "7", "--out", "run") == 2
    assert "run has no checkpoint 7; the steps of its checkpoints: 0, 1" in agentrl.stderr
    assert agentrl("train", "--resume-from", "best", "--out", "run", "--steps", "2") == 0, agentrl.stderr
    assert f"resuming after step {best['step']}\n" in agentrl.stdout
    assert [line["step"] for line in metrics(run)] == [1, 2]


@pytest.mark.thorough
def test_train_then_everything_else(run, agentrl):
    assert "agentrl eval my_env.py:Capitals --model run --data tasks.jsonl" in agentrl.stdout
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["steps"], config["limits"]) == (1, {"turns": 3, "max_tokens_per_turn": 8})
    assert json.loads((run / "summary.json").read_text())["steps"] == 1

    # eval takes the run's limits, and writes what was played
    args = ("eval", "my_env.py:Capitals", "--model", "run", "--data", "tasks.jsonl")
    assert agentrl(*args, "--out", "eval.jsonl", "--json", "--limit", "1") == 0
    figures = json.loads(agentrl.stdout)
    assert (figures["episodes"], figures["failed"]) == (1, 0)
    (line,) = (run.parent / "eval.jsonl").read_text().splitlines()
    played = Trajectory.from_json(json.loads(line))
    assert (played.task.split, played.reward) == ("eval", figures["reward_mean"])
    assert played.stop is StopReason.DONE or max(turn.sampled_tokens for turn in played.turns) == 8
    assert figures["sampled_tokens"] == played.ledger.sampled
    assert agentrl(*args) == 0
    assert re.search(r"reward mean\W+\d\.\d{3}", agentrl.stdout)
    assert (
        agentrl(*args, "--samples", "3", "--temperature", "1", "--json", "--set", "limits.max_tokens_per_turn=2") == 0
    )
    figures = json.loads(agentrl.stdout)
    assert figures["episodes"] == 6
    assert figures["sampled_tokens"] <= 6 * 3 * 2
    assert "best_of_3" in figures

    # the run's folder names its trajectories and its tokenizer
    assert agentrl("show", "run") == 0
    assert "What is the capital of France?" in agentrl.stdout

    # --resume needs nothing but the folder, and may be given more steps
    assert agentrl("train", "--resume", "--out", "run", "--steps", "2") == 0
    assert [line["step"] for line in metrics(run)] == [1, 2]
    assert yaml.safe_load((run / "config.yaml").read_text())["steps"] == 2


def test_eval_plays_with_any_engine(folder, agentrl):
    (folder / "script.py").write_text("def say(ids):\n    return 'Paris'\n")
    args = ("eval", "my_env.py:Capitals", "--model", "tiny", "--data", "tasks.jsonl", "--json")
    assert agentrl(*args, "--engine", "scripted", "--set", "engine_config.turns=script.py:say") == 0, agentrl.stderr
    figures = json.loads(agentrl.stdout)
    assert (figures["reward_mean"], figures["episodes"]) == (0.5, 2), "right of France, wrong of Peru"
    assert agentrl(*args, "--engine", "sglang") == 2
    assert "engine sglang: engine_config.url is missing" in agentrl.stderr
    assert agentrl(*args, "--engine", "vllm") == 2
    assert "unknown engine 'vllm'; use local, sglang, scripted or a path" in agentrl.stderr


def test_eval_says_at_once_that_no_engine_listens(folder, agentrl, monkeypatch):
    monkeypatch.setattr("agentrl.cli.api._PATIENCE_S", (0.01, None))
    args = ("eval", "my_env.py:Capitals", "--model", "tiny", "--data", "tasks.jsonl", "--engine", "sglang")
    assert agentrl(*args, "--set", "engine_config.url=http://127.0.0.1:9") == 2
    assert agentrl.stderr == "error: nothing listens at 127.0.0.1:9; start the server, or correct engine_config.url\n"


def test_train_refuses_by_name_an_engine_that_takes_no_weights(folder, agentrl):
    command = ("train", "my_env.py:Capitals", "--data", "tasks.jsonl", "--out", "run")
    assert agentrl(*command, "--set", "engine=scripted", "--set", "engine_config.turns=[]") == 2
    assert "engine scripted cannot take the trained weights: use local or sglang" in agentrl.stderr
    assert not (folder / "run").exists()


def test_train_says_that_no_sglang_answers_and_leaves_no_folder(folder, agentrl):
    command = ("train", "my_env.py:Capitals", "--data", "tasks.jsonl", "--out", "run")
    assert agentrl(*command, "--set", "engine.kind=sglang", "--set", "engine.url=http://127.0.0.1:9") == 2
    assert "engine_config.url http://127.0.0.1:9: no SGLang server answers" in agentrl.stderr
    assert not (folder / "run").exists()


@pytest.mark.thorough
def test_a_run_that_a_canary_stops_says_so_in_one_line_and_can_go_on(folder, agentrl):
    (folder / "small.yaml").write_text(SMALL)
    command = ("train", "my_env.py:Capitals", "--data", "tasks.jsonl", "--out", "run", "--config", "small.yaml")
    assert agentrl(*command, "--steps", "4", "--set", "canaries.no_tool_calls=2") == 3
    assert re.fullmatch(
        r"stopped: steps 1 to 2: none of 8 episodes called a tool.*; "
        r"resume with: agentrl train --resume --out run\n",
        agentrl.stderr,
    )
    assert len(metrics(folder / "run")) == 2
    assert agentrl("train", "--resume", "--out", "run", "--set", "canaries=null") == 0, agentrl.stderr
    assert len(metrics(folder / "run")) == 4


@pytest.mark.thorough
def test_eval_takes_the_runs_reward_for_its_own_env_only(run, agentrl):
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("reward: null", "reward: my_env.py:always_one"))
    for env, mean in (("my_env.py:Capitals", 1.0), ("my_env.py:Unreliable", 0.0)):
        assert agentrl("eval", env, "--model", "run", "--data", "tasks.jsonl", "--json") == 0
        assert json.loads(agentrl.stdout)["reward_mean"] == mean


def test_flags_win_over_the_file_and_merge_into_it(folder):
    (folder / "train.yaml").write_text(SMALL + "warm_start: {demonstrations: a.jsonl, steps: 7}\n")
    flags = {"env": "e:E", "data": "d", "out": "o", "steps": 5, "warm_start": {"demonstrations": "b.jsonl"}}
    config = build_config(folder / "train.yaml", flags, resume=False)
    assert (config.steps, config.group_size) == (5, 2)
    assert config.warm_start is not None
    assert (str(config.warm_start.demonstrations), config.warm_start.steps) == ("b.jsonl", 7)


@pytest.mark.thorough
def test_interrupted_training_says_how_to_go_on(run, agentrl, monkeypatch):
    from agentrl.train import Trainer

    async def collect(self, step):
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(60)  # the cancellation comes in here

    monkeypatch.setattr(Trainer, "collect", collect)
    assert agentrl("train", "--resume", "--out", "run", "--steps", "9") == 130
    assert "resuming after step 1" in agentrl.stdout
    assert agentrl.stderr == "interrupted: resume with: agentrl train --resume --out run\n"


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "run/trajectories"),
            "No space left on device: run/trajectories; free some space",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", "run/index"),
            "Permission denied: run/index; take a place that you may read and write",
        ),
        (UnicodeEncodeError("ascii", "caf\u00e9", 3, 4, "no"), "'\u00e9' cannot be written as ascii: set PYTHONUTF8=1"),
        (
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"),
            "a file is not UTF-8: convert the file, such as with iconv (",
        ),
    ],
    ids=["full", "forbidden", "ascii", "not utf-8"],
)
def test_an_error_of_the_disk_says_how_to_go_on_wherever_the_folder_was_named(
    folder, agentrl, monkeypatch, raised, says
):
    from agentrl.train import Trainer

    async def collect(self, step):
        raise raised

    monkeypatch.setattr(Trainer, "collect", collect)
    (folder / "train.yaml").write_text(SMALL + "env: my_env.py:Capitals\ndata: tasks.jsonl\nout: my run\n")
    assert agentrl("train", "--config", "train.yaml") == 1
    assert agentrl.stderr.startswith(f"error: {says}")
    assert "test_model_commands.py" in agentrl.stderr or not isinstance(raised, UnicodeDecodeError), "its place"
    assert agentrl.stderr.endswith("; resume with: agentrl train --resume --out 'my run'\n")
    assert agentrl.stderr.count("\n") == 1


@pytest.mark.thorough
def test_serve_speaks_sglangs_protocol_until_interrupted_and_warns_where_others_reach_it(start):
    process = start("serve", "--model", "tiny", "--port", "0", "--device", "cpu", "--host", "0.0.0.0")
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"tiny at http://0\.0\.0\.0:(\d+), .*/generate /health", line)
    assert found, line
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2, "temperature": 0}, "return_logprob": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{found[1]}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        answer = json.load(response)
    assert len(answer["output_ids"]) == len(answer["meta_info"]["output_token_logprobs"]) <= 2
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 0
    assert re.fullmatch(r"listening at 0\.0\.0\.0 without a key: .*--api-key.*\n", stderr), "and nothing else"


@pytest.mark.thorough
def test_serve_speaks_to_the_clients_of_openai_and_anthropic(start):
    process = start("serve", "--model", "tiny", "--openai", "--port", "0", "--device", "cpu", "--api-key", "secret")
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"tiny at (http://127\.0\.0\.1:\d+), .*/v1/chat/completions /v1/responses /v1/messages", line)
    assert found, line
    with openai.OpenAI(base_url=f"{found[1]}/v1", api_key="secret") as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        ask = {"model": "tiny", "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 4, "temperature": 0}
        whole = client.chat.completions.create(**ask)
        assert 0 < whole.usage.completion_tokens <= 4
        streamed = "".join(
            chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**ask, stream=True)
        )
        assert streamed == whole.choices[0].message.content
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[1] == ""
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", ""), "error: host '' would listen at every address; write 0.0.0.0 if that is meant"),
        (("--api-key", ""), "error: the API key must be printable ASCII without spaces, and not empty"),
    ],
)
def test_what_serve_cannot_be_is_said_before_a_model_is_loaded(agentrl, options, said):
    assert agentrl("serve", "--model", "no-such-model", *options) == 2
    assert agentrl.stderr.strip() == said


def test_serve_says_whom_it_trusts(agentrl):
    assert agentrl("serve", "--help") == 0
    said = " ".join(agentrl.stdout.split())
    for words in ("AGENTRL_API_KEY", "everyone who reaches the port", "docs/serve.md"):
        assert words in said


def test_a_port_that_is_taken_is_named(agentrl):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert agentrl("serve", "--model", "tiny", "--port", str(port), "--device", "cpu") == 2
    assert agentrl.stderr.startswith(f"error: cannot listen at 127.0.0.1:{port}: ")
    assert agentrl.stderr.endswith("choose another --host or --port\n")


def test_eval_by_a_key_of_the_metadata(folder, agentrl):
    (folder / "script.py").write_text("def say(ids):\n    return 'Paris'\n")
    args = ("eval", "my_env.py:Capitals", "--model", "tiny", "--data", "tasks.jsonl", "--engine", "scripted")
    args = (*args, "--set", "engine_config.turns=script.py:say", "--by")
    assert agentrl(*args, "about", "--json") == 0, agentrl.stderr
    found = json.loads(agentrl.stdout)["by"]
    assert found["key"] == "about"
    assert found["values"]["Peru"] == {"mean": 0.0, "interval": [0.0, 0.0], "tasks": 1, "failed": 0}
    assert (found["average"]["mean"], found["average"]["tasks"]) == (0.5, 2)
    assert agentrl(*args, "about") == 0
    assert re.search(r"France\W+1\.000\W+1\.000 to 1\.000\W+1\W+0\W", agentrl.stdout)
    assert re.search(r"average\W+0\.500\W+0\.500 to 0\.500\W+2\W+0\W", agentrl.stdout)
    assert agentrl(*args, "level", "--out", "played.jsonl") == 2
    assert agentrl.stderr == (
        "error: tasks.jsonl:1: --by level: the metadata of task 'tasks-1' has no such key; its keys are: about; "
        "other refused lines: 2\n"
    )
    assert not (folder / "played.jsonl").exists()


def test_eval_by_the_source_of_published_rows(folder, agentrl):
    rows = [
        {"data_source": source, "prompt": "?", "reward_model": {"target": []}} for source in ("nq", "nq", "musique")
    ]
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "script.py").write_text("def say(ids):\n    return 'Paris'\n")
    args = ("--model", "tiny", "--data", "test.jsonl", "--engine", "scripted", "--by", "data_source", "--json")
    assert agentrl("eval", "my_env.py:Capitals", *args, "--set", "engine_config.turns=script.py:say") == 0
    assert {name: score["tasks"] for name, score in json.loads(agentrl.stdout)["by"]["values"].items()} == {
        "nq": 2,
        "musique": 1,
    }


def test_eval_by_a_key_shows_failures_apart(folder, agentrl):
    (folder / "script.py").write_text("def say(ids):\n    return 'Paris'\n")
    args = ("eval", "my_env.py:Unreliable", "--model", "tiny", "--data", "tasks.jsonl", "--engine", "scripted")
    assert agentrl(*args, "--set", "engine_config.turns=script.py:say", "--by", "about") == 0, agentrl.stderr
    assert re.search(r"France\W+1\.000\W+1\.000 to 1\.000\W+1\W+0\W", agentrl.stdout)
    assert re.search(r"Peru\W+- to -\W+0\W+1\W", agentrl.stdout)
    assert re.search(r"average\W+- to -\W+1\W+1\W", agentrl.stdout)


def test_eval_of_which_every_episode_fails_ends_with_the_first_failure(folder, agentrl):
    (folder / "script.py").write_text("def say(ids):\n    return 'Paris'\n")
    (folder / "peru.jsonl").write_text((folder / "tasks.jsonl").read_text().splitlines()[-1] + "\n")
    args = ("eval", "my_env.py:Unreliable", "--model", "tiny", "--data", "peru.jsonl", "--engine", "scripted")
    assert agentrl(*args, "--set", "engine_config.turns=script.py:say") == 2
    assert re.fullmatch(
        r"error: none of 1 episodes could be played; the first: .*; fix that, and run the command again\n",
        agentrl.stderr,
    )
    assert "failed" in agentrl.stdout, "the table is printed all the same"

"""Search-R1 under a host: its published rows, and the files of examples/slime/search_r1."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from agentrl._util.loading import load_object
from agentrl.errors import InfraError
from agentrl.models import load_tokenizer
from agentrl.render import load_renderer
from agentrl.slime.check.flags import Words, plain
from agentrl_envs.search_r1.prompts import INVALID
from agentrl_envs.search_r1.retrieval import HTTPRetriever
from tests.render.markers import GIVEN, data_folder
from tests.slime.contract.aborts import PARTIAL, until
from tests.slime.contract.search_r1 import CASES, PROMPT, Case, Searcher, answer, information, retriever, row, search

ROOT = Path(__file__).parents[3]
EXAMPLE = Path(__file__).parents[3] / "examples/slime/search_r1"
DUMP = '#!/bin/sh\n[ "$1" = job ] && printf "%s\\0" "$@" > "$WORDS"\nexit 0\n'
TAKEN = ("input_key", "label_key", "metadata_key", "n_samples_per_prompt", "rollout_temperature", "rollout_top_p")
TAKEN += ("rollout_max_response_len", "rollout_max_context_len", "advantage_estimator")
TAKEN += ("custom_generate_function_path", "custom_reward_post_process_path")
SYSTEM = "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint's folder without weights, for nobody computes with them."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = load_tokenizer("tiny")
    if getattr(request, "param", "tiny") == "qwen":
        given = data_folder()
        if given is None:
            pytest.skip(f"{GIVEN} is not set: it names a folder with real tokenizers and chat templates")
        tokenizer = AutoTokenizer.from_pretrained(given / "tokenizers/qwen3")
        tokenizer.chat_template = (given / "chat_templates/Qwen-Qwen2.5-7B-Instruct.jinja").read_text()
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "eos_token_id": tokenizer.eos_token_id}))
    return folder


@pytest.fixture
def checkpoint(model: Path) -> Path:
    return model


@pytest.fixture
def renderer(model: Path) -> Any:
    return load_renderer(load_tokenizer(str(model)))


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], dict[str, Any]]:
    """What examples/slime/search_r1 holds: the YAML's `agentrl`, and the flags as bash makes them."""
    for program, text in (("ray", DUMP), ("agentrl", "#!/bin/sh\n"), ("python3", "#!/bin/sh\n")):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / program).write_text(text)
        (tmp_path / "bin" / program).chmod(0o755)
    models = tmp_path / "slime/scripts/models"
    models.mkdir(parents=True)
    (models / "qwen2.5-3B.sh").write_text("MODEL_ARGS=(--num-layers 2)\n")
    given = {"SLIME": f"{tmp_path}/slime", "MEGATRON": "/m", "MODEL": "/model", "DATA": str(tmp_path)}
    environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "WORDS": f"{tmp_path}/words", **given}
    subprocess.run(["bash", str(EXAMPLE / "run.sh")], check=True, capture_output=True, env=environment)
    words = (tmp_path / "words").read_text().split("\0")[:-1]
    flags, found = plain(Words(words[words.index("--") + 3 :]))
    assert [finding for finding in found if finding.level == "error"] == []
    settings = yaml.safe_load((EXAMPLE / "agentrl.yaml").read_text())["agentrl"]
    return settings, {name: flags[name] for name in TAKEN}


@pytest.fixture
def play(start, recipe, renderer, tmp_path):
    """`play(cases, url, **args)`: a Run of these cases with the recipe's files and a retriever at the URL."""

    def run(cases: Any, url: str, kind: str = "jsonl", env_config: Any = None, **args: Any) -> Any:
        settings, flags = recipe
        file = tmp_path / f"train.{kind}"
        rows = [row(case, index) for index, case in enumerate(cases)]
        if kind == "jsonl":
            file.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in rows), encoding="utf-8")
        else:
            arrow = pytest.importorskip("pyarrow", reason="pyarrow writes the rows: pip install pyarrow")
            pytest.importorskip("pyarrow.parquet").write_table(arrow.Table.from_pylist(rows), file)
        env_config = {**settings["env_config"], "retriever": url, **(env_config or {})}
        sizes = {"rollout_batch_size": len(rows), "over_sampling_batch_size": len(rows)}
        return start(
            [],
            engine=Searcher(renderer, tuple(cases)),
            agentrl={**settings, "env_config": env_config},
            **{"prompt_data": str(file), "global_batch_size": 10, "max_tokens_per_gpu": 8192, **flags, **sizes, **args},
        )

    return run


def check(sample: Any, case: Any, tokenizer: Tokenizer, system: str) -> None:
    """The oracle: the tokens are those of the texts one behind the other, and only the model's are trained."""
    count = sample.response_length
    prompt, response = sample.tokens[:-count], sample.tokens[-count:]
    asked = f"{system}<|im_start|>user\n{PROMPT}{case.question}\n<|im_end|>\n<|im_start|>assistant\n"
    assert prompt == tokenizer.encode(asked, add_special_tokens=False).ids
    expected: list[tuple[int, list[str]]] = []
    for turn, query in zip(case.turns, (*case.answered, ""), strict=False):
        if query is None:  # the turn ended as the template ends it, so another one begins
            expected += [(1, [turn, "<|im_end|>"]), (0, ["\n<|im_start|>assistant\n", INVALID])]
        else:
            expected += [(1, [turn]), *([(0, [information(query)])] if query else [])]
    pairs = zip(sample.loss_mask, response, strict=True)
    runs = [(mask, [token for _, token in run]) for mask, run in groupby(pairs, lambda pair: pair[0])]
    assert [mask for mask, _ in runs] == [mask for mask, _ in expected]
    for (_, tokens), (mask, texts) in zip(runs, expected, strict=True):
        whole = [token for text in texts for token in tokenizer.encode(text, add_special_tokens=False).ids]
        if mask or len(whole) <= 500:
            assert tokens == whole, texts
        else:  # the passage on Everest: 500 tokens of it, a mark and the closing tag
            head, _, mark = tokenizer.decode(tokens, skip_special_tokens=False).rpartition("…")
            assert texts[0].startswith(head)
            assert re.fullmatch(r" \[\d+ tokens cut\]</information>\n\n", mark)
            assert len(tokenizer.encode(head, add_special_tokens=False).ids) <= 500
    assert all((p < 0) == bool(m) for m, p in zip(sample.loss_mask, sample.rollout_log_probs, strict=True))
    assert sample.reward == case.reward, case.question


@pytest.mark.path("Search-R1: published rows, and the files of its recipe")
@pytest.mark.parametrize(
    ("model", "kind"), [("tiny", "jsonl"), ("tiny", "parquet"), ("qwen", "jsonl")], indirect=["model"]
)
def test_published_rows_with_the_recipes_files(host, play, model, kind):
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    qwen = "Qwen, created by" in (model / "chat_template.jinja").read_text()
    with retriever() as url:
        run = play(CASES, url, kind)
        samples, data, _ = run.train()
    assert len(samples) == 50, "ten questions, five samples of each"
    assert {s.status for s in samples} == {host.Status.COMPLETED}
    for sample in samples:
        check(sample, CASES[sample.metadata["index"]], tokenizer, SYSTEM if qwen else "")
        assert sample.metadata["split"] == "train"
    assert data["raw_reward"] == [case.reward for case in CASES for _ in range(5)]
    assert data["rewards"] == [0.0] * 50, "all samples of a question say the same"
    assert {tuple(sorted(params.items())) for params in run.engine.params if params["max_new_tokens"] > 500} == set()


@pytest.mark.path("Search-R1: published rows, and the files of its recipe")
def test_each_source_is_evaluated_apart(host, play):
    with retriever() as url:
        run = play(sorted(CASES, key=lambda case: case.source), url)
        keys = {"input_key": "prompt", "label_key": "reward_model", "metadata_key": "extra_info"}
        sampled = {"n_samples_per_eval_prompt": 1, "temperature": 0.0, "top_p": 1.0, "top_k": -1}
        run.args.eval_datasets = [
            host.eval_dataset(name=name, path=path, max_response_len=4096, **keys, **sampled)
            for name, path in load_object(f"{EXAMPLE}/slices.py:slices")(Path(run.args.prompt_data), "data_source")
        ]
        output = host.rollout.generate_rollout(run.args, 0, run.data_source, evaluation=True)
    found = {name: data["rewards"] for name, data in output.data.items()}
    assert found == {"hotpotqa": [1.0], "musique": [1.0, 0.0], "nq": [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0]}


class Server:
    """`agentrl retriever` over a corpus, in a separate process, always at the same address."""

    def __init__(self, corpus: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._corpus, self._process = corpus, self._start(corpus)
        until(self._listens, 60)

    def _listens(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def _start(self, corpus: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "agentrl", "retriever", str(corpus), "--port", str(self.port)]
        roots = os.pathsep.join(str(ROOT / part) for part in ("", "envs", "sandbox"))
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": roots}, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        self.kill()
        self._process = self._start(self._corpus)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    rows = [{"id": f"{at}", "contents": f'"Town {at}"\nThe mayor of town {at} is Mayor{at}.'} for at in range(16)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return tmp_path / "corpus.jsonl"


def town(at: int) -> Case:
    turns = (search(f"mayor of town {at}"), search(f"Mayor{at}"), answer(f"Mayor{at}"))
    return Case(f"who is the mayor of town {at}?", [f"Mayor{at}"], turns, (), 1.0)


TOWNS = tuple(town(at) for at in range(16))
LOAD = {"global_batch_size": 32, "n_samples_per_prompt": 4}


@pytest.mark.path("Search-R1: the retriever killed and started again")
def test_a_retriever_that_is_killed_under_load_costs_no_episode(host, play, corpus, failures):
    pytest.importorskip("tantivy", reason="agentrl retriever needs tantivy: pip install tantivy")
    server = Server(corpus)
    try:
        run = play(TOWNS, f"http://127.0.0.1:{server.port}/retrieve", env_config={"timeout": 120.0}, **LOAD)
        killing = threading.Thread(target=lambda: (until(lambda: len(run.engine.requests) > 80, 60), server.restart()))
        killing.start()  # 64 first turns, and some of the second: others are still to come
        samples, data, _ = run.train()
        killing.join()
    finally:
        server.kill()
    assert failures, "searches were under way when it was killed"
    assert {s.status for s in samples} == {host.Status.COMPLETED}
    assert data["raw_reward"] == [1.0] * 64, "none is lost"
    for sample in samples:
        account = sample.metadata["agentrl"]
        assert (account["turns"], account["info"]["searches"], account.get("restarts")) == (3, 2, None)
        assert account["ledger"]["sampled"] == sum(sample.loss_mask)
        assert sample.response.count("<information>Doc 1(Title: ") == 2, "no empty result"


@pytest.mark.path("Search-R1: the retriever killed and started again")
def test_a_retriever_that_stays_down_trains_nothing(host, play, corpus):
    with retriever() as url:
        pass
    samples, data, _ = play(TOWNS[:2], url, env_config={"timeout": 0.3}, global_batch_size=4).train()
    assert {s.status for s in samples} == {host.Status.FAILED}
    assert [sum(mask) for mask in data["loss_masks"]] == [0] * len(samples)
    assert not any("<information>" in sample.response for sample in samples)
    assert {s.metadata["agentrl"]["failure"]["kind"] for s in samples} == {"environment"}


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[InfraError]:
    """Requests to the retriever that got no answer."""
    found: list[InfraError] = []
    ask = HTTPRetriever._ask

    async def watched(self: HTTPRetriever, queries: Any, topk: int) -> Any:
        try:
            return await ask(self, queries, topk)
        except InfraError as exc:
            found.append(exc)
            raise

    monkeypatch.setattr(HTTPRetriever, "_ask", watched)
    return found


@pytest.mark.path("Search-R1: an aborted search goes on")
@pytest.mark.parametrize("phase", ["generate", "search"])
def test_an_aborted_episode_goes_on(host, play, phase):
    """The fourth question is the first one again: it says what is to come out."""
    slowly = "slowly, " if phase == "generate" else ""
    first = CASES[1]._replace(question=f"{slowly}{CASES[1].question}")
    enough, asked = threading.Event(), []

    def hold(query: str) -> None:
        asked.append(query)
        if query == "Daresbury" and phase == "search":
            enough.wait(60)

    def watch(state: Any) -> None:
        until(lambda: state.aborted, 60)
        enough.set()

    with retriever(hold, apart="Daresbury" if phase == "search" else "") as url:
        run = play((first, CASES[0], CASES[6], first), url, n_samples_per_prompt=2, **PARTIAL)
        watching = threading.Thread(target=watch, args=(host.rollout.GenerateState(run.args),))
        watching.start()
        samples, _, _ = run.train()
        watching.join()
        assert [s.group_index for s in samples] == [1, 1, 2, 2]
        (waiting,) = run.data_source.buffer
        assert {s.status for s in waiting} == {host.Status.ABORTED}
        assert {s.metadata["agentrl"]["resume"]["how"] for s in waiting} == {"snapshot"}
        before, searched = [list(s.tokens) for s in waiting], len(asked)
        run.args.over_sampling_batch_size = 2
        samples, data, _ = run.train(1)
    assert [s.group_index for s in samples] == [0, 0, 3, 3]
    assert data["raw_reward"] == [1.0] * 4
    for sample, tokens in zip(samples[:2], before, strict=True):
        assert (sample.tokens, sample.loss_mask) == (samples[2].tokens, samples[2].loss_mask)
        assert sample.tokens[: len(tokens)] == tokens, "what was sampled is kept"
        account = sample.metadata["agentrl"]
        assert (account["resumes"], account.get("restarts"), account["info"]["searches"]) == (1, None, 2)
    left = 0 if phase == "search" else 4
    assert len(asked) == searched + left + 4, "no search is made twice"

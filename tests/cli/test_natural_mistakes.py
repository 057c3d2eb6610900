"""Mistakes that people make when they type: each ends at once, in one line that says what to do.

"At once" is tested by what is imported: neither torch nor transformers, which take seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

ENV = '''from agentrl import Env, Task, tool
from agentrl.testing import call

class Capitals(Env):
    config: dict[str, int]

    @classmethod
    def tasks(cls, config, split):
        yield Task(prompt=f"The capital of {split}?", label=split)

    @tool
    async def look(self, place: str) -> str:
        """Look."""
        return place

    def score(self, trajectory):
        return 1.0

class Empty(Env):
    pass

def gold(task):
    yield task.label
'''
FILES = {
    "my_env.py": ENV,
    "broken.py": "def f(:\n",
    "raises.py": "1 / 0\n",
    "chat.jsonl": '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n',
    "torn.jsonl": '{"prompt": "a", "label": "b"}\n{"prompt": \n',
    "odd.jsonl": '{"promt": "a"}\n',
    "empty.jsonl": "",
    "typo.yaml": "stepz: 3\n",
    "list.yaml": "- 1\n",
    "torn.yaml": "a: [1\n",
    "twice.yaml": "steps: 1\nsteps: 2\n",
    "tab.yaml": "limits:\n\tturns: 1\n",
    "engine.yaml": "engine: {kind: local}\nengine_config: 3\n",
    "misspelt.yaml": "enviroment: my_env.py:Capitals\n",
}
E, OUT = "my_env.py:Capitals", ("--out", "run")
MISTAKES = [
    ("evl x", "No such command 'evl'. Did you mean 'eval'?"),
    (f"eval {E} --modle tiny", "No such option: --modle"),
    ("eval", "Missing argument 'ENV'"),
    (f"eval {E}", "Missing option '--model'"),
    (f"play {E} --samples many", "Invalid value for '--samples'"),
    (f"eval {E} --model tny", "did you mean tiny?"),
    (f"eval {E} --model runs/frist", "there is no folder runs/frist"),
    (f"eval {E} --model tiny --data none.jsonl", "none.jsonl: no such data file"),
    (f"eval {E} --model tiny --data torn.jsonl", "torn.jsonl:2: "),
    (f"eval {E} --model tiny --data odd.jsonl", 'odd.jsonl:1: no "prompt"'),
    (f"eval {E} --model tiny --data empty.jsonl", "empty.jsonl"),
    (f"eval {E} --model tiny --set limits.turn=3", "did you mean turns?"),
    (f"eval {E} --model tiny --set limits.turns=none", "limits.turns"),
    (f"eval {E} --model tiny --set nonsense", "--set nonsense: write key=value"),
    (f"eval {E} --model tiny --api http://127.0.0.1:9/v1 --engine sglang", "one model plays at a time"),
    ("train", "missing ENV, --out"),
    (f"train {E}", "missing --out"),
    (f"train my_env.py:Capitls {' '.join(OUT)}", "did you mean Capitals?"),
    (f"train my_evn.py:Capitals {' '.join(OUT)}", "did you mean my_env.py?"),
    (f"train my_env:Capitalss {' '.join(OUT)}", "did you mean Capitals?"),
    (f"train my_env.py:Empty {' '.join(OUT)}", "neither tools nor a step nor a score"),
    (f"train my_env.py {' '.join(OUT)}", "my_env.py"),
    (f"train broken.py:X {' '.join(OUT)}", "broken.py:1: "),
    (f"train raises.py:X {' '.join(OUT)}", "raises.py:1: "),
    (f"train {E} {' '.join(OUT)} --set group_sise=4", "did you mean group_size?"),
    (f"train {E} {' '.join(OUT)} --set steps=many", "steps must be a valid integer, not 'many'"),
    (f"train {E} {' '.join(OUT)} --config typo.yaml", "did you mean steps?"),
    (f"train {E} {' '.join(OUT)} --config list.yaml", "list.yaml: not a mapping"),
    (f"train {E} {' '.join(OUT)} --config torn.yaml", "torn.yaml:1: not YAML: "),
    (f"train {E} {' '.join(OUT)} --config none.yaml", "--config none.yaml: no such file; give its path from here"),
    (f"train {E} {' '.join(OUT)} --warm-start none.jsonl", "no such file of demonstrations"),
    (f"train {E} {' '.join(OUT)} --model runs/frist", "there is no folder runs/frist"),
    (f"train {E} {' '.join(OUT)} --set env_config.size=big", "env_config of Capitals: size"),
    (f"train {E} {' '.join(OUT)} --set engine=sglan", "unknown engine 'sglan'; did you mean sglang?"),
    (f"train {E} {' '.join(OUT)} --set turns=3", "did you mean turns under limits?"),
    (
        f"train {E} {' '.join(OUT)} --set warm_start=3",
        "warm_start must be a mapping of keys to values (dem",
    ),
    (f"train {E} {' '.join(OUT)} --data folder", "folder: "),  # read by the library datasets
    (f"train {E} {' '.join(OUT)} --data tron.jsonl", "tron.jsonl: no such data file; did you mean torn.jsonl?"),
    (f"train {E} {' '.join(OUT)} --config folder", "--config folder: it is a folder"),
    (f"train {E} {' '.join(OUT)} --config typo.yml", "--config typo.yml: no such file; did you mean typo.yaml?"),
    (f"train {E} {' '.join(OUT)} --config twice.yaml", "twice.yaml:2: not YAML: the key steps is written twice"),
    (f"train {E} {' '.join(OUT)} --config tab.yaml", "tab.yaml:2: not YAML: "),
    (f"train {E} {' '.join(OUT)} --config engine.yaml", "engine_config must be a mapping of keys to values, not 3"),
    ("train --config misspelt.yaml --out run", "unknown key enviroment; did you mean env?"),
    (f"train {E} {' '.join(OUT)} --set lr=3", "did you mean learning_rate?"),
    (f"train {E} {' '.join(OUT)} --set max_turns=3", "did you mean turns under limits?"),
    (f"train {E} {' '.join(OUT)} --set canaries=off", "bad_call_jump) or null, not False"),
    (f"train {E} {' '.join(OUT)} --set engine=my_engine.py:Mine", "my_engine.py: no such file"),
    (f"train my_env.py::Capitals {' '.join(OUT)}", "write my_env.py:Capitals"),
    ("check template tiny none.jinja", "none.jinja: no such file; name a Jinja file"),
    (f"eval {E} --model tiny --engine sglang", "engine_config.url is missing; name a server"),
    (f"eval {E} --model tiny --engine sglang --set engine_config.ulr=x", "did you mean url?"),
    (f"eval {E} --model tiny --engine my_engine.py:Mine", "my_engine.py: no such file"),
    (f"eval {E} --model tiny --engine locl", "unknown engine 'locl'; did you mean local?"),
    (f"eval {E} --model tiny --set turns=3", "did you mean turns under limits? (as in --set limits.turns=4)"),
    (f"eval {E} --model tiny --set when=2026-13-45", "--set when=2026-13-45: the value is not valid YAML"),
    ("sft chat.jsonl --model tiny --out run --set warm_start=3", "warm_start=3: name a key of it"),
    ("init weather --template toolz", "Invalid value for '--template': 'toolz' is not one of 'tool', "),
    ("train --resume --out none", "none holds no run"),
    ("train --resume", "name the run's folder with --out"),
    ("sft none.jsonl --model tiny --out run", "none.jsonl: no such file"),
    ("sft chat.jsonl --model runs/frist --out run", "there is no folder runs/frist"),
    ("show none", "none"),
    ("show empty.jsonl", "empty.jsonl"),
    (f"play {E}", "playing yourself needs a terminal; name a player"),
    (f"play {E} --player my_env.py:glod", "did you mean gold?"),
    (f"check {E} --gold my_env.py:glod", "did you mean gold?"),
    ("init 1weather", "1weather"),
    ("serve --model tny", "did you mean tiny?"),
    ("serve --model tiny --engine locl", "unknown engine 'locl'; did you mean local?"),
    ("serve --model tiny --host 0.0.0.0 --port 99999", "Invalid value for '--port'"),
    ("merge none out", "none"),
    ("data tasks my_env.py:Capitls --out t.jsonl", "did you mean Capitals?"),
    ("check none.jsonl", "none.jsonl: no such file or folder"),
    ("check runs/frist", "runs/frist: no such file or folder; for a model write: agentrl check template runs/frist"),
    ("check my_env.py", "name its class: agentrl check my_env.py:MyEnv"),
    ("check torn.jsonl", "holds tasks; check them in their environment: agentrl check ENV --data torn.jsonl"),
    ("check my_env.py:Capitls", "did you mean Capitals?"),
    ("check template", "name a model"),
    ("check template tny", "did you mean tiny?"),
    ("check sandbox --gold my_env.py:gold", "--gold is not for sandbox; leave it out"),
    ("check slime", "add the command, as in `agentrl check slime -- python3 train.py ...`"),
    (f"check {E} second", "second: an environment is checked alone"),
    ("retriever none.jsonl", "none.jsonl"),
]
RUN_ALL = """
import contextlib, io, json, sys
from agentrl.cli import run_line
known = set()
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_line(words.split())
    slow = {"torch", "transformers"} & set(sys.modules) - known
    known |= slow
    print(json.dumps([code, err.getvalue(), sorted(slow)]), flush=True)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Exit code, stderr and slow modules after each mistake, all made in one process, as importing takes longest."""
    folder = tmp_path_factory.mktemp("typing")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "folder").mkdir()
    command = [sys.executable, "-c", RUN_ALL, json.dumps([words for words, _ in MISTAKES])]
    ran = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert not (folder / "run").exists()
    return {words: json.loads(line) for (words, _), line in zip(MISTAKES, ran.stdout.splitlines(), strict=True)}


@pytest.mark.parametrize(("words", "says"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_it_is_answered_at_once_in_one_line(answers, words, says):
    code, stderr, slow = answers[words]
    assert says in stderr
    assert stderr.count("\n") == 1, stderr
    assert stderr.startswith("error: ")
    assert (code, slow) == (2, [])

"""Every code block of README.md and docs/ holds: see blocks.py. And the check finds what is wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the settings of `agentrl train` need the extra `train`")

from tests.docs.blocks import PAGES, ROOT, Page, blocks


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a page's files. Modules that are found in it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        places = [getattr(sys.modules[name], "__file__", None), *getattr(sys.modules[name], "__path__", ())]
        if any(str(place).startswith(f"{tmp_path}{os.sep}") for place in places):
            del sys.modules[name]


def problems(text: str) -> list[tuple[int, str]]:
    """The blocks of a page that are wrong: line, and what is wrong."""
    page, found = Page(), []
    for block in blocks(text):
        try:
            page.check(block)
        except Exception as exc:  # noqa: BLE001 - whatever a block raises is what is wrong with it
            found.append((block.line, f"{type(exc).__name__}: {exc}"))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_block(file: Path, folder: Path) -> None:
    if wrong := problems(file.read_text(encoding="utf-8")):
        pytest.fail("\n".join(f"{file.relative_to(ROOT)}:{line}: {said}" for line, said in wrong), pytrace=False)


NIM = "# nim.py\nfrom agentrl import Env\n\n\nclass Nim(Env):\n    pass\n"
GOOD = [
    "```python\n# own.py\nfrom agentrl import Env\n\n\nclass Own(Env):\n    pass\n```\n",
    "```python\nclass Fragment(Env):\n    reward_range = (0.0, 2.0)\n```\n",
    f"```python\n{NIM}```\n\n<!-- more of: nim.py -->\n```python\n    def left(self):\n        return 7\n```\n",
    '<!-- given: PLACE = "Rome" -->\n```python\ndef where():\n    return PLACE\n```\n',
    "<!-- not run: it needs a model -->\n```python\nfrom my_env import MyEnv\nfrom agentrl import Env\n```\n",
    "```yaml\nlimits: {turns: 4}\n```\n",
    "```yaml\nagentrl: {env: my_env.py:MyEnv}\n```\n",
    "text:\n\n    agentrl train my_env.py:MyEnv --set limits.turns=4 \\\n        --steps 4   # comment\n",
    '    {"prompt": "a"}\n    {"prompt": "b"}\n',
    "    model*  | It is\n    env     | rainy\n",
    "- a list\n\n    which goes on here, and is no block\n",
]
WRONG = [
    ("```python\nclass:\n```\n", "invalid syntax"),
    ("<!-- more of: nim.py -->\n```python\n    left = 7\n```\n", "nim.py"),
    ("```python\ndef f():\n    return PLACE\n```\n", "PLACE: not defined on this page"),
    ("```python\nfrom agentrl import Envv\n```\n", "agentrl.Envv"),
    ("<!-- not run: it needs a model -->\n```python\nfrom agentrl import Envv\n```\n", "agentrl.Envv"),
    ("```python\nEnv.resett\n```\n", "resett"),
    ("```yaml\nlimit: {turns: 4}\n```\n", "did you mean limits"),
    ("```yaml\nagentrl: {envv: a.py:B}\n```\n", "did you mean env"),
    ("<!-- config: agentrl_envs.adapters.mcp:MCP -->\n```yaml\ncomand: npx\n```\n", "command"),
    ("```toml\na = \n```\n", "Invalid value"),
    ("    {'prompt': 1}\n", "property name"),
    ("```bash\nagentrl trian\n```\n", "no command trian"),
    ("    agentrl train my_env.py:MyEnv --step 4\n", "No such option"),
    ("    agentrl train my_env.py:MyEnv --steps four\n", "valid integer"),
    ("    agentrl train my_env.py:MyEnv --set limits.turn=4\n", "did you mean turns"),
    ("    agentrl eval my_env.py:MyEnv --model tiny --set limit.turns=4\n", "limits"),
    ("    agentrl train agentrl_envs.search_r1:SearchR1 --set env_config.top=4\n", "topk"),
    ("    agentrl train --config a.yaml && agentrl shw runs/first\n", "no command shw"),
    ("    --custom-rm-path agentrl.rewards.emm\n", "emm"),
    ("    agentrl play agentrl_envs.search_r1:Searched\n", "Searched"),
    ("    python -m agentrl.testing.chat_servers model.py:reply\n", "has no chat_servers"),
    ("    python examples/fact_search/demos.py\n", "no file"),
    ("    make demos\n", "no target demos"),
    ("    pip install -e '.[trains]'\n", "no extra trains"),
    ("    agentrl show runs/first\n    and then\n", "no command that is known here"),
    ("```text\nwords\n```\n", "neither code nor a command"),
    ("```\nwords\n```\n", "neither code nor a command"),
]


@pytest.mark.parametrize("text", GOOD)
def test_what_is_right_passes(text: str, folder: Path) -> None:
    assert problems(text) == []


@pytest.mark.parametrize(("text", "said"), WRONG)
def test_what_is_wrong_is_found(text: str, said: str, folder: Path) -> None:
    ((_, problem),) = problems(f"A page.\n\n{text}\nMore words.\n")
    assert said in problem

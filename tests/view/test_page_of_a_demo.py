"""The twelve questions on a run of the demo itself, each in at most two clicks.

It is made here, with few steps: it answers every question, and learns nothing. AGENTRL_DEMO_RUN names a whole one,
such as runs/demo/run. What must be shown is read from the run's files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import pytest_asyncio

from agentrl.view.files import outlines
from tests.view.browser import Counted, chromium, needs_browser, server_of

pytestmark = [
    *(pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(900)),
    needs_browser,
]
CONFIG = Path(__file__).parents[2] / "examples" / "fact_search" / "train.yaml"
ENV = "agentrl_envs.fact_search:FactSearch"
SHORT = (
    "warm_start.steps=60",
    "warm_start.batch_size=16",
    "prompts_per_step=4",
    "eval_tasks=8",
    "eval_every=2",
    "keep.groups=4",
)
SHOWN = ("mask_overlong=true", "kl_coef=0.01")
"""So that tokens are masked, and that the trainer reads groups of equal rewards."""


def agentrl(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "agentrl", *map(str, words)], check=True, capture_output=True, text=True)


def demo_run(folder: Path, data: Path, *settings: str, steps: int = 4) -> Path:
    files = ("--data", data / "train.jsonl", "--eval-data", data / "held_out.jsonl", "--warm-start", data / "d.jsonl")
    given = [word for setting in (*SHORT, *SHOWN, *settings) for word in ("--set", setting)]
    agentrl("train", "--config", CONFIG, *files, "--steps", steps, *given, "--out", folder)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    subprocess.run([sys.executable, "-m", "agentrl_envs.fact_search", folder], check=True, capture_output=True)
    player = ("--player", "agentrl_envs.fact_search:mediocre")
    agentrl("play", ENV, *player, "--data", folder / "train.jsonl", "--limit", 200, "--out", folder / "d.jsonl")
    given = os.environ.get("AGENTRL_DEMO_RUN")
    other = demo_run(folder / "other", folder, "warm_start.steps=2", "learning_rate=0.001", steps=1)
    return Path(given) if given else demo_run(folder / "run", folder), other


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser():
    async with chromium() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def served(runs):
    async with server_of(*runs) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser, served, runs):
    """The run page, with nothing clicked yet."""
    browser.problems.clear()
    await browser.send("Page.navigate", url="about:blank")
    await browser.goto(served.link)
    counted = Counted(browser)
    counted.run = Recorded(runs[0])
    yield counted
    assert browser.problems == []


class Recorded:
    """What the run's files hold."""

    def __init__(self, folder: Path) -> None:
        from agentrl.view.sources import open_source

        self.metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        self.summary = json.loads((folder / "summary.json").read_text())
        self._source = open_source(folder)
        self.steps = len(self.metrics)

    def outlines(self, step: int) -> list[dict[str, object]]:
        return [outline for _, outline in outlines(self._source.file(f"step_{step:06d}"))]

    def at(self, step: int) -> tuple[float, float]:
        """Where a step is in a chart."""
        return 0.124 + (step - 1) / (self.steps - 1) * 0.857, 0.5

    def masked(self) -> set[str]:
        return {reason for line in self.metrics for reason in line["masked_tokens"]}


async def learning(page):
    said = await page.text(".verdict")
    assert "sampled reward" in said
    assert "held out" in said
    assert f"{page.run.steps}\nfinished" in said


async def why_it_fell(page):
    await page.click("[data-chart=reward] svg", at=(0.124 + 0.5 * 0.857, 0.5))
    await page.ready("step")
    assert "beside step" in await page.text("details.beside summary")
    assert len((await page.text("details.beside table")).splitlines()) > 3
    await page.click("td a.to")
    await page.ready("episode")
    assert "<|im_start|>user" in await page.text(".rows")


async def failures_beside_successes(page):
    await page.click(".strip a", str(page.run.steps))
    await page.ready("step")
    rewards: dict[object, set[object]] = {}
    for outline in page.run.outlines(page.run.steps):
        rewards.setdefault(outline["group"], set()).add(outline["reward"])
    group = max(rewards, key=lambda group: len(rewards[group]))
    await page.click(f"[data-group='{group}']")
    await page.ready("group")
    assert ("all rewards are equal" in await page.text()) == (len(rewards[group]) == 1)
    assert "turn" in await page.text("table")


async def what_is_masked(page):
    assert page.run.masked() == {"overlong"} or os.environ.get("AGENTRL_DEMO_RUN")
    if not page.run.masked():
        assert "nothing is masked" in await page.text("[data-chart='masked share'], .chart.empty")
        return
    await page.click("[data-chart='masked share'] .legend button")
    await page.ready("list")
    await page.click("td a.to")
    await page.ready("episode")
    assert "NOT TRAINED" in await page.text(".inspector")


async def why_this_token(page):
    if not page.run.masked():
        assert "nothing is masked" in await page.text(".finding")
        return
    await page.click(".finding a", "overlong")
    await page.ready("list")
    await page.click("td a.to")
    await page.ready("episode")
    assert "NOT TRAINED: overlong" in await page.text(".inspector")
    assert "mask_overlong" in await page.text(".inspector")


async def where_engine_and_trainer_differ(page):
    await page.click("[data-chart='engine against trainer'] svg", at=page.run.at(page.run.steps))
    await page.ready("worst")
    gaps = [float(outline["gap"]) for outline in page.run.outlines(page.run.steps) if outline.get("gap") is not None]
    assert gaps
    assert max(gaps) < 1e-3, "the embedded engine agrees with the trainer"
    await page.click("td a.to")
    await page.ready("episode")
    assert "engine - trainer" in await page.text(".inspector")
    assert "not kept" not in await page.text(".inspector")


async def which_tools_fail(page):
    failed = {name for line in page.run.metrics for name in line["tool_errors"]}
    said = await page.text(".finding")
    assert all(name in said for name in failed) if failed else "no tool failed" in said
    await page.click(".strip a", str(page.run.steps))
    await page.ready("step")
    called = {tool for outline in page.run.outlines(page.run.steps) for tool in outline.get("calls", {})}
    cards = await page.text("[data-card=tools]")
    assert all(tool in cards for tool in called) if called else "no tool was called" in cards


async def is_it_hacked(page):
    await page.click(".strip a", str(page.run.steps))
    await page.ready("step")
    rewarded = [outline for outline in page.run.outlines(page.run.steps) if outline.get("reward") is not None]
    assert await page.js("document.querySelectorAll(\"[data-chart='reward by tokens'] circle\").length") == len(
        rewarded
    )
    assert "equal answers" in await page.text("[data-card=answers]")


async def do_groups_teach(page):
    await page.click("[data-chart='groups without an advantage'] svg", at=page.run.at(page.run.steps))
    await page.ready("step")
    assert (await page.text(".groups")).count("no advantage") == page.run.metrics[-1]["zero_advantage_groups"]


async def where_is_the_time(page):
    await page.click("[data-chart='seconds a step'] svg", at=page.run.at(page.run.steps))
    await page.ready("step")
    assert "env, s" in await page.text("[data-card=time]")


async def is_one_stuck(page):
    assert "nothing: the run is not going on" in await page.text()


async def what_changed_between_runs(page):
    await page.click("#path a", "compare")
    await page.ready("compare")
    said = await page.text()
    assert "learning_rate\t0.0003\t0.001" in said
    assert "reward, sampled" in said


QUESTIONS = (
    learning,
    why_it_fell,
    failures_beside_successes,
    what_is_masked,
    why_this_token,
    where_engine_and_trainer_differ,
    which_tools_fail,
    is_it_hacked,
    do_groups_teach,
    where_is_the_time,
    is_one_stuck,
    what_changed_between_runs,
)


@pytest.mark.parametrize("question", QUESTIONS, ids=[question.__name__ for question in QUESTIONS])
async def test_a_question_about_the_demo_takes_two_clicks(page, question):
    await question(page)
    assert page.clicks <= 2

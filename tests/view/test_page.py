"""The page in a real browser: twelve questions in at most two clicks, keys, links, and hostile text."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import pytest_asyncio

from agentrl.cli.view import first_page
from agentrl.view.server import ViewServer
from agentrl.view.sources import open_source
from tests.view.browser import Counted, chromium, needs_browser, server_of
from tests.view.conftest import DATA
from tests.view.made_run import FALL, Writer, made_run, write_step
from tests.view.sessions import session_trajectory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), needs_browser]
POINT = (0.124 + (FALL - 1) / 11 * 0.857, 0.5)
"""Where step FALL is in a chart of twelve steps."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser():
    async with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return made_run(folder / "one", live=True), made_run(folder / "other", seed=1, rate=0.01)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def served(runs):
    server = ViewServer([open_source(run) for run in runs])
    await server.start()
    yield server
    await server.close()


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser, served):
    """The run page, with nothing clicked yet."""
    browser.problems.clear()
    await browser.send("Page.navigate", url="about:blank")
    await browser.goto(served.link)
    counted = Counted(browser)
    yield counted
    assert browser.problems == []


async def learning(page):
    assert "sampled reward" in (said := await page.text(".verdict"))
    assert "held out" in said
    assert "No reward rose by more than chance (from 0." in (why := await page.text(".causes"))
    assert "docs/not-learning.md#none-of-these" in why
    assert "0.714 → 0.629" in said


async def why_it_fell(page):
    await page.click("[data-chart=reward] svg", at=POINT)
    await page.ready("step")
    assert f"one › step {FALL}" in await page.text("#path")
    beside = await page.text("details.beside")
    assert f"step {FALL} beside step {FALL - 1}" in beside
    assert "tool error: search:IndexError" in beside.splitlines()[2]
    await page.click("td a.to")
    await page.ready("episode")
    assert "the index is gone" in await page.text(".rows")


async def failures_beside_successes(page):
    await page.click(".strip a", "5")
    await page.ready("step")
    await page.click("[data-group='2']")
    await page.ready("group")
    assert "they part in turn 2" in await page.text()
    assert "reward 1" in (head := await page.text("thead"))
    assert "reward 0" in head
    assert "Answer: Oslo" in await page.text("tr.parted")


async def what_is_masked(page):
    assert "off_policy" in await page.text("[data-chart='masked share']")
    await page.click("[data-chart='masked share'] .legend button", "overlong")
    await page.ready("list")
    assert "12 of 196 episodes" in await page.text()
    await page.click("td a.to")
    await page.ready("episode")
    places = set()
    for _ in range(3):
        assert "NOT TRAINED: overlong" in await page.text(".inspector")
        places.add(await page.text(".inspector h2"))
        await page.key("m")
        await asyncio.sleep(0.05)
    assert len(places) == 3, "m steps through the masked spans"


async def why_this_token(page):
    await page.click(".finding a", "malformed")
    await page.ready("list")
    await page.click("td a.to")
    await page.ready("episode")
    said = await page.text(".inspector")
    assert "NOT TRAINED: malformed" in said
    assert "could not be read" in said
    assert "BadCallPolicy(mask=" in said
    assert "not trained: malformed" in await page.text(".rows")


async def where_engine_and_trainer_differ(page):
    await page.click("[data-chart='engine against trainer'] svg", at=POINT)
    await page.ready("worst")
    first = await page.text("tbody tr:first-child")
    assert "\t3\t" in first, "the planted difference"
    await page.click("td a.to")
    await page.ready("episode")
    said = await page.text(".inspector")
    assert "engine - trainer\n3" in said


async def which_tools_fail(page):
    assert "search:IndexError 28" in await page.text(".finding")
    await page.click(".finding a", "search:IndexError")
    await page.ready("list")
    assert "16 of 196 episodes" in await page.text()
    await page.click("td a.to")
    await page.ready("episode")


async def is_it_hacked(page):
    await page.click(".strip a", "5")
    await page.ready("step")
    assert "Answer: I do not know" in (answers := await page.text("[data-card=answers]"))
    assert "Answer: Quito" in answers
    assert "format" in await page.text("[data-card=parts]")
    assert await page.js("document.querySelectorAll(\"[data-chart='reward by tokens'] circle\").length") == 14


async def do_groups_teach(page):
    assert await page.js("!!document.querySelector(\"[data-chart='groups without an advantage'] path\")")
    await page.click("[data-chart='groups without an advantage'] svg", at=POINT)
    await page.ready("step")
    assert (await page.text(".groups")).count("no advantage") == 4


async def where_is_the_time(page):
    assert "rollout" in await page.text("[data-chart='seconds a step']")
    await page.click("[data-chart='seconds a step'] svg", at=POINT)
    await page.ready("step")
    assert "env, s" in await page.text("[data-card=time]")


async def is_one_stuck(page):
    flight = (await page.text(".flight")).splitlines()
    assert flight[0].startswith("in flight: 2 episodes")
    assert "train-000013-0000-000" in flight[2], "the oldest first"
    assert "env" in flight[2]


async def what_changed_between_runs(page):
    await page.click("#path a", "compare")
    await page.ready("compare")
    said = await page.text()
    assert "learning_rate\t0.001\t0.01" in said
    assert "1 keys differ" in said
    assert "task-2" in said


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
async def test_a_question_takes_two_clicks(page, question):
    await question(page)
    assert page.clicks <= 2


async def test_two_runs_open_their_comparison(browser, runs, served):
    sources = [open_source(run) for run in runs]
    assert first_page(sources[:1]) == ""
    await browser.send("Page.navigate", url="about:blank")
    await browser.goto(f"{served.link}{first_page(sources)}")
    await browser.ready("compare")
    assert "1 keys differ" in await browser.text("main")


async def test_keys_walk_through_an_episode(page):
    address = page.browser.js
    await page.visit("#/0/episode/step_000005/3", "episode")
    await page.key("j")
    await page.until("location.hash.includes('step_000005/4')")
    await page.ready("episode")
    await page.key("k")
    await page.until("location.hash.includes('step_000005/3')")
    await page.ready("episode")
    await page.key("]")
    assert "turn\n2" in await page.text(".inspector")
    await page.key("[")
    assert "turn\n1" in await page.text(".inspector")
    await page.key("e")
    assert "not sampled: env" in await page.text(".inspector")
    before = await page.text(".inspector h2")
    await page.key("ArrowRight")
    assert await page.text(".inspector h2") != before
    await page.key("c")
    assert await page.js("document.querySelector('[data-mode=logprob]').getAttribute('aria-pressed')") == "true"
    assert "env" in await page.js("document.querySelector('#spoken').textContent")
    await page.key("g")
    await page.ready("group")
    await page.key("Escape")
    await page.ready("step")
    await page.key("?")
    assert await page.js("document.querySelector('#help').open")
    await page.key("Escape")
    assert "step_000005" in await address("location.hash")


async def test_a_click_chooses_the_token_under_it_and_the_address_names_it(page, served):
    await page.visit("#/0/episode/step_000005/0", "episode")
    await page.browser.click(".rows span.trained", "Answer", at=(0.02, 0.5))
    said = await page.text(".inspector h2")
    assert '"A' in said or "Answer" in said
    address = await page.js("location.hash")
    assert "t=" in address
    await page.browser.send("Page.navigate", url="about:blank")
    await page.browser.goto(f"{served.link.split('?')[0]}{address}")
    await page.ready("episode")
    assert await page.text(".inspector h2") == said


async def test_search(page):
    await page.visit("#/0/episode/step_000005/2", "episode")
    await page.key("/")
    await page.browser.type("do not know")
    await page.key("Enter")
    await page.until("document.querySelector('.bar output').textContent === '1 of 1'")
    assert "turn\n3" in await page.text(".inspector")


async def test_search_through_all_episodes(page):
    await page.visit("#/0/run", "run")
    await page.key("/")
    await page.ready("search")
    await page.browser.type("do not know")
    await page.key("Enter")
    await page.until("(location.hash.includes('do+not+know'))")
    await page.ready("search")
    await page.until("document.querySelector('.search [role=status]').textContent.includes('are read')")
    await page.until("/(\\d+) of \\1 are read/.test(document.querySelector('.search [role=status]').textContent)")
    assert "do not know" in await page.text("td.around mark")
    await page.click("td a.to")
    await page.ready("episode")
    await page.until("document.querySelector('.bar output').textContent.startsWith('1 of ')")
    assert "t=" in await page.js("location.hash")
    await page.visit("#/0/search?q=nobody+said+this", "search")
    await page.until("document.querySelector('.search [role=status]').textContent.startsWith('0 episodes')")
    await page.browser.click(".search button", "stop")
    assert await page.js("document.querySelectorAll('.search p button').length") == 0


@pytest.mark.thorough
async def test_a_new_step_is_shown_while_one_looks(page, runs):
    began = asyncio.get_running_loop().time()
    metrics = write_step(runs[0], Writer(), 13)
    with (runs[0] / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(metrics) + "\n")
    await page.until("[...document.querySelectorAll('.strip a')].some((a) => a.textContent === '13')")
    assert asyncio.get_running_loop().time() - began < 60
    assert "13\n" in (await page.text(".verdict"))


async def test_an_episode_without_its_tokens_has_no_link(browser, tmp_path):
    run = made_run(tmp_path / "run", steps=1)
    index = run / "index" / "step_000001.jsonl"
    outlines = [json.loads(line) for line in index.read_text().splitlines()]
    for outline in outlines[4:]:
        del outline["offset"], outline["length"]
    index.write_text("".join(json.dumps(outline) + "\n" for outline in outlines))
    async with server_of(run) as server:
        await browser.goto(server.link)
        await browser.visit("#/0/step/step_000001", "step")
        assert f"tokens of 4 of {len(outlines)} episodes are kept" in await browser.text()
        for rows in (".episodes tbody tr", ".groups .cell"):
            found = f"[...document.querySelectorAll({json.dumps(rows)})]"
            assert await browser.js(f"{found}.filter((e) => e.matches('a') || e.querySelector('a')).length") == 4
        unkept = "document.querySelector('.episodes span.unkept')"
        assert await browser.js(f"{unkept}.title") == "its tokens are not kept; raise keep.groups to keep more"
        await browser.visit("#/0/list", "list")
        await browser.click("td a.to")
        await browser.ready("episode")
    assert browser.problems == []


async def test_an_agents_session_is_a_tree(browser, tmp_path):
    file = tmp_path / "session.jsonl"
    file.write_text(json.dumps((await session_trajectory()).to_json()) + "\n")
    async with server_of(file) as server:
        await browser.goto(server.link)
        await browser.visit("#/0/episode/session.jsonl/0", "episode")
        tree = await browser.text(".tree")
        assert "masked side" in tree
        assert "masked dropped" in tree
        await browser.click(".tree button", "masked side")
        await browser.until("document.querySelector('.rows').textContent.includes('helper')")


@pytest.mark.parametrize("name", ["verifiers.jsonl", "slime_5.pt", "harbor.json", "harbor_text.json"])
async def test_files_of_others(browser, tmp_path, name):
    shutil.copy(DATA / name, tmp_path)
    async with server_of(tmp_path / name) as server:
        browser.problems.clear()
        await browser.goto(server.link)
        await browser.click(".files a", name)
        await browser.ready("step")
        await browser.click("td a.to")
        await browser.ready("episode")
        assert await browser.text(".pane")
        await browser.visit("#/0/audit", "audit")
        assert "sampled" in await browser.text()
        assert browser.problems == []


HOSTILE = (
    "<script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "<svg onload=window.hacked=1>",
    "</script><script>window.hacked=1</script>",
    "<!--<script>window.hacked=1",
    "]]><script>window.hacked=1</script>",
    "<iframe src='http://evil.example/'></iframe>",
    "<a href='javascript:window.hacked=1'>x</a>",
    "<style>@import url(http://evil.example/x.css)</style>",
    "<meta http-equiv=refresh content='0;url=http://evil.example/'>",
    "<link rel=stylesheet href=http://evil.example/x.css>",
    "<base href=http://evil.example/>",
    "${window.hacked=1}`${window.hacked=1}`",
    "{{constructor.constructor('window.hacked=1')()}}",
    "\x1b]0;owned\x07\x1b[2J",
    "\u202ecod.exe\u2066\u200b",
    "' onmouseover='window.hacked=1",
    '" autofocus onfocus="window.hacked=1',
    "%3Cscript%3Ewindow.hacked=1%3C/script%3E",
    "__proto__",
)


ELEMENTS = "main script, main img, main iframe, main style, main link, main base, main meta, main svg [onload]"


def hostile_file(folder: Path) -> Path:
    """An episode for each string: in prompt, answer, tool and task; the file has such a name, too."""
    write = Writer()
    lines = []
    for number, text in enumerate(HOSTILE):
        trajectory = write.begin(text, f"train-000001-0000-{number:03d}", prompt=text)
        write.say(trajectory, text, [text])
        write.observe(trajectory, text)
        write.say(trajectory, text)
        trajectory.reward, trajectory.reward_parts = 0.5, {text: 0.5}
        trajectory.info = {"tool_errors": {f"{text}:Error": 1}, text: text}
        trajectory.mask("malformed", turn=0)
        data = trajectory.to_json()
        data["stop"] = text
        lines.append(json.dumps(data) + "\n")
    file = folder / "<img src=x onerror=window.hacked=1>.jsonl"
    file.write_text("".join(lines))
    return file


@pytest.mark.thorough
async def test_hostile_text_is_text(browser, tmp_path):
    async with server_of(hostile_file(tmp_path)) as server:
        browser.problems.clear()
        browser.requests.clear()
        await browser.goto(server.link)
        name = await browser.js("encodeURIComponent(document.querySelector('.files a').textContent)")
        await browser.click(".files a")
        await browser.ready("step")
        for number in range(len(HOSTILE)):
            await browser.visit(f"#/0/episode/{name}/{number}", "episode")
            await browser.until("document.querySelectorAll('.row').length > 3")
            shown = await browser.js("document.body.textContent")
            assert not set("\x1b\u202e\u200b") & set(shown)
        await browser.visit("#/0/list?text=script", "list")
        assert await browser.js("window.hacked") is None
        assert await browser.js(f"document.querySelectorAll('{ELEMENTS}').length") == 0
        outside = [url for url in browser.requests if not url.startswith((f"http://127.0.0.1:{server.port}/", "data:"))]
        assert (outside, browser.problems) == ([], [])


@pytest.mark.thorough
async def test_an_export_is_one_file_that_asks_nobody(browser, tmp_path):
    async with server_of(hostile_file(tmp_path)) as server:
        await browser.goto(server.link)
        name = await browser.js("encodeURIComponent(document.querySelector('.files a').textContent)")
        pages = [
            await browser.js(f"fetch('/export?s=0&f={name}&n={number}').then((r) => r.text())")
            for number in range(len(HOSTILE))
        ]
        for page in pages:
            file = tmp_path / "exported.html"
            file.write_text(page, encoding="utf-8")
            browser.problems.clear()
            browser.requests.clear()
            await browser.goto(file.as_uri())
            assert await browser.js("document.querySelectorAll('.row').length") > 3
            assert await browser.js("window.hacked") is None
            assert await browser.js(f"document.querySelectorAll('{ELEMENTS}').length") == 0
            assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
            assert browser.problems == []
        await browser.key("m")
        assert "NOT TRAINED: malformed" in await browser.text(".inspector")


LINES = """
(async () => {
  const {cutLines, piecesOf, lineOf, columnsOf} = await import('/static/tokens.js');
  let seed = 7;
  const random = (n) => (seed = (seed * 1103515245 + 12345) % 2147483648) % n;
  const words = ['', 'a', 'word ', '\\n', 'two\\nlines', '\\n\\n', '東京', 'a-very-long-word-for-three-lines', 'x\\n'];
  for (let round = 0; round < 300; round++) {
    const length = 1 + random(60), index = Uint32Array.from({length}, () => random(words.length)), runs = [];
    for (let at = 0; at < length;) {
      const stop = Math.min(length, at + 1 + random(9));
      runs.push({start: at, stop});
      at = stop;
    }
    const sequence = {words, index, length, runs}, width = 8 + random(20), lines = cutLines(sequence, width);
    let text = '';
    for (let line = 0; line < lines.count; line++) {
      const row = [...piecesOf(sequence, lines, line)].map(([, piece]) => piece).join('');
      if (row.slice(0, -1).includes('\\n')) return `a break inside a line: ${JSON.stringify(row)}`;
      if (columnsOf(row.replace('\\n', '')) > width) return `too wide: ${row}`;
      text += row;
    }
    if (text !== [...index].map((i) => words[i]).join('')) return `other text in round ${round}`;
    if (runs.some((run) => !lines.tokens.includes(run.start))) return 'a run begins within a line';
    for (let token = 0; token < length; token++) {
      const there = [...piecesOf(sequence, lines, lineOf(lines, token))].some(([found]) => found === token);
      if (words[index[token]] && !there) return `token ${token} is not on its line`;
    }
  }
  return 'good';
})()
"""


async def test_lines_hold_every_character_once(page):
    assert await page.js(LINES) == "good"

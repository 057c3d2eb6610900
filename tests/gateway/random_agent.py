"""A random agent and its model. The agent writes down what it asked for, and why: the oracle of test_random_agents."""

from __future__ import annotations

import asyncio
import json
import random
import re
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from agentrl import SessionOptions
from agentrl.engine import ScriptedEngine
from agentrl.models import load_tokenizer
from tests.gateway.by_hand import Chat, Item, Messages, Responses, Results, Said, Talk

TOKENIZER = load_tokenizer("tiny")
ANSWER, TITLE, SUMMARY = "Answer now.", "Give this a title.", "Summarise everything so far for your successor."
CLEARED = "[old content cleared]"
MARK = re.compile(r"q\d{4}q")
"""Each reply holds its own mark, first. So it is known wherever it comes up."""
NOTICE = re.compile(r"Background task (\S+) has ended")
TRAITS = (
    "trim",
    "drop_oldest",
    "compact",
    "subagents",
    "fork",
    "repeat",
    "retry",
    "title",
    "rewrite",
    "notice",
    "clear",
)
WORDS = (
    "look",
    "at",
    "the",
    "",
    "parser\nand",
    "it's",
    "tests,",
    '"quoted"',
    "façade",
    "—",
    "ok",
    "<b>bold</b>",
    "{x}",
    "3.14",
)


class Model(ScriptedEngine):
    """Says what its prompt's last message asks for, never the same twice. Its replies wait while it is held."""

    def __init__(self, renderer: Any, seed: int) -> None:
        super().__init__(lambda ids: self._turns_of[tuple(ids)].pop(0), renderer)
        self._seed = seed
        self._turns_of: dict[tuple[int, ...], list[Any]] = {}
        self.prompts: dict[str, str] = {}
        """What the engine was sent, by the mark of the reply."""
        self.sampled: list[list[int]] = []
        self.gates: list[asyncio.Event] | None = None
        """While it is held: one for each generation that waits."""
        self.begun = asyncio.Condition()

    async def generate(self, input_ids, sampling_params, *, session_id="", rid=""):
        text = TOKENIZER.decode(list(input_ids))
        mark = f"q{len(self.prompts):04}q"
        self.prompts[mark] = text
        self._turns_of.setdefault(tuple(input_ids), []).append(self._turn(mark, text.split("<|im_start|>")[-2]))
        gate = asyncio.Event()
        if self.gates is None:
            gate.set()
        else:
            self.gates.append(gate)
        async with self.begun:
            self.begun.notify_all()
        await gate.wait()
        found = await super().generate(input_ids, sampling_params, session_id=session_id, rid=rid)
        self.sampled.append(list(found.tokens))
        return found

    async def waits(self, count: int) -> None:
        """Wait until so many generations are held."""
        async with self.begun:
            await self.begun.wait_for(lambda: len(self.gates or ()) >= count)

    def _turn(self, mark: str, asked: str) -> dict[str, Any]:
        pick = random.Random(f"{self._seed} {mark}")
        words = " ".join(pick.choices(WORDS, k=pick.randint(2, 12)))
        if SUMMARY in asked:
            long = f'{mark}: "the task" is half done. ' + " ".join(pick.choices(WORDS, k=40)) + ' It\'s in "a.py".'
            forms = ["{}", "<summary>\n{}\n</summary>", "<analysis>\nLet me see.\n</analysis>\n\n<summary>{}</summary>"]
            return {"role": "assistant", "content": pick.choice(forms).format(long)}
        if TITLE in asked or ANSWER in asked:
            return {"role": "assistant", "content": f"{mark} {words}"}
        if quoted := NOTICE.search(asked):
            return {"role": "assistant", "content": f"{mark} So {quoted[1]} is over. {words}"}
        if pick.random() < 0.25:
            return {"role": "assistant", "content": f"{mark} {words}"}
        calls = [self._call(pick, f"{mark} {words}", number) for number in range(pick.choice([1, 1, 2]))]
        return {"role": "assistant", "content": f"{mark} {words}" if pick.random() < 0.5 else "", "tool_calls": calls}

    def _call(self, pick: random.Random, what: str, number: int) -> dict[str, Any]:
        arguments = {"what": what, "deep": pick.random() < 0.5, "number": number}
        function = {"name": pick.choice(["find", "edit"]), "arguments": arguments}
        return {"id": f"c{pick.getrandbits(32):08x}", "type": "function", "function": function}


@dataclass
class Sampled:
    """One reply that the agent asked for, and what it is to the agent."""

    kind: str
    """main, dropped; sub, title, summary; inline, alternative, which are not judged."""
    said: Said
    began: int
    ended: int
    told: list[str]
    """The marks that stood in the request."""


class Agent:
    """One run of an agent whose traits are drawn from its seed."""

    def __init__(self, seed: int, model: Model, options: SessionOptions) -> None:
        self.pick, self.model, self.options = random.Random(seed), model, options
        keeps_ids = self.pick.random() < 0.5
        self.wire = [Messages(), Chat(), Responses(keeps_ids=keeps_ids)][seed % 3]
        self.traits = {trait for trait in TRAITS if self.pick.random() < 0.45}
        self.window = self.pick.randint(1, 4)
        self.items: list[Item] = [f"Task {seed}: make the tests of the parser pass."]
        self.sampled: list[Sampled] = []
        self.clock = self.numbers = 0
        self.answer = ""

    def has(self, trait: str, chance: float) -> bool:
        return trait in self.traits and self.pick.random() < chance

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    async def run(self, endpoint: Any) -> None:
        self.url = f"{endpoint.url}{self.wire.path}"
        headers = {"Authorization": f"Bearer {endpoint.key}", "anthropic-version": "2023-06-01"}
        if not isinstance(self.wire, Messages):
            del headers["anthropic-version"]
        async with aiohttp.ClientSession(headers=headers) as self.http:
            if self.has("title", 0.5):
                await self.title()
            for _ in range(self.pick.randint(3, 9) if self.pick.random() < 0.95 else self.pick.randint(15, 30)):
                await self.step()
            await self.finish()
            if self.has("title", 0.2):
                await self.title()

    # Requests

    async def ask(self, talk: Talk, kind: str) -> Said:
        """One request, with what may go wrong on its way."""
        self.clock += 1
        began, body = self.clock, self.wire.body(talk)
        if self.has("retry", 0.25):
            said = await self.pick.choice([self.cut, self.unread])(body, talk.headers)
        else:
            said = await self.post(body, talk.headers)
        self.clock += 1
        told = list(dict.fromkeys(MARK.findall(json.dumps(body))))
        self.sampled.append(Sampled(kind, said, began, self.clock, told))
        return replace(said, calls=list(said.calls))

    async def post(self, body: dict[str, Any], headers: dict[str, str]) -> Said:
        async with self.http.post(self.url, json=body, headers=headers) as answer:
            told = await answer.json()
            assert answer.status == 200, told
        said = self.wire.said(told)
        said.mark = MARK.search(json.dumps([said.text, said.calls])).group()
        return said

    async def cut(self, body: dict[str, Any], headers: dict[str, str]) -> Said:
        """The connection breaks while the model speaks. The client asks again at once, or when it is done."""
        self.model.gates = []
        first = asyncio.create_task(self.post(body, headers))
        await self.model.waits(1)
        first.cancel()
        await asyncio.wait({first})
        (gate,), self.model.gates = self.model.gates, None
        again = asyncio.create_task(self.post(body, headers))
        if self.pick.random() < 0.5:
            await asyncio.sleep(0.01)
        gate.set()
        return await again

    async def unread(self, body: dict[str, Any], headers: dict[str, str]) -> Said:
        """The answer is lost on its way, and the client's library asks again as vendors' libraries do."""
        first = await self.post(body, headers)
        again = await self.post(body, {**headers, "x-stainless-retry-count": "1"})
        assert again == first, "a retry gets the same reply"
        return again

    # The main conversation

    async def step(self) -> None:
        if self.has("fork", 0.25):
            await self.fork()
        else:
            if self.has("repeat", 0.2):
                await self.ask(Talk(self.items), "dropped")
            self.go_on(self.items, await self.ask(Talk(self.items), "main"))
        if self.has("subagents", 0.35):
            await self.subagents()
        if self.has("title", 0.1):
            await self.title()
        if self.has("notice", 0.3):
            calls = [call[0] for item in self.items if isinstance(item, Said) for call in item.calls]
            self.items.append(f"Background task {self.pick.choice(calls or ['none'])} has ended.")
        self.make_room()
        if self.has("compact", 0.3):
            await self.compact()

    def go_on(self, items: list[Item], said: Said) -> None:
        """Tell a reply back, in the client's own words, and what follows it."""
        if self.has("rewrite", 0.6):
            said.text = self.pick.choice([" ".join(said.text.split()), f"  {said.text}\n", said.text.strip()])
            turned = [(one, name, dict(reversed(given.items()))) for one, name, given in said.calls]
            said.calls = [(one, name, {**given, "all": False}) for one, name, given in turned]
        items.append(said)
        if said.calls:
            items.append(Results({one: f"result of {name}: {self.lorem()}" for one, name, _ in said.calls}))
        if not said.calls or self.pick.random() < 0.1:
            items.append(self.pick.choice(["Go on.", f"Go on with {self.lorem()}"]))

    def lorem(self) -> str:
        return " ".join(self.pick.choices(WORDS, k=self.pick.randint(1, 8)))

    def make_room(self) -> None:
        """Shorten the history without the model."""
        replies = [i for i, item in enumerate(self.items) if isinstance(item, Said)]
        self.trim(self.items)
        if self.has("clear", 0.4) and replies[: -self.window]:
            at = self.pick.choice(replies[: -self.window])
            emptied = self.pick.choice([{}, {"what": CLEARED}])
            self.items[at] = replace(self.items[at], calls=[(one, n, emptied) for one, n, _ in self.items[at].calls])
        if self.has("drop_oldest", 0.3) and len(replies) > 3:
            start = replies[self.pick.randint(1, len(replies) - 2)]
            first = self.pick.choice([self.items[0], "Earlier messages were dropped.", f"{self.items[0]}\n[...]"])
            self.items = [first, *self.items[start:]]

    def trim(self, items: list[Item]) -> None:
        """A sliding window: the results before it are cleared in place."""
        results = [i for i, item in enumerate(items) if isinstance(item, Results) and "trim" in self.traits]
        for i in results[: -self.window]:
            items[i] = Results(dict.fromkeys(items[i].texts, CLEARED))

    async def fork(self) -> None:
        """Two ways on from here. The agent goes on with one, whichever it tried first."""
        here, first = list(self.items), len(self.sampled)
        ways, own = [], []
        for way in range(2):
            items = list(here)
            if way and self.pick.random() < 0.5:
                items.append("Try another way.")
            for _ in range(self.pick.randint(1, 2)):
                self.go_on(items, await self.ask(Talk(items), "alternative"))
            ways.append(items)
            own.append(self.sampled[first:])
            first = len(self.sampled)
        chosen = self.pick.randrange(2)
        self.items = ways[chosen]
        for sampled in own[chosen]:
            sampled.kind = "main"

    async def compact(self) -> None:
        """A summary takes the place of the history, in the client's own words."""
        talk = Talk([*self.items, SUMMARY])
        own = "You summarise conversations."
        lines = [item.text if isinstance(item, Said) else str(item) for item in self.items]
        talk, kind = self.pick.choice(
            [
                (talk, "inline"),
                (replace(talk, tools=()), "summary"),
                (replace(talk, tools=(), system=own), "summary"),
                (Talk(["\n".join([*lines, SUMMARY])], own, ()), "summary"),
            ]
        )
        said = await self.ask(talk, kind)
        replies = [i for i, item in enumerate(self.items) if isinstance(item, Said)]
        kept = self.items[replies[-1] :] if replies and self.pick.random() < 0.4 else []
        task = [self.items[0]] if self.pick.random() < 0.5 else []
        told = [*task, self.rewritten(said.text)]
        self.items = [*(["\n\n".join(told)] if self.options.dropped == "mask" else told), *kept]

    def rewritten(self, text: str) -> str:
        text = re.sub(r"<analysis>.*?</analysis>", "", text, flags=re.S).strip()
        if self.pick.random() < 0.7:
            text = re.sub(r"<summary>(.*?)</summary>", r"Summary:\n\1", text, flags=re.S)
        if self.pick.random() < 0.3:
            text = f"{text[: len(text) * 6 // 10]} [...]"
        if self.pick.random() < 0.3:
            text = re.sub(r'"([^"]*)"', r"“\1”", text).replace("'", "’")
        if self.pick.random() < 0.3:
            text = " ".join(text.split())
        wrapped = "This session goes on from an earlier one.\n\n{}\n\nGo on without asking."
        forms = ["{}", wrapped, "<context>{}</context>"]
        return self.pick.choice(forms).replace("{}", text)

    async def finish(self) -> None:
        """The last request. A sub-agent may still be at work then, but ends first."""
        self.items.append(ANSWER)
        if not self.has("subagents", 0.5):
            self.answer = (await self.ask(Talk(self.items), "main")).text
            return
        self.traits.discard("retry")
        sub = self.subagent()
        await self.sub_step(sub, last=False)
        self.model.gates = gates = []
        main = asyncio.create_task(self.ask(Talk(self.items), "main"))
        await self.model.waits(1)
        last = asyncio.create_task(self.sub_step(sub, last=True))
        await self.model.waits(2)
        self.model.gates = None
        gates[1].set()
        await last
        gates[0].set()
        self.answer = (await main).text

    # Side conversations

    async def title(self) -> None:
        asked = f"{self.items[0]}\n{TITLE} It is number {self.number()}."  # an equal request would drop the one before
        await self.ask(Talk([asked], "You name conversations.", ()), "title")

    def subagent(self) -> Talk:
        """A system prompt of its own, and maybe tools. Its prompt may quote what the main agent said."""
        said = [item.text for item in self.items if isinstance(item, Said) and item.text]
        quoted = f"Before: {said[-1]}\n" if said and self.pick.random() < 0.5 else ""
        tools = self.pick.choice([("find",), ("find", "edit")])
        named = {"x-parent-session-id": "p", "x-session-id": f"s{self.number()}"} if self.pick.random() < 0.2 else {}
        system = f"You are sub-agent {self.number()}. Report what you find."
        return Talk([f"{quoted}Look up {self.lorem()}"], system, tools, named)

    async def sub_step(self, sub: Talk, *, last: bool) -> Said:
        if self.has("compact", 0.1) and len(sub.items) > 1:
            summary = await self.ask(replace(sub, items=[*sub.items, SUMMARY]), "sub")
            sub.items[:] = [self.rewritten(summary.text)]
        if last:
            sub.items.append(ANSWER)
        said = await self.ask(sub, "sub")
        if not last:
            self.go_on(sub.items, said)
            self.trim(sub.items)
        return said

    async def subagents(self) -> None:
        """One after another, or step by step beside each other. Their reports are results in the main conversation."""
        subs = [self.subagent() for _ in range(self.pick.randint(1, 2))]
        steps = [(sub, last) for sub in subs for last in [False] * self.pick.randint(0, 5) + [True]]
        if self.pick.random() < 0.5:  # each one's order stays
            order = [id(sub) for sub, _ in steps]
            self.pick.shuffle(order)
            left = {id(sub): [step for step in steps if step[0] is sub] for sub in subs}
            steps = [left[one].pop(0) for one in order]
        reports = [(await self.sub_step(sub, last=last)).text for sub, last in steps]
        self.items.append(f"The sub-agents report: {reports[-1]}")

"""The main line of random agents: what it ends with is the last answer that the agent itself has got.

An agent here keeps its own history, as a program does: it trims, summarises, rewrites what it was told, forks, repeats,
has helpers of its own beside it, and asks for titles. It knows what its last answer is; the session must find it.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace

import pytest

from agentrl.chat.options import SessionOptions
from agentrl.chat.request import Call, Entry
from agentrl.testing import call
from tests.gateway.client import FIND, Talk, results, told

LOOK = {"type": "function", "function": {**FIND["function"], "name": "look"}}
WORDS = (
    "river",
    "stone",
    "lamp",
    "cedar",
    "winter",
    "north",
    "copper",
    "glass",
    "harbour",
    "violet",
    "engine",
    "paper",
)
TITLES, SUMMARISER = Entry("system", "You write titles."), Entry("system", "Sum up what you are shown, briefly.")


class Model:
    """What the engine says next: a call, an answer, or a summary. Texts may be the same in different places."""

    def __init__(self, seed: int) -> None:
        self.random, self.next, self.said = random.Random(seed), "call", 0

        self.dull = self.random.random() < 0.2
        """It says the same again and again."""

    def words(self, count: int) -> str:
        return " ".join(self.random.choice(WORDS) for _ in range(count))

    def __call__(self, ids):
        self.said += 1
        kind, self.next = self.next, "call"
        if kind == "call" and self.dull:
            return {**call("find", what="more"), "content": "Let me look."}
        if kind == "text" and self.dull:
            return "I see."
        if kind == "summary":
            return f"<analysis>{self.words(30)}</analysis>\n<summary>\n{self.words(25)}\n</summary>"
        if kind == "call":
            text = self.random.choice(["", "Let me look.", self.words(6)])
            return {**call("find", what=self.words(3)), "content": text}
        if kind.startswith("spawn:"):
            return {**call("find", what=kind.removeprefix("spawn:")), "content": "I delegate."}
        return f"Answer {self.said}: {self.words(3)}" if self.random.random() < 0.7 else f"Done {self.said}."


@dataclass
class Style:
    """How one client writes."""

    tools: bool
    spelling: str
    window: int
    system_changes: bool
    stateless: bool
    compacts: str
    keeps: int
    place: str
    system: bool
    edits: bool
    ends: str


@dataclass
class Helper:
    """A sub-agent beside the main line: it goes on when the main one lets it."""

    entries: list[Entry]
    tools: tuple
    left: int
    done: bool = False


class Agent:
    def __init__(self, renderer, seed: int, options: SessionOptions | None = None) -> None:
        pick = self.random = random.Random(seed)
        self.model, stateless = Model(seed + 1), pick.random() < 0.15
        self.talk = Talk(renderer, self.model, options=options)
        self.style = Style(
            tools=pick.random() < 0.7,
            spelling=pick.choice(["verbatim", "stripped", "no ids", "other words", "defaults"]),
            window=pick.choice([0, 0, 1, 2, 4]),
            system_changes=pick.random() < 0.25,
            stateless=stateless,
            compacts=pick.choice(["", "", "behind", "behind", "without tools", "apart", "by itself"]),
            keeps=pick.choice([0, 0, 1, 2]),
            place=pick.choice(["user", "task", "system", "instead"]),
            system=stateless or pick.random() < 0.85,
            edits=pick.random() < 0.15,
            ends=pick.choice(["answer", "answer", "answer", "without tools", "in a call", "new tools"]),
        )
        self.model.dull &= self.style.tools and self.style.spelling in (
            "verbatim",
            "defaults",
        )  # else its replies are all the same
        self.tools = (FIND,) if self.style.tools else ()
        self.system = "You find things in a large archive. Use your tools, then answer in one sentence."
        self.task = Entry("user", f"Question {seed}: where is the {self.model.words(4)}?")
        self.past: list[list[Entry]] = []
        """A reply as it is told, and what came behind it."""
        self.notes = ""
        self.helpers: list[Helper] = []
        self.goes_on = False
        """It has told a reply back."""
        self.mine: list[str] = []
        """Ids of the replies that the main line went on with."""
        self.steps = 0

    # What the client writes

    def told(self, reply, behind: str | None = None) -> list[Entry]:
        entry, how = told(reply), self.style.spelling
        if how == "stripped":
            entry = replace(entry, text=entry.text.strip(), reasoning=None)
        elif how == "no ids":
            entry = replace(entry, receipts=(), calls=tuple(replace(c, id="") for c in entry.calls))
        elif how == "other words":
            entry = Entry("assistant", f"{entry.text}\nCalled {[c.name for c in entry.calls]}</code>")
        elif how == "defaults":
            calls = tuple(Call(c.id, c.name, {**c.arguments, "deep": False}) for c in entry.calls)
            entry = replace(entry, calls=calls)
        found = [f"Result: {self.model.words(20)}" for _ in reply.calls]
        answers = [Entry("user", text) for text in found] if how == "other words" else results(reply, *found)
        return [entry, *(answers or [Entry("user", behind or "Go on.")])]

    def opening(self) -> list[Entry]:
        place, notes, system = self.style.place, self.notes, self.system
        if self.style.system_changes:
            system = f"{system} You have taken {self.steps} steps."
        if notes and place == "system":
            system = f"{system}\n\nWhat happened so far: {notes}"
        task = self.task
        if notes and place == "task":
            task = replace(task, text=f"{task.text}\n\nProgress: {notes}")
        if notes and place == "instead":
            task = Entry("user", f"This goes on with an earlier conversation. Summary:\n{notes}")
        more = [Entry("user", f"Summary:\n{notes}", joined=True)] if notes and place == "user" else []
        return [*([Entry("system", system)] if self.style.system else []), task, *more]

    def history(self) -> list[Entry]:
        if self.style.stateless:
            lines = [f"{e.role}: {e.text} {[c.arguments for c in e.calls] or ''}" for one in self.past for e in one]
            *system, task = self.opening()[:2] if self.style.system else self.opening()[:1]
            return [*system, replace(task, text="\n".join([task.text, *lines])), *self.opening()[len(system) + 1 :]]
        cleared = len(self.past) - self.style.window if self.style.window else 0
        found = self.opening()
        for at, (reply, *rest) in enumerate(self.past):
            if self.style.edits and at < len(self.past) - 2 and reply.calls:
                reply = replace(reply, calls=tuple(replace(c, arguments={"what": "[cleared]"}) for c in reply.calls))
            found.append(reply)
            found += [replace(e, text="[cleared]") if at < cleared and e.role == "tool" else e for e in rest]
        return found

    # What it does

    async def ask(self, entries, **given):
        given = {"tools": self.tools, "digest": str(self.random.random()), **given}
        return await self.talk.says(*entries, **given)

    async def step(self, kind: str = "call"):
        self.model.next = kind if self.tools or kind != "call" else "text"
        self.goes_on = self.goes_on or bool(self.past)
        self.steps += 1
        reply = await self.ask(self.history())
        self.mine.append(reply.id)
        return reply

    async def work(self) -> None:
        kind = f"spawn:{self.model.words(6)}" if self.tools and self.random.random() < 0.2 else "call"
        reply = await self.step(kind)
        self.past.append(self.told(reply))
        if kind != "call":
            self.delegate(kind.removeprefix("spawn:"))

    def delegate(self, task: str | None = None) -> None:
        if not self.tools and not self.goes_on:
            return  # nothing tells the two conversations apart: without tools, the first that goes on is the main one
        kind = self.random.choice(["other", "other", "other", "same", *(["forked"] if task else [])])
        own = Entry("system", f"You are helper {len(self.helpers)}; do only what the message asks for.")
        tools = self.random.choice([self.tools, (LOOK,), ()]) if self.tools else ()
        begin, task = [own], Entry("user", task or f"Subtask: {self.model.words(5)}")
        if kind == "same":  # the main line's own instructions and tools
            begin, tools = self.opening()[: int(self.style.system)], self.tools
        if kind == "forked" and self.past and not self.style.stateless:
            begin = self.history()
        self.helpers.append(Helper([*begin, task], tools, self.random.randint(1, 4)))

    async def help(self, helper: Helper) -> None:
        helper.left -= 1
        self.model.next = "call" if helper.left and helper.tools else "text"
        reply = await self.ask(helper.entries, tools=helper.tools)
        helper.entries += [told(reply), *results(reply, *("found" for _ in reply.calls))]
        helper.entries += [] if reply.calls else [Entry("user", "More.")]
        helper.done = not helper.left

    async def compact(self) -> None:
        if not self.past or not self.style.compacts:
            return
        how, please = self.style.compacts, Entry("user", "Write a summary of all that happened.")
        self.model.next = "summary"
        if how == "by itself":
            summary = f"{len(self.past)} steps were taken."
        elif how == "apart":
            shown = "\n".join(f"{e.role}: {e.text}" for one in self.past for e in one)
            summary = (await self.ask([SUMMARISER, Entry("user", shown)], tools=())).content
        else:
            tools = () if how == "without tools" else self.tools
            summary = (await self.ask([*self.history(), please], tools=tools)).content
        rewritten = summary.partition("<summary>")[2].removesuffix("</summary>").strip() or summary
        self.notes = rewritten
        self.past = self.past[-self.style.keeps :] if self.style.keeps else []

    async def drop_oldest(self) -> None:
        if len(self.past) > 2:
            del self.past[0]

    async def fork(self) -> None:
        if self.style.stateless:
            return
        at = self.random.randrange(len(self.past) + 1)
        line = [*self.opening(), *(e for one in self.past[:at] for e in one), Entry("user", "What if not?")]
        self.model.next = "text"
        await self.ask(line)

    async def repeat(self) -> None:
        """It asks twice, at once or one after the other, and goes on with the second reply."""
        entries, digest = self.history(), str(self.random.random())
        self.model.next = "text"
        if self.random.random() < 0.5:
            first, second = (self.talk.ask(*entries, tools=self.tools, digest=digest) for _ in range(2))
            await asyncio.gather(*(self.talk.replies(each) for each in (first, second)))
            first.delivered(), second.delivered()
        else:
            await self.ask(entries)
        await self.work()

    async def drop(self) -> None:
        """A reply is not what it wants: it is left out, and an error is told."""
        self.model.next = "text"
        await self.ask(self.history())
        if self.past and self.random.random() < 0.5:
            self.past[-1].append(Entry("user", "Call a tool."))
        await self.work()

    async def title(self) -> None:
        self.model.next = "text"
        await self.ask([TITLES, Entry("user", f"A title for: {self.task.text}")], tools=())

    async def play(self) -> str:  # noqa: C901  moves in a row
        if self.random.random() < 0.3:
            await self.title()
        await self.work()
        moves = ["work", "work", "work", "work", "compact", "compact", "fork", "repeat", "drop", "title", "drop_oldest"]
        for _ in range(self.random.randint(1, 12)):
            if self.random.random() < 0.1:
                self.delegate()
            for helper in [h for h in self.helpers if not h.done]:
                if self.random.random() < 0.4:
                    await self.help(helper)
            await getattr(self, self.random.choice(moves))()
        for helper in self.helpers:
            if not helper.done:
                await self.help(helper)  # each has begun before the main line's last request
        answer = await self.end()
        for helper in self.helpers:
            while not helper.done:
                await self.help(helper)
        if self.random.random() < 0.3:
            self.model.next = "text"
            await self.ask([TITLES, Entry("user", f"A title for: {self.task.text} {answer.content}")], tools=())
        return answer.content

    async def end(self):
        """The last request of the main line."""
        ends, history = self.style.ends, self.history()
        if ends == "in a call" and self.tools:
            return await self.step("call")
        if ends == "without tools" and self.tools and self.past and self.past[-1][0].calls:
            self.model.next = "answer"
            reply = await self.ask([*history, Entry("user", "You have no steps left. Answer now.")], tools=())
            self.mine.append(reply.id)
            return reply
        if ends == "new tools" and self.tools:
            self.tools = (FIND, LOOK)
        return await self.step("answer")


async def played(renderer, seed: int):
    agent = Agent(renderer, seed, SessionOptions(side="mask"))
    answer = await agent.play()
    return agent, answer, agent.talk.end()


@pytest.mark.thorough
@pytest.mark.parametrize("block", range(8))
async def test_the_answer_is_the_one_that_the_agent_got_last(renderer, block):
    for seed in range(200 + 25 * block, 225 + 25 * block):
        agent, answer, t = await played(renderer, seed)
        assert t.answer == answer, (seed, agent.style)
        mine = {node.index for node in agent.talk.session.tree.nodes if node.id in agent.mine}
        masked = {node["id"] for node in t.session["nodes"] if node["masked"] == "side"}
        assert not mine & masked, (seed, agent.style, "its own work is masked")
        assert [a.text for a in t.said] == [node.action.text for node in agent.talk.session.tree.nodes], "in time"

"""An oracle for the reading of turns: a model that says what the template itself would write plays real episodes.

It shares no code with `agentrl.render` and knows agentrl only by its public API. For each scenario it

1. has the template render the conversation up to each assistant turn, with a generation prompt and without, and takes
   what stands behind the prompt as the text that a model trained on this template would sample;
2. plays an episode in which an engine samples exactly these texts, each up to the first stop token it was asked for;
3. compares what came back (content, reasoning, calls with their arguments) with the messages it began with.

What a template cannot carry (it raises, or leaves a part out) is told apart from what agentrl cannot read.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

from jinja2 import TemplateError as JinjaError

from agentrl import Action, Env, Generation, SamplingParams, StepResult, Task, TemplateError, run_episode
from agentrl.render import Renderer, load_renderer

REFUSALS = (JinjaError, TypeError, ValueError, KeyError, IndexError, AttributeError)
"""What a template raises that cannot carry a conversation."""

TOOL = {
    "type": "function",
    "function": {
        "name": "find_papers",
        "description": "Find papers in a library.",
        "parameters": {
            "type": "object",
            "properties": {
                "title": {"type": "string", "description": "Words of the title."},
                "year": {"type": "integer", "description": "Of publication."},
                "peer_reviewed": {"type": "boolean", "description": "Only these."},
                "weights": {"type": "object", "description": "By field.", "additionalProperties": {"type": "number"}},
                "tags": {"type": "array", "description": "All of them.", "items": {"type": "string"}},
            },
            "required": ["title"],
        },
    },
}
OTHER = {
    "type": "function",
    "function": {
        "name": "count",
        "description": "Count what was found.",
        "parameters": {
            "type": "object",
            "properties": {"what": {"type": "string", "description": "What to count."}},
            "required": ["what"],
        },
    },
}
PLAIN = {"title": "Rivers of Peru", "year": 1997, "peer_reviewed": True}
MIXED = {"title": "1997", "tags": ["delta", "été 漢字"], "weights": {"maps": 2.5, "text": 1}, "peer_reviewed": False}
HOSTILE = {"title": "the \"Río\" {of} [Péru]: 'x', it's 100 %", "tags": ['a "b"', "{c}", "d, e"]}
LINES = {"title": "first line\nsecond\tline \\ end"}

CLOSED = re.compile(r"\s*(<\|im_end\|>|<\|eot_id\|>|</s>)")
"""A turn that is over before it began: the templates differ in what stands before it."""

OPENING = re.compile(r"(?i)[<\[](?![^<>]*end)[^<>\[\]/]*(think|reason)[^<>\[\]/]*[>\]]\s*$")
"""A prompt that leaves a thought open: only a thought can follow."""

Status = Literal["right", "wrong", "not carried", "refused"]


@dataclass(frozen=True, slots=True)
class Said:
    """One assistant turn of a scenario."""

    content: str = ""
    reasoning: str | None = None
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    turns: tuple[Said, ...]
    system: str | None = None


FIND, COUNT = "find_papers", "count"
THE_ANSWER = Said("There are 42 of them.")
SCENARIOS = (
    Scenario("answer", (THE_ANSWER,)),
    Scenario("one call", (Said(calls=((FIND, PLAIN),)), THE_ANSWER)),
    Scenario("system", (Said(calls=((FIND, PLAIN),)), THE_ANSWER), system="Be a careful librarian."),
    Scenario("two turns", (Said(calls=((FIND, MIXED),)), Said(calls=((COUNT, {"what": "maps"}),)), THE_ANSWER)),
    Scenario("quotes", (Said(calls=((FIND, HOSTILE),)), Said(calls=((COUNT, {"what": '{"a": 1}'}),)), THE_ANSWER)),
    Scenario("lines", (Said(calls=((FIND, LINES),)), THE_ANSWER)),
    Scenario("parallel", (Said(calls=((FIND, PLAIN), (COUNT, {"what": "rivers"}))), THE_ANSWER)),
    Scenario("text before", (Said("I will look it up.", calls=((FIND, PLAIN),)), THE_ANSWER)),
    Scenario("thought", (Said("There are 42 of them.", reasoning="The library knows. Count them."),)),
    Scenario(
        "thought and call",
        (
            Said(reasoning="I need the library.", calls=((FIND, PLAIN),)),
            Said("There are 42.", reasoning="So it is 42."),
        ),
    ),
)
NEEDED = ("answer", "one call", "two turns", "quotes")
"""Without these, a template plays no tool episode. All others count where the template carries them."""


@dataclass(slots=True)
class Outcome:
    scenario: str
    status: Status
    detail: str = ""


@dataclass(slots=True)
class Report:
    """What the oracle found of one template."""

    name: str
    carries_tools: bool
    level: str = ""
    refusal: str = ""
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """It plays a tool episode, and everything that the template can carry is read back."""
        status = {outcome.scenario: outcome.status for outcome in self.outcomes}
        needed = all(status.get(name) == "right" for name in NEEDED if status.get(name) != "not carried")
        played = status.get("one call") == "right"
        return not self.refusal and played and needed and "wrong" not in status.values()

    @property
    def wrong(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.status in ("wrong", "refused")]

    @property
    def skipped(self) -> list[str]:
        return [outcome.scenario for outcome in self.outcomes if outcome.status == "not carried"]

    @property
    def verdict(self) -> str:
        """One line: right, or what is not; and what the template does not carry."""
        if not self.carries_tools:
            return f"no tool conversation: {self.refusal}"
        if self.refusal:
            return f"refused: {self.refusal}"
        wrong = "; ".join(f"{outcome.scenario}: {outcome.detail}" for outcome in self.wrong)
        skipped = f" [not carried: {', '.join(self.skipped)}]" if self.skipped else ""
        return f"{self.level}: {wrong or 'right'}{skipped}"

    def as_row(self) -> dict[str, Any]:
        row = {"right": self.right, "carries_tools": self.carries_tools, "level": self.level, "refusal": self.refusal}
        wrong = {outcome.scenario: outcome.detail for outcome in self.wrong}
        return {
            key: value for key, value in {**row, "wrong": wrong, "not_carried": self.skipped}.items() if value != ""
        }


class NotCarried(Exception):
    """The template cannot write this, so no model would say it."""


@dataclass(slots=True)
class Template:
    """A template as the tokenizer renders it, and the spelling of messages that it understands."""

    tokenizer: Any
    tools: Sequence[Mapping[str, Any]] = (TOOL, OTHER)
    text_arguments: bool = False
    numbered_ids: bool = False
    silent: str | None = ""
    """The content of a turn that only calls."""
    thought: str | None = None
    """The key under which it takes thoughts; "inline" where they stand in the content."""

    def render(self, messages: Sequence[Mapping[str, Any]], *, prompt: bool) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=list(self.tools),
                add_generation_prompt=prompt,
                tokenize=False,
            )
        except REFUSALS as exc:
            raise NotCarried(f"the template raises {type(exc).__name__}: {exc}") from exc
        assert isinstance(text, str)
        return text

    def settle(self) -> Template:
        """Find how it takes arguments, ids and thoughts. Raises NotCarried if it cannot write a call."""
        for numbered, text, silent in product((False, True), (False, True), ("", None)):
            self.numbered_ids, self.text_arguments, self.silent = numbered, text, silent
            try:
                written = self.render([USER, self.message(Said(calls=((FIND, {"title": "Zq1x"}),)), 0)], prompt=False)
            except NotCarried:
                continue
            turn = written.rpartition("question?")[2]
            if "Zq1x" in turn and FIND in turn and not _mangled(turn):
                self.thought = self._find_thought()
                return self
        raise NotCarried("the template writes no call")

    def _find_thought(self) -> str | None:
        for key in ("reasoning_content", "reasoning", "thinking", "thought"):
            try:
                answer = {"role": "assistant", "content": "Zq2y", key: "Zq3z"}
                call = {**self.message(Said(calls=((FIND, PLAIN),)), 0), key: "Zq3z"}
                written = self.render([USER, answer], prompt=False) + self.render([USER, call], prompt=False)
            except NotCarried:
                continue
            if "Zq3z" in written:
                return key
        source = str(self.tokenizer.chat_template)
        return (
            "inline"
            if re.search(r"split\(['\"]</think>", source) or OPENING.search(self.render([USER], prompt=True))
            else None
        )

    def message(self, said: Said, turn: int) -> dict[str, Any]:
        content = said.content or (self.silent if said.calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if said.reasoning is not None:
            if self.thought is None:
                raise NotCarried("the template knows no thoughts")
            if self.thought == "inline":
                message["content"] = f"<think>\n{said.reasoning}\n</think>\n\n{said.content}"
            else:
                message[str(self.thought)] = said.reasoning
        if said.calls:
            message["tool_calls"] = [
                {
                    "id": self.id(name, turn, number),
                    "type": "function",
                    "function": {
                        "name": name,
                        "arguments": json.dumps(arguments, ensure_ascii=False)
                        if self.text_arguments
                        else dict(arguments),
                    },
                }
                for number, (name, arguments) in enumerate(said.calls)
            ]
        return message

    def as_written(self, before: Sequence[Mapping[str, Any]], said: Said) -> Said:
        """The same turn, its content told as a thought where the template writes the two alike (gpt-oss)."""
        if not (said.content and said.calls and self.thought not in (None, "inline") and said.reasoning is None):
            return said
        thought = Said("", said.content, said.calls)
        same = self.render([*before, self.message(said, 0)], prompt=False) == self.render(
            [*before, self.message(thought, 0)], prompt=False
        )
        return thought if same else said

    def id(self, name: str, turn: int, number: int) -> str:
        return f"functions.{name}:{turn + number}" if self.numbered_ids else f"k7Qx2m{turn}a{number}"

    def sampled(self, before: Sequence[Mapping[str, Any]], message: Mapping[str, Any], after: Any) -> tuple[str, bool]:
        """What a model would say for `message`, and whether a thought had to be put before it to close an open one."""
        asked, full = self.render(before, prompt=True), self.render([*before, message], prompt=False)
        try:  # the next turn's marker may be what ends this one
            longer = self.render([*before, message, *after], prompt=True) if after else full
        except NotCarried:
            longer = full
        full = longer if longer.startswith(full.rstrip()) else full + self._ending()
        if full.startswith(asked):
            said, closing = full[len(asked) :], self._closing()
            unclosed = OPENING.search(asked) is not None and closing.strip() not in said
            return (f"Zq4w.{closing}{said.lstrip()}", True) if unclosed else (said, False)
        shown = str(before[-1]["content"])
        behind = asked.rpartition(shown)[2]
        where = full.find(shown + behind)
        if shown in asked and where >= 0:
            return full[where + len(shown) + len(behind) :], False
        same = self._common(asked, full)
        opened, rest = asked[len(same) :], full[len(same) :]
        if opened.strip() and (thought := self._with_a_thought(before, message, asked)):
            return thought, True
        if len(opened) > 60 or CLOSED.match(rest):
            generation_prompt = asked.removeprefix(self.render(before, prompt=False))
            at = full.find(generation_prompt, max(0, len(same) - len(generation_prompt))) if generation_prompt else -1
            if at < 0:
                raise NotCarried("what the template writes for the turn does not follow its own prompt")
            return full[at + len(generation_prompt) :], False
        if OPENING.search(opened):
            closing = self._closing()
            if rest.lstrip().startswith(closing.strip()):
                return f"Zq4w.{rest}", True
            return f"Zq4w.{closing}{rest.lstrip()}", True
        header = asked.removeprefix(self.render(before, prompt=False))  # a template may change what stands before it
        return rest.removeprefix(header), False

    def _with_a_thought(self, before: Sequence[Mapping[str, Any]], message: Mapping[str, Any], asked: str) -> str:
        """The turn with a thought in it, where that follows the prompt, which then has left one open; else ""."""
        if self.thought in (None, "inline"):
            return ""
        full = self.render([*before, {**message, str(self.thought): "Zq4w."}], prompt=False) + self._ending()
        return full[len(asked) :] if full.startswith(asked) and "Zq4w." in full else ""

    def _closing(self) -> str:
        """What the template writes between a thought and what follows it."""
        if self.thought in (None, "inline"):
            return "\n</think>\n\n"
        thought = {"role": "assistant", "content": "Zq2y", str(self.thought): "Zq3z"}
        between = self.render([USER, thought], prompt=False).rpartition("Zq3z")[2].partition("Zq2y")[0]
        call = {**self.message(Said(calls=((FIND, PLAIN),)), 0), str(self.thought): "Zq3z"}
        behind = self.render([USER, call], prompt=False).rpartition("Zq3z")[2]
        return self._common(between, behind) or between

    def _ending(self) -> str:
        """What the template writes behind an answer once a question follows, and not while the answer is the last."""
        answer = {"role": "assistant", "content": "Zq2y"}
        last = self.render([USER, answer], prompt=False).rpartition("Zq2y")[2]
        followed = self.render([USER, answer, {"role": "user", "content": "Zq6u"}], prompt=True)
        behind = followed.rpartition("Zq2y")[2].partition("Zq6u")[0]
        return behind.removeprefix(last.rstrip()) if behind.startswith(last.rstrip()) else ""

    def _common(self, a: str, b: str) -> str:
        """The longest common beginning in whole tokens, so that no marker is cut in two."""
        encode = lambda text: self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)  # noqa: E731
        first, second = encode(a), encode(b)
        length = 0
        for x, y, (_, end) in zip(first["input_ids"], second["input_ids"], first["offset_mapping"], strict=False):
            if x != y:
                break
            length = end
        return a[:length]


USER = {"role": "user", "content": "A question?"}


def _mangled(written: str) -> bool:
    """Arguments came out as Python's repr of a dict, or escaped once too often."""
    return (
        "{'title'" in written
        or '{\\\\"title' in written
        or ('"{\\"title' in written and '"arguments": "{' not in written)
    )


def found(turn: int, number: int) -> str:
    """What a tool answers: never the same twice in an episode."""
    return f"Found {7 * turn + number + 30} papers."


class Library(Env):
    """Takes any call, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = 0

    def tools(self) -> Sequence[Mapping[str, Any]]:  # type: ignore[override]
        return [TOOL, OTHER]

    def reset(self, task: Task) -> Any:
        return task.prompt

    def step(self, action: Action) -> StepResult:
        if not action.calls:
            return StepResult(done=True)
        self.turn += 1
        return StepResult(
            [
                {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": found(self.turn - 1, i)}
                for i, call in enumerate(action.calls)
            ]
        )

    def score(self, trajectory: Any) -> float:
        return 1.0


class Parrot:
    """An engine that samples given texts, each up to the first stop token that it was asked for."""

    def __init__(self, tokenizer: Any, texts: Sequence[str]) -> None:
        self.tokenizer, self.texts, self.unended = tokenizer, list(texts), False

    async def generate(
        self, input_ids: Sequence[int], sampling_params: SamplingParams, *, session_id: str = "", rid: str = ""
    ) -> Generation:
        tokens = self.tokenizer.encode(self.texts.pop(0), add_special_tokens=False) if self.texts else []
        stops = set(sampling_params.get("stop_token_ids") or ())
        for length, token in enumerate(tokens, 1):
            if token in stops:
                return Generation(tokens[:length], [-0.5] * length, "stop", matched=token)
        self.unended = True
        return Generation(tokens, [-0.5] * len(tokens), "length")

    async def abort(self, rid: str | None = None) -> None: ...

    async def context_length(self) -> int:
        return 100_000

    async def close(self) -> None: ...


def examine(name: str, tokenizer: Any, *, scenarios: Sequence[Scenario] = SCENARIOS) -> Report:
    """Play all scenarios on one template."""
    template = Template(tokenizer)
    try:
        template.settle()
        _carries_results(template)
    except NotCarried as exc:
        return Report(name, carries_tools=False, refusal=str(exc))
    try:
        renderer = load_renderer(tokenizer)
    except Exception as exc:  # noqa: BLE001 - whatever is not a TemplateError is a crash, and shown as one
        crash = "" if isinstance(exc, TemplateError) else f"CRASH, {type(exc).__name__}: "
        return Report(name, carries_tools=True, refusal=f"{crash}{exc}")
    report = Report(name, carries_tools=True, level=renderer.certificate.level)
    for scenario in scenarios:
        try:
            detail = play(template, renderer, scenario)
            report.outcomes.append(Outcome(scenario.name, "wrong" if detail else "right", detail))
        except NotCarried as exc:
            report.outcomes.append(Outcome(scenario.name, "not carried", str(exc)))
        except TemplateError as exc:
            report.outcomes.append(Outcome(scenario.name, "refused", str(exc)))
    return report


def _carries_results(template: Template) -> None:
    said = Said(calls=((FIND, {"title": "Zq1x"}),))
    call = template.message(said, 0)
    result = {"role": "tool", "tool_call_id": template.id(FIND, 0, 0), "name": FIND, "content": "Zq5v"}
    if "Zq5v" not in template.render([USER, call, result], prompt=True):
        raise NotCarried("the template leaves out tool results")


def play(template: Template, renderer: Renderer, scenario: Scenario) -> str:
    """Play one scenario; how it differs, "" if it does not. Raises NotCarried."""
    start = [*([{"role": "system", "content": scenario.system}] if scenario.system else []), USER]
    messages: list[dict[str, Any]] = list(start)
    texts, expected = list[str](), list[Said]()
    for number, said in enumerate(scenario.turns):
        message = template.message(said, number)
        after = [
            {"role": "tool", "tool_call_id": template.id(name, number, i), "name": name, "content": found(number, i)}
            for i, (name, _) in enumerate(said.calls)
        ]
        text, thought = template.sampled(messages, message, after or [{"role": "user", "content": "And then?"}])
        _require_carried(template, said, text)
        texts.append(text)
        expected.append(Said(said.content, "Zq4w." if thought else said.reasoning, said.calls))
        messages += [message, *after]
    env, engine = Library(), Parrot(template.tokenizer, texts)
    prompt = [dict(message) for message in start]
    trajectory = asyncio.run(run_episode(env, Task(prompt=prompt), engine=engine, renderer=renderer))
    if trajectory.failure is not None:
        return f"failed in {trajectory.failure.boundary}: {trajectory.failure.error}"
    if engine.unended:
        said = texts[len(trajectory.turns) - 1] if len(trajectory.turns) <= len(texts) else "an extra turn"
        return f"no stop token ends {said!r}; {_differs(trajectory.actions, expected)}"
    return _differs(trajectory.actions, [template.as_written(messages[: len(start)], said) for said in expected])


def _require_carried(template: Template, said: Said, text: str) -> None:
    text = text.partition(str(template.tokenizer.eos_token))[0]  # what stands behind it is another turn
    for word in (said.content, *((said.reasoning,) if said.reasoning else ())):
        if word and word not in text:
            raise NotCarried(f"the template leaves out {word!r}")
    for name, arguments in said.calls:
        shown = name in text and all(key in text for key in arguments)
        if not shown:
            raise NotCarried(f"the template leaves out the call of {name}")


def _differs(actions: Sequence[Action], expected: Sequence[Said]) -> str:
    for number, (action, said) in enumerate(zip(actions, expected, strict=False)):
        got = [(call.name, dict(call.arguments)) for call in action.calls]
        errors = [call.error for call in action.calls if call.error]
        checks: list[tuple[str, Any, Any]] = [
            ("calls", got, [(name, dict(arguments)) for name, arguments in said.calls]),
            ("content", action.content.strip(), said.content),
            ("reasoning", (action.reasoning or "").strip() or None, said.reasoning),
        ]
        for what, found, wanted in checks:
            if found != wanted:
                because = f" ({'; '.join(map(str, errors))})" if errors else ""
                return f"turn {number}: {what} {found!r}, but {wanted!r} was said{because}"
    return "" if len(actions) == len(expected) else f"{len(actions)} turns of {len(expected)}"


def summary(reports: Sequence[Report]) -> str:
    tools = [report for report in reports if report.carries_tools]
    right = sum(report.right for report in tools)
    return f"{right} of {len(tools)} templates that carry a tool conversation are played and read back right"

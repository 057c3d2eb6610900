"""Agents of many shapes. Each has the reply that its session must end with: the one that `run` returned or used."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentrl.testing import call
from tests.gateway.acting import TOOL, Acting, Actor, system, user


@dataclass(frozen=True)
class Shape:
    """An agent, and the reply that ends its main line."""

    run: Acting
    answer: str
    differs: int = 0
    """How many results are no reply's text."""


SHAPES: dict[str, Shape] = {}


def ends_with(answer: str, *, differs: int = 0) -> Callable[[Acting], Acting]:
    def add(run: Acting) -> Acting:
        SHAPES[run.__name__] = Shape(run, answer, differs)
        return run

    return add


def echo(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


async def with_tools(actor: Actor, role: str, task: str, answer: str, *, count: int = 1) -> str:
    """A loop with a tool."""
    line: list[Any] = [system(role), user(task)]
    for number in range(count):
        reply = await actor.asks(*line, tools=[TOOL], reply=call("find", what=f"{task} {number}"))
        result = {"role": "tool", "tool_call_id": reply.tool_calls[0].id, "content": f"page {number} of {task}"}
        line += [reply.model_dump(exclude_none=True), result]
    return await actor.ask(*line, tools=[TOOL], reply=answer)


# Steps under several instructions


@ends_with("All in all, the notes say: Rome.")
async def map_reduce(actor: Actor) -> str:
    async def mapped(number: int) -> str:
        return await actor.ask(system("You sum up a page."), user(f"Page {number}"), reply=f"Page {number} is on Rome.")

    notes = await asyncio.gather(*map(mapped, range(4)))
    return await actor.ask(system("You join notes."), user("\n".join(notes)), reply="All in all, the notes say: Rome.")


@ends_with("It is so.")
async def map_reduce_with_long_notes(actor: Actor) -> str:
    long = "This page speaks of many things, of ships and of kings, at a length that none would read twice. " * 3
    notes = [await actor.ask(system("You sum up."), user(f"Page {n}"), reply=f"{n}: {long}") for n in range(3)]
    return await actor.ask(system("You answer."), user("\n".join(notes)), reply="It is so.")


@ends_with("The report: rivers and hills.")
async def workers_with_tools_and_a_writer(actor: Actor) -> str:
    reports = await asyncio.gather(
        with_tools(actor, "You are a worker.", "Look for rivers.", "There are three rivers."),
        with_tools(actor, "You are a worker.", "Look for hills.", "There are seven hills."),
    )
    return await actor.ask(
        system("You write."), user("Write it up:\n" + "\n".join(reports)), reply="The report: rivers and hills."
    )


@ends_with("The report: seas.")
async def workers_one_after_the_other_and_a_writer_that_returns_nothing(actor: Actor) -> None:
    reports = [
        await with_tools(actor, "You are a worker.", f"Look for {thing}.", f"Some {thing}.", count=2)
        for thing in ("seas", "lakes")
    ]
    await actor.ask(system("You write."), user("Write it up:\n" + "\n".join(reports)), reply="The report: seas.")


@ends_with("Rome.")
async def query_rewriting(actor: Actor) -> str:
    query = await actor.ask(system("You rewrite questions."), user("Which city?"), reply="capital of Italy")
    return await actor.ask(system("You answer."), user(f"{query}\nPages: Rome, Milan"), reply="Rome.")


@ends_with("Rome.")
async def query_rewriting_that_returns_nothing(actor: Actor) -> None:
    query = await actor.ask(system("You rewrite questions."), user("Which city?"), reply="capital of Italy")
    await actor.ask(system("You answer."), user(f"{query}\nPages: Rome, Milan"), reply="Rome.")


@ends_with("def f(): return 2")
async def two_steps_under_two_instructions(actor: Actor) -> str:
    plan = await actor.ask(system("You are an architect."), user("A function, please."), reply="Return a constant.")
    return await actor.ask(system("You are a coder."), user(plan), reply="def f(): return 2")


@ends_with("Third: C")
async def three_steps_without_system(actor: Actor) -> str:
    first = await actor.ask(user("First, think of a letter."), reply="First: A")
    two = await actor.ask(user(f"Improve this: {first}"), reply="Second: B")
    return await actor.ask(user(f"Now finish it: {two}"), reply="Third: C")


@ends_with("The plan is done: 4 tests pass.")
async def planner_and_executor_with_tools(actor: Actor) -> str:
    plan = await actor.ask(system("You plan."), user("Fix it."), reply="1. Read. 2. Fix.")
    return await with_tools(actor, "You execute plans.", plan, "The plan is done: 4 tests pass.", count=2)


@ends_with("Summary: it went well.")
async def executor_and_a_summary(actor: Actor) -> str:
    done = await with_tools(actor, "You execute plans.", "Fix it.", "Fixed the parser in two places.", count=3)
    return await actor.ask(system("You sum up."), user(done), reply="Summary: it went well.")


@ends_with("Step 3 done")
async def plan_and_steps_by_one_executor(actor: Actor) -> str:
    await actor.ask(system("You plan."), user("Three steps."), reply="a, b and c")
    line, reply = [system("You do one step at a time.")], ""
    for number, step in enumerate("abc", 1):
        line.append(user(f"Do {step}"))
        reply = await actor.ask(*line, reply=f"Step {number} done")
        line.append(echo(reply))
    return reply


# Several roles in turn


async def debate(actor: Actor, rounds: int) -> list[str]:
    sides = {"Pro": [system("You are for it.")], "Con": [system("You are against it.")]}
    heard, speeches = "Shall we?", list[str]()
    for number in range(rounds):
        for side, line in sides.items():
            line.append(user(heard))
            heard = await actor.ask(*line, reply=f"{side} speaks, round {number}.")
            line.append(echo(heard))
            speeches.append(heard)
    return speeches


@ends_with("Con speaks, round 2.")
async def debate_that_returns_the_last_word(actor: Actor) -> str:
    return (await debate(actor, 3))[-1]


@ends_with("Pro wins.")
async def debate_with_a_judge(actor: Actor) -> str:
    speeches = await debate(actor, 2)
    return await actor.ask(system("You judge debates."), user("\n\n".join(speeches)), reply="Pro wins.")


@ends_with("The final poem.")
async def critic_loop_in_one_history(actor: Actor) -> str:
    line, draft = [system("You are a poet."), user("A poem.")], ""
    for number in range(3):
        draft = await actor.ask(*line, reply=f"Draft {number}." if number < 2 else "The final poem.")
        verdict = await actor.ask(system("You are a critic."), user(draft), reply=f"Verdict {number}: fair.")
        line += [echo(draft), user(verdict)]
    return draft


@ends_with("Draft 1, better.")
async def critic_loop_with_fresh_prompts(actor: Actor) -> str:
    draft = await actor.ask(system("You are a poet."), user("A poem."), reply="Draft 0.")
    verdict = await actor.ask(
        system("You are a critic of poems, and long ones at that."),
        user(draft),
        reply="This is a long verdict on a short poem, which says that the poem could be better in many ways.",
    )
    better = await actor.ask(system("You are a poet."), user(f"{draft}\n{verdict}"), reply="Draft 1, better.")
    await actor.ask(system("You are a critic of poems, and long ones at that."), user(better), reply="Good.")
    return better


@ends_with("Guess 2 of the game")
async def best_draft_is_not_the_last(actor: Actor) -> str:
    line = [system("You guess."), user("Guess.")]
    for number in (1, 2, 3):
        reply = await actor.ask(*line, reply=f"Guess {number} of the game")
        line += [echo(reply), user("Again.")]
    return "Guess 2 of the game"


@ends_with("Expert: use glue.")
async def router_and_expert(actor: Actor) -> str:
    await actor.ask(system("You route. Write the name of an expert."), user("It broke."), reply="carpenter")
    return await actor.ask(system("You are the carpenter."), user("It broke."), reply="Expert: use glue.")


@ends_with("Expert: solder it.")
async def router_with_a_call_and_an_expert_without_tools(actor: Actor) -> None:
    await actor.asks(system("You route."), user("It broke."), tools=[TOOL], reply=call("find", what="smith"))
    await actor.ask(system("You are the smith."), user("It broke."), reply="Expert: solder it.")


# Votes and judges


@ends_with("Paris")
async def vote(actor: Actor) -> str:
    votes = [
        await actor.ask(system("You vote."), user("Which city?"), reply=reply, seed=number)
        for number, reply in enumerate(("Paris", "Rome", "Paris", "Oslo"))
    ]
    return max(votes, key=votes.count)


@ends_with("It is 42, since 6 * 7 = 42.")
async def vote_over_numbers_in_text(actor: Actor) -> str:
    replies = ("I get 41.", "It is 42, since 6 * 7 = 42.", "Perhaps 40")
    votes = [await actor.ask(user(f"6 * 7? Try {number}."), reply=reply) for number, reply in enumerate(replies)]
    return re.findall(r"\d+", votes[1])[-1]


@ends_with("A red house")
async def judge_picks_one(actor: Actor) -> str:
    drawn = await asyncio.gather(
        *(
            actor.ask(system("You imagine."), user(f"A house, please. {n}"), reply=f"A {colour} house")
            for n, colour in enumerate(("blue", "red", "green"))
        )
    )
    chosen = await actor.ask(system("You choose. Write a number."), user("\n".join(drawn)), reply="2")
    return drawn[int(chosen) - 1]


@ends_with("3")
async def judge_whose_choice_nobody_returns(actor: Actor) -> None:
    drawn = [
        await actor.ask(system("You imagine."), user(f"A house. {n}"), reply=f"A {colour} house")
        for n, colour in enumerate(("blue", "red", "green"))
    ]
    await actor.ask(system("You choose. Write a number."), user("\n".join(drawn)), reply="3")


@ends_with("Parallel B")
async def fastest_of_some(actor: Actor) -> str:
    first = await actor.ask(system("Solver"), user("One"), reply="Parallel A")
    second = await actor.ask(system("Solver"), user("Two"), reply="Parallel B")
    await actor.ask(system("Solver"), user("Three"), reply="Parallel C")
    return max(first, second)


# Requests beside the answer


@ends_with("The capital is Rome.")
async def title_after_the_answer(actor: Actor) -> str:
    answer = await actor.ask(system("You answer."), user("Capital of Italy?"), reply="The capital is Rome.")
    await actor.ask(system("You write titles."), user(f"A title for: {answer}"), reply="Capital of Italy")
    return answer


@ends_with("The capital is Oslo.")
async def title_before_the_answer(actor: Actor) -> str:
    await actor.ask(system("You write titles."), user("Capital of Norway?"), reply="Capital of Norway")
    return await actor.ask(system("You answer."), user("Capital of Norway?"), reply="The capital is Oslo.")


@ends_with("Found it: Rome.")
async def title_in_the_same_history(actor: Actor) -> str:
    line = [system("You answer."), user("Capital of Italy?")]
    answer = await actor.ask(*line, reply="Found it: Rome.")
    await actor.ask(*line, echo(answer), user("A title for this, please."), reply="Italy")
    return answer


@ends_with("Found it: Bern.")
async def verdict_after_tools(actor: Actor) -> str:
    answer = await with_tools(actor, "You search.", "Capital of Switzerland?", "Found it: Bern.")
    await actor.ask(system("You check. Write yes or no."), user(answer), reply="yes")
    return answer


@ends_with("Short.")
async def helper_with_a_longer_reply(actor: Actor) -> str:
    helped = await with_tools(actor, "You help.", "Tell all.", "A very long help, on and on. " * 8, count=3)
    return await actor.ask(system("You answer."), user(helped), reply="Short.")


@ends_with("Rome, it is.")
async def guard_before_and_after(actor: Actor) -> str:
    await actor.ask(system("Is this safe? yes or no"), user("Which city?"), reply="yes")
    answer = await actor.ask(system("You answer."), user("Which city?"), reply="Rome, it is.")
    await actor.ask(system("Is this answer safe? yes or no"), user(answer), reply="yes")
    return answer


# Retries


@ends_with('{"city": "Rome"}')
async def retry_after_a_bad_reply(actor: Actor) -> dict[str, str]:
    line = [system("You write JSON."), user("Which city?")]
    bad = await actor.ask(*line, reply="Rome")
    good = await actor.ask(*line, echo(bad), user("That is no JSON."), reply='{"city": "Rome"}')
    return json.loads(good)  # type: ignore[no-any-return]


@ends_with("better than before")
async def retry_with_other_instructions(actor: Actor) -> str:
    await actor.ask(system("You answer."), user("Which city?"), reply="I do not know.")
    return await actor.ask(
        system("Never say that you do not know."), user("Please, which city?"), reply="better than before"
    )


@ends_with("Good enough")
async def temperature_ladder(actor: Actor) -> str:
    line = [system("You answer."), user("Which city?")]
    reply = [
        await actor.ask(*line, reply=r, temperature=t) for t, r in ((0.0, "Bad"), (0.5, "Good enough"), (1, "Odd"))
    ]
    return reply[1]


# What `run` returns


@ends_with("The answer is 42.")
async def number_out_of_the_reply(actor: Actor) -> int:
    hint = await actor.ask(system("You give hints."), user("6 * 7?"), reply="Multiply them.")
    reply = await actor.ask(system("You compute."), user(hint), reply="The answer is 42.")
    return int(re.findall(r"\d+", reply)[-1])


@ends_with("So \\boxed{\\frac{1}{2}}, I think.")
async def boxed_part_of_the_reply(actor: Actor) -> str:
    hint = await actor.ask(system("You give hints."), user("A half?"), reply="Divide 1 by 2.")
    await actor.ask(system("You compute."), user(hint), reply="So \\boxed{\\frac{1}{2}}, I think.")
    return "\\frac{1}{2}"


@ends_with("**Rome**\n")
async def markdown_taken_away(actor: Actor) -> str:
    hint = await actor.ask(system("You give hints."), user("Which city?"), reply="Seven hills, a river, and cats")
    reply = await actor.ask(system("You answer."), user(hint), reply="**Rome**\n")
    return reply.replace("*", "").strip()


@ends_with("```python\nprint(1)\n```")
async def code_out_of_a_fence(actor: Actor) -> str:
    await actor.ask(system("You plan."), user("Print one."), reply="Use a call of print.")
    reply = await actor.ask(system("You code."), user("Use a call of print."), reply="```python\nprint(1)\n```")
    return reply.removeprefix("```python\n").removesuffix("\n```")


@ends_with('{"answer": "Paris", "sources": ["a", "b"]}')
async def field_of_the_json(actor: Actor) -> str:
    await actor.ask(system("You plan."), user("Which?"), reply="Look in a and b.")
    reply = await actor.ask(
        system("You answer."), user("Look in a and b."), reply='{"answer": "Paris", "sources": ["a", "b"]}'
    )
    return str(json.loads(reply)["answer"])


@ends_with("The final one.")
async def dict_with_all_parts(actor: Actor) -> dict[str, Any]:
    plan = await actor.ask(system("You plan."), user("Which?"), reply="The plan of it.")
    answer = await actor.ask(system("You answer."), user(plan), reply="The final one.")
    title = await actor.ask(system("You write titles."), user(answer), reply="The title of it.")
    return {"title": title, "answer": answer, "plan": plan, "seconds": 3}


@ends_with('{"name": "Rome", "people": 3000000}')
async def object_of_a_class(actor: Actor) -> dict[str, Any]:
    from pydantic import BaseModel

    class City(BaseModel):
        name: str
        people: int

    await actor.ask(system("You plan."), user("Which?"), reply="A city of 3000000 people, please.")
    reply = await actor.ask(system("You answer."), user("Now."), reply='{"name": "Rome", "people": 3000000}')
    return City.model_validate_json(reply).model_dump()


@ends_with("Second part.")
async def list_of_the_parts(actor: Actor) -> list[str]:
    return [
        await actor.ask(system("You write a part."), user(name), reply=f"{name} part.") for name in ("First", "Second")
    ]


@ends_with("It is Rome")
async def text_around_the_reply(actor: Actor) -> str:
    await actor.ask(system("You plan."), user("Which?"), reply="Think of hills.")
    reply = await actor.ask(system("You answer."), user("Think of hills."), reply="It is Rome")
    return f"Dear user,\n{reply}\nYours, the agent"


@ends_with("Out of the call")
async def text_beside_a_final_call(actor: Actor) -> str:
    """As agents end that answer with a call of `final_answer`."""
    await actor.ask(system("You help with all that there is."), user("Help."), reply="I help.")
    reply = await actor.asks(
        system("You end with a call."),
        user("Which city is it?"),
        tools=[TOOL],
        reply={**call("find", what="Rome, of course"), "content": "Out of the call"},
    )
    await actor.ask(system("You write titles."), user("Which city is it?"), reply="Cities")
    return str(json.loads(reply.tool_calls[0].function.arguments)["what"])


@ends_with("Found: Rome")
async def exit_code_of_a_program(actor: Actor) -> int:
    """A number that is in a helper's reply by chance."""
    answer = await with_tools(actor, "You search.", "Which city?", "Found: Rome")
    await actor.ask(system("You count errors."), user(answer), reply="Errors: 0")
    return 0


@ends_with("It is Rome.")
async def nothing(actor: Actor) -> None:
    await with_tools(actor, "You search.", "Which city?", "It is Rome.")


@ends_with("It is Rome.")
async def only_a_flag(actor: Actor) -> bool:
    await actor.ask(system("You write titles."), user("Which city?"), reply="true or not")
    await with_tools(actor, "You search.", "Which city?", "It is Rome.")
    return True


@ends_with("It is Rome.", differs=1)
async def a_text_that_no_reply_holds(actor: Actor) -> str:
    await with_tools(actor, "You search.", "Which city?", "It is Rome.")
    return "Sorry, something went wrong"


@ends_with("yes", differs=0)
async def a_reply_within_a_word_is_no_quote(actor: Actor) -> str:
    await actor.ask(system("You plan."), user("Which city?"), reply="es")
    return await actor.ask(system("You decide."), user("Now?"), reply="yes")


@ends_with("It is Rome.")
async def output_of_a_program_with_its_log(actor: Actor) -> dict[str, Any]:
    plan = await actor.ask(system("You plan."), user("Which city?"), reply="I look at a map.")
    answer = await actor.ask(system("You answer."), user(plan), reply="It is Rome.")
    await actor.ask(system("You check."), user(answer), reply="Fine, go on.")
    return {"exit_code": 0, "stdout": f"{plan}\n...\n{answer}\n", "stderr": "Fine, go on.", "timed_out": False}


@ends_with("It is Oslo.")
async def program_that_prints_nothing(actor: Actor) -> dict[str, Any]:
    await with_tools(actor, "You search.", "Which city?", "It is Oslo.")
    return {"exit_code": 0, "stdout": "", "stderr": "a warning", "timed_out": False}


@ends_with("Second of the three")
async def one_of_several_choices(actor: Actor) -> str:
    for reply in ("First of the three", "Second of the three", "Third of the three"):
        actor.script.append(reply)
    line = [system("You answer."), user("Which city?")]
    completion = await actor.client.chat.completions.create(model="any", messages=line, n=3)
    await actor.ask(system("You check."), user("All of them?"), reply="Yes, all of them")
    return str(completion.choices[1].message.content)


@ends_with("It is Rome, in Italy.")
async def list_of_messages(actor: Actor) -> list[dict[str, Any]]:
    line = [system("You answer."), user("Which city?")]
    line.append(echo(await actor.ask(*line, reply="Do you mean a capital?")))
    line.append(user("Yes."))
    line.append(echo(await actor.ask(*line, reply="It is Rome, in Italy.")))
    await actor.ask(system("You write titles."), user("It is Rome, in Italy."), reply="A city")
    return line


LONG_REPLY = "The city has seven hills, a river, and streets that lead to it from everywhere in the world of old."


@ends_with(LONG_REPLY)
async def first_part_of_a_long_reply(actor: Actor) -> str:
    await actor.ask(system("You plan."), user("Which city?"), reply="The city has seven of them, I think.")
    return (await actor.ask(system("You answer."), user("Now."), reply=LONG_REPLY))[:67]


@ends_with("I choose (C).")
async def letter_of_an_option(actor: Actor) -> str:
    await actor.ask(system("You compare."), user("A, B or C?"), reply="A is cheap, B is fast, C is both and more.")
    await actor.ask(system("You choose."), user("A is cheap, B is fast, C is both and more."), reply="I choose (C).")
    return "C"


@ends_with("Plan B works.")
async def answers_of_each_round(actor: Actor) -> list[dict[str, str]]:
    return [
        {"plan": plan, "answer": await actor.ask(system(f"You try {plan}."), user("Go."), reply=reply)}
        for plan, reply in (("A", "Plan A fails."), ("B", "Plan B works."))
    ]

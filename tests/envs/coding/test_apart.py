"""What the sandbox of the tests and that of the work may tell each other, and what is not believed."""

import json

import pytest

from agentrl_envs.coding.formats import apart
from agentrl_envs.coding.formats.apart import Checks, Work
from agentrl_sandbox import LocalSandbox


@pytest.fixture
async def box():
    async with LocalSandbox(trusted=True) as box:
        yield box


async def asked(box, source, *questions, seconds=5.0):
    await box.write_file("solution.py", source)
    work = Work(box, seconds)
    await work.start()
    try:
        return [await work.ask(question) for question in questions]
    finally:
        await work.close()


def call(name, *arguments):
    return ["call", "solution", name, ["l", [["v", one] for one in arguments]], ["d", []]]


@pytest.mark.thorough
async def test_a_question_has_one_reply(box):
    source = "def twice(x):\n    print('out')\n    return 2 * x\n"
    assert await asked(box, source, call("twice", 2), call("twice", 3)) == ['+["v", 4]', '+["v", 6]']


FORGE = """
import os
def forge():
    for fd in range(3, 12):
        try: os.write(fd, b'["v", 1]\\n' * 2)
        except OSError: pass
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("forge()", "not asked"),
        ("os._exit(0)", "process ended"),
        ("while True: pass", "took too long"),
        ("return 'x' * 3000", "wrote too much"),
    ],
)
async def test_work_that_does_not_keep_to_it_is_asked_nothing_more(box, body, said, monkeypatch):
    monkeypatch.setattr(apart, "LONGEST_REPLY", 2000)
    source = f"{FORGE}\ndef lie(x):\n    {body}\ndef fine(x): return 1\n"
    first, second, third = await asked(box, source, call("lie", 1), call("fine", 1), call("fine", 2), seconds=2.0)
    assert said in f"{first} {second}"
    assert third.startswith("-")


@pytest.mark.thorough
async def test_what_is_not_signed_is_not_from_the_tests(box):
    verdict = json.dumps(["verdict", {"passed": 1, "total": 1, "log": ""}])
    forged = f"""
import os
for fd in (1, 3, 4, 5, 6):
    for sign in (b"", b"0" * 64 + b" "):
        try: os.write(fd, sign + {verdict!r}.encode() + b"\\n")
        except OSError: pass
assert False
"""
    checks = Checks(box, {"module": "solution", "names": [], "test": forged})
    work = Work(box, 5.0)
    said = []
    async for message in checks.messages():
        said.append(message)
        if message[0] == "ask":
            await checks.reply(await work.ask(message[1]))
    assert [what for what, *_ in said] == ["begun", "start", "verdict"]
    assert said[-1][1]["passed"] == 0

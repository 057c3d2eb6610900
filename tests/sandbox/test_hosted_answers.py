"""Answers of a hosted machine that are not as asked: whose fault it is decides whether the episode is played again."""

import pytest

from agentrl.errors import SandboxError
from agentrl.sandbox import SandboxKilledError
from agentrl_sandbox import SandboxSpec
from agentrl_sandbox.hosted.process import HostedProcess
from agentrl_sandbox.hosted.sandbox import HostedSandbox

SPEC = SandboxSpec(image="a-template", network="open", read_only=False)
GOOD = "c1 0\n1\nb3V0Cg==\n.\n0\n.\nover\n"


def read(said):
    heard = []
    process = HostedProcess("/dev/shm/agentrl/c1", None, None, lambda stream, data: heard.append(data), None)
    process._read(said)
    return heard


def test_what_was_asked():
    assert read(GOOD) == [b"out\n"]


def test_a_service_that_cuts_an_answer_off_is_not_the_policys_fault():
    cut = [said for length in range(len(GOOD)) if (said := _error(GOOD[:length])) is not None]
    assert len(cut) > 20
    assert {type(said) for said in cut} == {SandboxError}


def _error(said):
    try:
        read(said)
    except SandboxError as exc:
        return exc
    return None


@pytest.mark.parametrize(
    "said",
    [
        'c1 0\n{"passed": 9}\n.\n0\n.\nover\n',
        'c1 0\n1\nb3V0Cg==\n["verdict"]\n.\n0\n.\nover\n',
        'c1 0\n1\nb3V0Cg==\n.\n0\n.\n+["v", true]\nover\n',
    ],
)
def test_what_a_program_wrote_into_it_is(said):
    with pytest.raises(SandboxKilledError, match="a program in the sandbox wrote into"):
        read(said)


@pytest.mark.parametrize("said", ["", "no such container", "sh: not found\n"])
def test_an_error_of_the_service_is_not(said):
    with pytest.raises(SandboxError, match="not what was asked") as found:
        read(said)
    assert not isinstance(found.value, SandboxKilledError)


@pytest.mark.parametrize("code", [-1, 137, 143])
async def test_a_request_that_was_killed_is(code):
    class Service:
        sandbox_id = "one"
        code = 0

        async def __aenter__(self): ...

        async def __aexit__(self, *exc): ...

        async def exec(self, cmd, **options):
            return self.code, "</dev/shm/agentrl>", ""

    async with HostedSandbox(SPEC, Service()) as box:
        box.service.code = code
        with pytest.raises(SandboxKilledError, match=rf"killed a request \(exit code {code}\)"):
            await box.exec("true")

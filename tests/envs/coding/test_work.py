"""The agent's work on its way to a clean sandbox."""

import io
import tarfile

import pytest

from agentrl import ConfigError
from agentrl.sandbox import ExecResult
from agentrl_envs.coding import work
from agentrl_envs.coding.problem import Solution, Step
from agentrl_envs.coding.work import WorkError, carry, place, prepare, solve
from agentrl_sandbox import FakeSandbox, LocalSandbox

STEP = Step("", grader=None, files={"a": "1", "b": "2", "d/c": "3"}, setup="mkdir .git; echo history > .git/log")


@pytest.fixture
async def boxes():
    async with LocalSandbox(trusted=True) as agents, LocalSandbox(trusted=True) as clean:
        await prepare(agents, STEP)
        await prepare(clean, STEP)
        yield agents, clean


async def seen(box):
    found = await box.exec("find . -type f -exec grep -H '' {} + ; find . -type l -printf '%p->%l\\n'", check=True)
    return sorted(found.stdout.splitlines())


async def test_changed_new_and_removed_files_are_carried_and_history_is_not(boxes):
    agents, clean = boxes
    await agents.exec(
        "rm a; echo new > b; mkdir -p e/f; echo x > 'e/f/a b'; ln -s b link; echo hook > .git/hooks", check=True
    )
    await agents.exec("mkdir __pycache__; echo evil > __pycache__/test.pyc; chmod 700 'e/f/a b'", check=True)
    for box in boxes:
        await box.exec("echo own > .git/config; touch .git/kept", check=True)
    await agents.exec("echo changed > .git/config; rm .git/kept", check=True)
    await carry(agents, clean)
    history = await clean.exec("cat .git/config; ls .git; rm .git/config .git/kept", check=True)
    assert history.stdout.split() == ["own", "config", "kept", "log"]
    assert await seen(clean) == sorted(["./.git/log:history", "./b:new", "./d/c:3", "./e/f/a b:x", "./link->b"])
    assert (await clean.exec("stat -c %a 'e/f/a b'")).stdout == "700\n"


async def test_only_what_is_named_is_carried(boxes):
    agents, clean = boxes
    await agents.exec(
        "echo changed | tee a b d/c d/new; rm -f b; mkdir -p d/__pycache__; touch d/__pycache__/x", check=True
    )
    await carry(agents, clean, ("b", "d"))
    assert await seen(clean) == ["./.git/log:history", "./a:1", "./d/c:changed", "./d/new:changed"]


async def test_a_folder_in_place_of_a_file_and_the_other_way_round(boxes):
    agents, clean = boxes
    await agents.exec("rm -r a d; mkdir a; echo x > a/x; echo file > d", check=True)
    await carry(agents, clean)
    assert await seen(clean) == ["./.git/log:history", "./a/x:x", "./b:2", "./d:file"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x"])
async def test_nothing_outside_the_work_folder_can_be_named(boxes, path):
    with pytest.raises(ConfigError, match="cannot be carried over"):
        await carry(*boxes, (path,))


async def test_special_files_and_links_out_stay_what_they_are(boxes):
    agents, clean = boxes
    await agents.exec("rm a b; mkfifo a; ln -s /etc/passwd b", check=True)
    await carry(agents, clean, ("a", "b"))
    assert await seen(clean) == ["./.git/log:history", "./b->/etc/passwd", "./d/c:3"]


async def test_work_that_is_too_large_is_the_agents_own_fault(boxes, monkeypatch):
    monkeypatch.setattr(work, "_LARGEST_WORK", 100_000)
    agents, clean = boxes
    await agents.exec("head -c 200000 /dev/zero > a", check=True)
    with pytest.raises(WorkError, match="larger than"):
        await carry(agents, clean)


async def test_an_archive_that_lies_brings_only_what_was_asked_for(boxes):
    """A sandbox in which the agent is root may send anything."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name in ("a", "../out", "/tmp/agentrl-absolute", "b"):
            member = tarfile.TarInfo(name)
            member.size = 4
            archive.addfile(member, io.BytesIO(b"evil"))

    class Lying(FakeSandbox):
        async def exec(self, cmd, **how):
            how["on_output"]("stdout", made.getvalue())
            return ExecResult(0)

    _, clean = boxes
    async with Lying() as lying:
        await carry(lying, clean, ("a",))
        assert await seen(clean) == ["./.git/log:history", "./a:evil", "./b:2", "./d/c:3"]
        made.truncate(700)
        with pytest.raises(WorkError, match="sent no archive"):
            await carry(lying, clean, ("a",))


async def test_an_image_without_the_tools_is_a_mistake_of_the_configuration(boxes):
    _, clean = boxes
    async with FakeSandbox(lambda call: ExecResult(127)) as bare:
        with pytest.raises(ConfigError, match="lacks find, sha256sum, tar or xargs"):
            await carry(bare, clean)


async def test_an_oracle_places_its_files_and_runs_its_command(boxes, tmp_path):
    agents, _ = boxes
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "solve.sh").write_text('echo "$WHAT" > answer; exit 3')
    await place(agents, {"single": tmp_path / "deep" / "solve.sh"})
    done = await solve(
        agents, Solution({"solution": tmp_path}, "bash solution/deep/solve.sh", env={"WHAT": "42"}), timeout=10
    )
    assert done.exit_code == 3
    assert await agents.read_file("answer") == "42\n"

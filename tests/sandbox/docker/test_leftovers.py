"""What else than sandboxes is left behind: `agentrl sandbox ls` shows it, and `gc` removes it."""

from agentrl_sandbox import survey
from tests.sandbox.docker.conftest import SMALL
from tests.sandbox.engine import ALONE


@ALONE
async def test_images_are_left_once_no_sandbox_is_there(docker, base, tmp_path):
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nWORKDIR /app\nRUN date +%N > /when\n")
    spec = SMALL.model_copy(update={"image": str(tmp_path), "workdir": "/app"})
    async with docker.sandbox(spec):
        assert not [one for one in await survey.left("docker") if one.kind == "image"]
        assert not [one for one in await survey.tidy("docker") if one.kind == "image"]
    left = [one.name for one in await survey.left("docker") if one.kind == "image"]
    assert {name.partition(":")[0] for name in left} >= {"agentrl-build", "agentrl-ready"}
    assert {one.name for one in await survey.tidy("docker")} >= set(left)
    assert await survey.left("docker") == []
    async with docker.sandbox(spec) as box:  # made again, by a back end that had it before
        assert (await box.exec("pwd")).stdout == "/app\n"
    assert (await docker.engine.docker.images.inspect(base))["Id"]

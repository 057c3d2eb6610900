"""Grade a Harbor task: copy the tests into the sandbox, run test.sh, and read the reward file that test.sh writes.

The exit code of test.sh is ignored. A reward that is missing, empty or not finite is an error rather than 0: the tests
broke, so they do not judge the agent's work. A 0 of a test.sh that could not start the test runner is an error, too.
"""

from __future__ import annotations

import errno
import json
import math
import posixpath
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from agentrl import InfraError
from agentrl.sandbox import Sandbox
from agentrl_envs.coding.formats.harbor.config import Collect
from agentrl_envs.coding.formats.starting import obstacle
from agentrl_envs.coding.formats.surroundings import NO_MONITOR, own_first, removal, settle
from agentrl_envs.coding.problem import Grade

VERIFIER = "/logs/verifier"
TESTS = "/tests"
_STDOUT = f"{VERIFIER}/test-stdout.txt"
_LARGEST = 1 << 20
"""The most bytes of a reward file."""
BOX = "/tmp/.box"
"""A file in a sandbox that shows whether the sandbox's commands see the sandbox's files."""
IN_A_BOX = f"[ -f {BOX} ] || {{ echo 'commands here see the files of this machine: use docker' >&2; exit 1; }}"
_LINKS = r"""
cd TESTS || exit 0
find / \( -path /proc -o -path /sys \) -prune -o -type l \( ! -user root -o FOLDERS \) -exec sh -c '
for link; do
  to=$(readlink "$link")
  case $to in /dev/null | /dev/stdout | /dev/stderr | /proc/self/fd/[12]) continue ;; esac
  case $(readlink -f "$link" || readlink -m "$link" || echo "$to") in
    TESTS | TESTS/* | VERIFIER | VERIFIER/* | /proc/*) echo "$link leads to $to" ;;
  esac
done' sh {} + 2>/dev/null
true""".replace("TESTS", TESTS).replace("VERIFIER", VERIFIER)
"""A shell command that lists symbolic links to the tests, among the links in FOLDERS and the links that root did not
create.

The command runs in the folder of the tests, so links through a process's working directory lead there, too. Links to a
process's program or open files are refused: tests have their files open.
"""
_LINKS_S = 60.0


@dataclass(frozen=True, slots=True)
class HarborGrader:
    """Runs the tests of a step, as Harbor's verifier does."""

    tests: tuple[Path, ...]
    """Folders that are merged into /tests. Later folders replace files of earlier folders."""
    user: str | None = None
    """The user that runs test.sh; None: the sandbox's user."""
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 600.0
    collect: tuple[Collect, ...] = ()
    fresh: bool = True
    """Whether to empty /tests first, so that no file of the agent remains. False if the image has files in /tests."""
    workdir: str = "/"
    """The work folder. Python modules in this folder do not replace modules of the image during the tests."""
    judged: tuple[str, ...] = ()
    """The files and folders of the agent that the tests judge; empty: the work folder."""
    under: str = NO_MONITOR
    """Shell words that precede test.sh in the command line."""
    more: bool = False
    """Whether the agent continues in this sandbox, so that the tests are removed afterwards."""

    async def grade(self, box: Sandbox) -> Grade:
        """The reward. Raises InfraError, with the end of the tests' output, if there is no reliable reward: the file is
        missing, or test.sh wrote 0 because the tests could not start."""
        for hook in self.collect:  # best effort, as in Harbor: what it collects is missed by the tests if it failed
            await box.exec(hook.command, user=hook.user, timeout=hook.timeout_sec)
        mark = f"/tmp/.{secrets.token_hex(8)}"  # a name that the agent cannot have taken
        await box.write_file(mark, "", user="root")
        clear = [IN_A_BOX.replace(BOX, mark), f"rm {mark}", _cleared(), removal(TESTS) if self.fresh else ""]
        await box.exec("\n".join(filter(None, clear)), user="root", check=True)
        for folder in self.tests:
            await box.upload(folder, TESTS, user="root")
        await box.exec(f"chmod -R a+rX {TESTS} && chmod a+x {TESTS}/test.sh", user="root", check=True)
        folders = " -o ".join(
            f"-path {quote(path)} -o -path {quote(path + '/*')}" for path in self.judged or (self.workdir,)
        )
        links = await box.exec(_LINKS.replace("FOLDERS", folders), user="root", timeout=_LINKS_S)
        if links.stdout or links.timed_out:
            return Grade(0.0, log=f"the work links to its tests, or has too many links: {links.stdout[-400:]}")
        place = await settle(box, self.workdir, user="root")
        ran = await box.exec(
            f"{own_first(place)}{self.under}({TESTS}/test.sh) > {_STDOUT} 2>&1",
            user=self.user,
            env=self.env,
            timeout=self.timeout_s,
        )
        log = await self._text(box, _STDOUT) or ""
        if ran.timed_out:
            raise InfraError(f"tests/test.sh did not end within {self.timeout_s:g} s: {_end(log)}")
        as_json = await self._text(box, f"{VERIFIER}/reward.json")
        as_text = await self._text(box, f"{VERIFIER}/reward.txt")
        if self.more:
            await box.exec(f"rm -rf {TESTS} {VERIFIER}", user="root", check=True)
        grade = _grade(as_json, as_text, log)
        if grade.score <= 0 and (why := obstacle(log, self._script())):
            raise InfraError(f"the tests did not start ({why[:200]}); test.sh wrote: {_end(log)}")
        return grade

    def _script(self) -> str:
        """The text of test.sh."""
        scripts = [folder / "test.sh" for folder in self.tests]
        return "\n".join(file.read_text(errors="replace") for file in scripts if file.is_file())

    async def _text(self, box: Sandbox, path: str) -> str | None:
        """The content of a small file, or None. Where possible, the back end reads the file without a program of the
        sandbox."""
        read = getattr(box, "read_stored", None)
        try:
            if read is not None:
                return str((await read(path, max_bytes=_LARGEST)).decode(errors="replace"))
            return (await box.read_bytes(path, user="root", max_bytes=_LARGEST)).decode(errors="replace")
        except OSError as exc:
            return "" if exc.errno == errno.EFBIG else None


def _cleared() -> str:
    """Commands that empty the verifier's folder."""
    logs = posixpath.dirname(VERIFIER)
    return f"""set -e
[ -d {logs} ] && [ ! -L {logs} ] || {removal(logs)}
mkdir -p {logs}
{removal(VERIFIER)} || {removal(logs)}
mkdir -p {VERIFIER}
chmod 777 {VERIFIER}"""


def read_rewards(as_json: str | None, as_text: str | None) -> dict[str, float]:
    """The rewards in reward.json, or else the number in reward.txt, under the name "reward".

    Raises ValueError with the mistake.
    """
    if as_json is not None:
        return _from_json(as_json)
    if as_text is None:
        raise ValueError("the tests wrote neither reward.json nor reward.txt")
    if not as_text.strip():
        raise ValueError("reward.txt is empty")
    try:
        return {"reward": _finite(float(as_text), "reward.txt")}
    except ValueError as exc:
        raise ValueError(f"reward.txt holds {as_text[:80]!r}, not one finite number") from exc


def _from_json(text: str) -> dict[str, float]:
    if not text.strip():
        raise ValueError("reward.json is empty")
    try:
        rewards = json.loads(text)
    except ValueError as exc:
        raise ValueError(f"reward.json holds {text[:80]!r}: {exc}") from exc
    if not isinstance(rewards, dict) or not rewards:
        raise ValueError(f"reward.json holds {text[:80]!r}, not an object of numbers")
    return {str(name): _finite(value, f"{name} in reward.json") for name, value in rewards.items()}


def _finite(value: object, name: str) -> float:
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} is {value!r:.80}, not a finite number")
    return number


def _grade(as_json: str | None, as_text: str | None, log: str) -> Grade:
    """The score is the reward with the name "reward", or else the mean of all rewards."""
    try:
        rewards = read_rewards(as_json, as_text)
    except ValueError as exc:
        raise InfraError(f"{exc}; test.sh wrote: {_end(log)}") from exc
    score = rewards.get("reward", sum(rewards.values()) / len(rewards))
    return Grade(score, rewards if len(rewards) > 1 else {}, log)


def _end(log: str) -> str:
    return " ".join(log[-600:].split()) or "nothing"

"""Shell: what survives a command, and what no command can break."""

import pickle

import pytest

from agentrl import ConfigError
from agentrl.sandbox import ExecResult
from agentrl_sandbox import FakeSandbox, LocalSandbox
from agentrl_sandbox.shell import Shell, ShellState
from agentrl_sandbox.spec import SandboxSpec


@pytest.fixture
async def box():
    async with LocalSandbox(trusted=True) as box:
        yield box


@pytest.fixture
def shell(box):
    return Shell(box)


async def said(shell, cmd, **how):
    return (await shell.run(cmd, **how)).stdout


async def test_folder_and_exported_variables_survive(shell):
    assert await said(shell, "mkdir -p a/b; cd a/b; export X='1 2'; Y=3") == ""
    assert await said(shell, 'echo "${PWD##*/} $X ${Y-none}"') == "b 1 2 none\n"
    assert shell.state == ShellState("a/b", shell.state.env, ())
    assert shell.state.env["X"] == "1 2"
    assert set(shell.state.env) == {"X", "OLDPWD"}
    await shell.run("cd ../..; touch here; cd - >/dev/null")
    assert await said(shell, "ls -d ../../here") == "../../here\n"


async def test_the_sandboxes_own_variables_can_be_changed_and_unset(shell):
    before = await said(shell, "echo $LANG")
    await shell.run("unset LANG; export PATH=/nowhere")
    assert await said(shell, 'echo "${LANG-unset} $PATH"') == "unset /nowhere\n"
    assert shell.state.unset == ("LANG",)
    await shell.run(f"export LANG={before}")
    assert shell.state.unset == ()
    await shell.run("export PATH=/usr/bin:/bin")
    assert await said(shell, "cat /dev/null && echo back") == "back\n"


async def test_stdout_and_stderr_come_in_the_order_written(shell):
    result = await shell.run("echo a; echo b >&2; echo c; ls /nonexistent; exit 7")
    assert (result.exit_code, result.stderr) == (7, "")
    assert result.stdout.startswith("a\nb\nc\nls: cannot access")


@pytest.mark.parametrize(
    ("cmd", "code"),
    [
        ("exit 3", 3),
        ("set -e; false; echo never", 1),
        ("set -eu; echo $undefined_variable", 1),
        ("set -o pipefail; set -x; true", 0),
        ("if then", 2),
        ("echo 'never closed", 2),
        ("(exit 4)", 4),
        ("trap 'echo bye' INT; false", 1),
        ("compgen() { echo no; }; printf() { :; }; export() { :; }; true", 0),
        ("exec 42>&-; true", 0),
        ("kill -9 $$", 137),
        ("exec true", 0),
        ("trap - EXIT", 0),
        ("printf '\\0\\377\\0'", 0),
        ("ulimit -n 8; true", 0),
    ],
)
async def test_whatever_a_command_does_the_next_one_runs_where_it_should(shell, cmd, code):
    await shell.run("mkdir d; cd d; export KEPT=1")
    assert (await shell.run(cmd)).exit_code == code
    assert await said(shell, "echo $KEPT ${PWD##*/}") == "1 d\n"


@pytest.mark.parametrize("ending", ["exit 0", "set -e; false", "false", "if then", "set -u; echo $undefined_variable"])
async def test_changes_before_the_end_are_kept_however_it_ends(shell, ending):
    await shell.run(f"mkdir d; cd d; export X=1\n{ending}")
    assert await said(shell, "echo ${X-lost} ${PWD##*/}") in ("1 d\n", "lost d\n" if ending == "if then" else "")


async def test_a_killed_command_leaves_the_state_as_it_was(shell):
    await shell.run("export X=1")
    result = await shell.run("export X=2; sleep 60", timeout=0.3)
    assert result.timed_out
    assert await said(shell, "echo $X") == "1\n"


async def test_values_of_all_kinds_survive(shell):
    value = "a'b\"c$d`e\\f\n\tgö\x01 = ;"
    await shell.run("export X=" + "'" + value.replace("'", "'\\''") + "'")
    assert shell.state.env["X"] == value
    assert await said(shell, 'printf %s "$X"') == value
    await shell.run("export IFS=, name=1 line=2 size=3")
    assert await said(shell, "echo $name $line $size ${#IFS}") == "1 2 3 1\n"
    await shell.run("export X=$'\\377'")
    assert "X" not in shell.state.env


async def test_a_folder_that_is_gone_is_said_and_left(shell):
    await shell.run("mkdir d; cd d")
    await shell.run('rmdir "$PWD"')
    assert (
        await said(shell, "pwd >/dev/null")
        == f"bash: the folder d is gone; the working directory is now {shell.box.root}\n"
    )
    assert await said(shell, "echo fine") == "fine\n"


async def test_a_huge_environment_is_not_kept_and_that_is_said(shell):
    await shell.run("export SMALL=1; mkdir d")
    told = await said(shell, "cd d; export BIG=$(head -c 40000 /dev/zero | tr '\\0' a); export SMALL=2")
    assert "environment is too large" in told
    assert await said(shell, "echo ${#BIG} $SMALL ${PWD##*/}") == "0 1 d\n"


async def test_a_report_is_found_behind_any_amount_of_output(shell):
    result = await shell.run("head -c 3000000 /dev/zero | tr '\\0' y; head -c 3000000 /dev/zero >&42; export X=1")
    assert result.truncated
    assert await said(shell, "echo $X") == "1\n"


async def test_a_report_cannot_be_written_without_knowing_the_nonce(shell):
    forged = "\\0FORGED=1"
    await shell.run(f"printf '00000000000000000000000000000000/etc{forged}\\0' >&42; printf '/etc{forged}' >&2")
    assert shell.state == ShellState()


async def test_the_state_goes_on_in_another_sandbox(shell):
    await shell.run("mkdir -p d; cd d; export X=1; unset LANG")
    state = pickle.loads(pickle.dumps(shell.state))
    async with LocalSandbox(trusted=True) as other:
        await other.exec("mkdir d")
        assert await said(Shell(other, state), 'echo "$X ${LANG-none} ${PWD##*/}"') == "1 none d\n"


async def test_paths_are_what_a_command_would_take_them_for(shell):
    await shell.run("mkdir -p a/b; cd a")
    assert [shell.path(path) for path in ("x", "./b/../y", "../z", "/etc/hosts", "~/n")] == [
        *("a/x", "a/y", "z", "/etc/hosts", "n")
    ]
    await shell.run("cd /tmp")
    assert shell.path("x") == "/tmp/x"
    assert shell.path(f"{shell.box.root}/a/x") == "a/x"


async def test_an_image_without_bash_is_a_mistake_of_the_configuration():
    box = FakeSandbox(lambda call: ExecResult(127, "", "sh: 1: exec: bash: not found\n"))
    async with box:
        with pytest.raises(ConfigError, match="has no bash"):
            await Shell(box).run("true")


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["docker", "bubblewrap"], indirect=True)
async def test_it_is_the_same_in_every_back_end(backend):
    async with backend.sandbox(SandboxSpec()) as box:
        shell = Shell(box)
        assert await said(shell, "mkdir d; cd d; export X=1; unset LANG; exit 3") == ""
        assert await said(shell, 'echo "$X ${LANG-none} ${PWD##*/}"; touch f; nosuchcommand') == (
            "1 none d\nbash: line 1: nosuchcommand: command not found\n"
        )
        assert (await shell.run("export X=2; sleep 60", timeout=0.5)).timed_out
        assert (shell.state.cwd, shell.state.env["X"], shell.path("f")) == ("d", "1", "d/f")
        assert await box.read_bytes(shell.path("f")) == b""

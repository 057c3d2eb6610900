"""The tools: what they do to a sandbox, and what they tell a model that got something wrong."""

import pytest

from agentrl import ToolError
from agentrl_envs.coding.tools import Tools, cut
from agentrl_sandbox import LocalSandbox
from agentrl_sandbox.shell import Shell


@pytest.fixture
async def box():
    async with LocalSandbox(trusted=True) as box:
        yield box


@pytest.fixture
def at(box):
    return Tools(box, Shell(box), command_s=5, output=2000)


async def test_bash_says_how_a_command_ended_only_if_it_failed(at):
    assert await at.bash("echo a; echo b >&2") == "a\nb"
    assert await at.bash("true") == "[no output]"
    assert await at.bash("echo no; exit 3") == "no\n[exit code 3]"
    assert await at.bash("false") == "[exit code 1]"
    at = Tools(at.box, at.shell, command_s=0.3, output=2000)
    told = await at.bash("echo begun; sleep 60")
    assert told == "begun\n[killed after 0.3 s, with all it started; a command may take no longer]"


async def test_long_output_loses_its_middle_and_says_so(at):
    told = await at.bash("echo first; head -c 100000 /dev/zero | tr '\\0' y; echo; echo last")
    assert told.startswith("first\nyyy")
    assert told.endswith("yyy\nlast")
    assert "characters cut here ...]" in told or "bytes" in told
    assert len(told) < 2200
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdefgh", 4) == "ab\n[... 4 characters cut here ...]\ngh"


async def test_read_numbers_lines_and_says_how_to_read_on(at):
    await at.bash("seq 1 1000 > n; printf 'a\\nb' > short; : > empty; head -c 2000 /dev/zero | tr '\\0' x > wide")
    assert await at.read("short", 1, None) == "     1\ta\n     2\tb"
    assert await at.read("n", 10, 11) == "    10\t10\n    11\t11"
    told = await at.read("n", 1, None)
    assert told.splitlines()[-1].startswith("[n has 1000 lines; read on with first=")
    following = int(told.rpartition("first=")[2].rstrip("]"))
    assert (await at.read("n", following, following)).strip() == f"{following}\t{following}"
    assert await at.read("empty", 1, None) == "[empty is empty]"
    assert (await at.read("wide", 1, None)).endswith("x [2,000 characters]")


@pytest.mark.parametrize(
    ("path", "lines", "told"),
    [
        ("missing", (1, None), "missing: No such file"),
        ("folder", (1, None), "folder: Is a directory"),
        ("binary", (1, None), r"binary is no text in UTF-8 \(3 bytes\); use bash"),
        ("big", (1, None), "big: the file is too large; use bash"),
        ("short", (5, None), "short has lines 1 to 2, and you asked for 5 to the end"),
        ("short", (2, 1), "you asked for 2 to 1"),
    ],
)
async def test_read_tells_what_is_wrong(at, path, lines, told):
    await at.bash("mkdir folder; printf '\\377\\0a' > binary; truncate -s 5M big; printf 'a\\nb' > short")
    with pytest.raises(ToolError, match=told):
        await at.read(path, *lines)


async def test_paths_are_taken_from_the_shells_folder(at):
    await at.bash("mkdir -p a/b; echo here > a/b/f; cd a")
    assert await at.read("b/f", 1, None) == "     1\there"
    await at.edit("../new", "", "made\n")
    assert await at.bash("cat ../new") == "made"
    assert await at.search("here", ".", "*") == "./b/f:1:here"


async def test_edit_replaces_exactly_once_and_shows_the_place(at):
    await at.bash("printf 'one\\ntwo\\nthree\\nfour\\nfive\\nsix\\n' > f; chmod +x f")
    assert await at.edit("f", "three\n", "3a\n3b\n") == "\n".join(
        f"{n:>6}\t{line}" for n, line in enumerate(["one", "two", "3a", "3b", "four", "five"], 1)
    )
    assert await at.bash("cat f; test -x f") == "one\ntwo\n3a\n3b\nfour\nfive\nsix"
    await at.edit("f", "one\ntwo\n3a\n3b\nfour\nfive\nsix\n", "x")
    assert await at.bash("cat f") == "x"


async def test_edit_makes_a_file_but_overwrites_none(at):
    assert await at.edit("deep/er/f", "", "text\n") == "[wrote 5 characters to deep/er/f]"
    with pytest.raises(ToolError, match=r"deep/er/f exists and is not empty; give in `old` the text to replace"):
        await at.edit("deep/er/f", "", "other")
    assert await at.bash("cat deep/er/f; : > empty") == "text"
    await at.edit("empty", "", "now")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("x = 1", "x = 1", "nothing would change"),
        ("return", "yield", "old occurs 2 times in f, at lines 2, 4; add lines around it until it is unique"),
        (
            "def  one():\n    return 1",
            "",
            r"(?s)does not occur in f\. The closest lines.*     1\tdef one\(\):\n     2\t    return 1$",
        ),
        ("nothing of the kind whatsoever", "", "does not occur in f, and nothing like it"),
    ],
)
async def test_edit_tells_what_is_wrong(at, old, new, told):
    await at.edit("f", "", "def one():\n    return 1\ndef two():\n    return 2\n")
    with pytest.raises(ToolError, match=told):
        await at.edit("f", old, new)


async def test_edit_says_when_only_line_ends_differ(at):
    await at.bash("printf 'a\\r\\nb\\r\\n' > dos")
    with pytest.raises(ToolError, match=r"dos ends its lines with \\r\\n"):
        await at.edit("dos", "a\nb", "c")
    await at.edit("dos", "a\r\n", "c\r\n")
    assert await at.bash("od -c dos | head -1") == "0000000   c  \\r  \\n   b  \\r  \\n"


async def test_a_file_too_long_to_compare_with_is_refused_at_once(at):
    await at.bash("seq 1 100000 > n")
    with pytest.raises(ToolError, match="read the part that you want to change first"):
        await at.edit("n", "no such line", "x")


async def test_search_finds_lines_and_is_bounded(at):
    await at.bash(
        "mkdir -p s/.git; seq 1 500 > s/n; echo 'def go(x): pass' > s/a.py; echo 'def go' > s/.git/x; cp s/a.py s/b"
    )
    assert await at.search(r"def \w+\(", "s", "*") in (
        "s/a.py:1:def go(x): pass\ns/b:1:def go(x): pass",
        "s/b:1:def go(x): pass\ns/a.py:1:def go(x): pass",
    )
    assert await at.search("def", "s", "*.py") == "s/a.py:1:def go(x): pass"
    assert await at.search("absent", "s", "*") == "[no line matches in s]"
    told = (await at.search("[0-9]", "s", "*")).splitlines()
    assert (len(told), told[-1]) == (101, "[there are more; narrow the pattern or the path]")


@pytest.mark.parametrize(
    ("pattern", "path", "told"), [("(", ".", "[Uu]nmatched"), ("x", "nowhere", "nowhere: No such file")]
)
async def test_search_tells_what_is_wrong(at, pattern, path, told):
    with pytest.raises(ToolError, match=told):
        await at.search(pattern, path, "*")

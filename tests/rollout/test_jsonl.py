"""What a line of JSON may hold, and the one line that says why not."""

from __future__ import annotations

import pytest

from agentrl.errors import ConfigError
from agentrl.rollout import load_tasks


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"prompt": "x", "label": 1' + "0" * 5000 + "}", "a number is too long to be read; write it as a string"),
        ('{"prompt": "x", "label": 1, "label": 2}', 'key "label" appears twice in one object; remove one of them'),
        ('{"prompt": "x", "metadata": {"é": 1, "é": 1}}', 'key "\\u00e9" appears twice'),
        ('{"prompt": "x", "label": NaN}', "NaN is not a JSON number; write null, or a string"),
        ('{"prompt": "x", "label": [-Infinity]}', "-Infinity is not a JSON number"),
        ('{"prompt": "x", "label": 1e400}', "the number 1e400 is too large; write it as a string"),
        ('{"prompt": "\\ud83d!"}', r"\ud83d is half of a character; write both halves, or the character itself"),
        ('{"prompt": "x", "metadata": {"\\uDe00": 1}}', r"\ude00 is half of a character"),
        ('{"prompt": "x", "label": ' + "[" * 101 + "]" * 101 + "}", "nested more than 100 levels deep; flatten it"),
        ('{"prompt": "x", "label": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested more than 100 levels deep"),
        (b'{"prompt": "\xff"}', "not UTF-8 text (invalid start byte at byte 12); save it as UTF-8 JSONL"),
        ('{"prompt": "x"}'.encode("utf-16"), "not UTF-8 text"),
        ('\ufeff{"prompt": "x"}', "not valid JSON (Unexpected UTF-8 BOM"),
        ("\0", "not valid JSON"),
        ('{"prompt": "x"} {"prompt": "y"}', "not valid JSON (Extra data, column 17)"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, says):
    line = line if isinstance(line, bytes) else line.encode()
    (tmp_path / "d.jsonl").write_bytes(b'{"prompt": "good"}\n\n' + line + b"\n")
    with pytest.raises(ConfigError) as error:
        load_tasks(tmp_path / "d.jsonl", split="train")
    assert str(error.value).startswith(f"{tmp_path}/d.jsonl:3: {says}")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_what_is_good_stays_good(tmp_path):
    big = "x" * 5_000_000
    (tmp_path / "d.jsonl").write_bytes(
        '\ufeff{"prompt": "\\ud83d\\ude00 \\u2028", "label": 12345678901234567890}\r\n'.encode()
        + f'{{"prompt": "{big}", "metadata": {{"deep": {"[" * 98}{"]" * 98}}}}}'.encode()
    )
    first, second = load_tasks(tmp_path / "d.jsonl", split="train")
    assert (first.prompt, first.label, first.id) == ("😀 \u2028", 12345678901234567890, "d-1")
    assert second.prompt == big


def test_a_file_that_cannot_be_read_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "d.jsonl").write_text("{}")

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(ConfigError, match=r"d.jsonl: Permission denied; give a JSONL file with one task a line"):
        load_tasks(tmp_path / "d.jsonl", split="train")

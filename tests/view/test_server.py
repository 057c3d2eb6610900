"""Who may ask the server, and what it sends; the page's files and colours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli import app
from agentrl.view import server as server_module
from tests.view.conftest import made
from tests.view.requests import served as served
from tests.view.requests import status

STATIC = Path(server_module.__file__).parent / "static"


async def test_the_link_gives_a_cookie_and_leaves_the_address(served):
    code, headers, _ = await status(served, f"/?token={served.token}", cookie=False)
    assert (code, headers["Location"]) == (303, "/")
    assert "HttpOnly" in headers["Set-Cookie"]
    assert "SameSite=Strict" in headers["Set-Cookie"]
    assert (await status(served, "/"))[0] == 200


@pytest.mark.parametrize(
    "path", ["/", "/api/state", "/static/main.js", "/export?f=records.jsonl", "/?token=wrong", "/?token="]
)
async def test_no_cookie_no_answer(served, path):
    assert (await status(served, path, cookie=False))[0] == 403


async def test_another_host_is_refused(served):
    for host in (
        "evil.example",
        f"evil.example:{served.port}",
        f"127.0.0.1.evil.example:{served.port}",
        "127.0.0.1",
        "127.0.0.1:1",
    ):
        assert (await status(served, "/", host=host))[0] == 403
        assert (await status(served, f"/?token={served.token}", host=host, cookie=False))[0] == 403
    assert (await status(served, "/", host=f"localhost:{served.port}"))[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/..%2f..%2fserver.py",
        "/static/%2e%2e/server.py",
        "/static/../../../etc/passwd",
        "/static//etc/passwd",
        "/api/episode?f=../../etc/passwd&n=0",
        "/api/episode?f=%2Fetc%2Fpasswd&n=0",
        "/api/list?f=..%2Frecords.jsonl",
        "/api/episode?s=9&f=records.jsonl",
        "/api/episode?f=records.jsonl&n=99",
        "/api/episode?f=records.jsonl&n=-1",
        "/api/__class__",
        "/export?f=../x&n=0",
    ],
)
async def test_traversal_finds_nothing(served, path):
    code, _, text = await status(served, path)
    assert code == 404
    assert "root:" not in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_it_is_read_only(served, method):
    assert (await status(served, "/api/state", method=method))[0] == 405


async def test_every_answer_has_the_policy(served):
    for path in ("/", "/static/main.js", "/api/state", "/nowhere", "/export?f=records.jsonl&n=0"):
        _, headers, _ = await status(served, path)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"


async def test_an_export_is_an_attachment(served):
    code, headers, text = await status(served, "/export?f=records.jsonl&n=0")
    assert code == 200
    assert headers["Content-Disposition"].startswith("attachment")
    assert not re.search(r"^\s*(import|export) ", text, re.MULTILINE), "the modules are one script"


def test_another_address_needs_a_flag(write):
    result = CliRunner().invoke(app, ["view", str(write(made().to_json())), "--host", "0.0.0.0"])
    assert (result.exit_code, "ssh -L" in result.stderr) == (2, True)


def test_no_markup_is_made_of_text():
    for file in STATIC.glob("*.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|DOMParser", file.read_text()
        ), file


def test_the_page_is_small():
    assert sum(file.stat().st_size for file in STATIC.iterdir()) <= 150_000


# Colours, by computation


def _linear(channel):
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


def _rgb(text):
    return [_linear(int(text[i : i + 2], 16) / 255) for i in (1, 3, 5)]


def _contrast(one, other):
    def light(rgb):
        return 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


DEUTERANOPE = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))
PROTANOPE = ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998))
NORMAL = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
"""Machado, Oliveira and Fernandes 2009, severity 1, over linear RGB."""


def _lab(rgb, seen):
    r, g, b = (min(1, max(0, sum(w * c for w, c in zip(row, rgb, strict=True)))) for row in seen)
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def _apart(one, other, seen):
    pairs = zip(_lab(one, seen), _lab(other, seen), strict=True)
    return sum((a - b) ** 2 for a, b in pairs) ** 0.5


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_are_apart_for_every_reader(scheme):
    style = (STATIC / "style.css").read_text()
    block = style.split("prefers-color-scheme: dark")[scheme]
    colours = {
        name: _rgb(re.search(rf"--{name}: (#\w+)", block)[1])
        for name in ("trained", "masked", "env", "template", "prompt", "ground")
    }
    ground = colours.pop("ground")
    assert min(_contrast(colour, ground) for colour in colours.values()) >= 4.5
    names = list(colours)
    worst = min(
        _apart(colours[one], colours[other], seen)
        for seen in (NORMAL, DEUTERANOPE, PROTANOPE)
        for i, one in enumerate(names)
        for other in names[i + 1 :]
    )
    assert worst >= 20

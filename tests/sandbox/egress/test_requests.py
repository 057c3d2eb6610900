"""What a proxy reads, and what it refuses because two programs could read it in two ways."""

import pytest

from agentrl_sandbox.egress.requests import BadRequestError, parse_head


def parsed(*lines):
    return parse_head("\r\n".join([*lines, "", ""]).encode("latin-1"))


def test_a_tunnel():
    found = parsed("CONNECT PyPI.org:443 HTTP/1.1", "Host: pypi.org:443", "Proxy-Connection: keep-alive")
    assert (found.is_tunnel, found.host, found.port) == (True, "pypi.org", 443)
    assert parsed("CONNECT pypi.org:443 HTTP/1.0").address == "pypi.org:443"
    assert parsed("CONNECT pypi.org:443 HTTP/1.1", "Host: pypi.org").port == 443
    assert parsed("CONNECT [2001:db8::1]:443 HTTP/1.1", "Host: [2001:DB8::1]:443").address == "[2001:db8::1]:443"


def test_a_request_is_written_anew():
    found = parsed(
        "GET HTTP://Example.org/a%2f?q=1&r=//x HTTP/1.1",
        "hOST: example.org",
        "Connection: close, X-Hop",
        "X-Hop: 1",
        "Proxy-Authorization: Basic x",
        "Upgrade: h2c",
        "Accept: */*",
    )
    assert found.head() == (
        b"GET /a%2f?q=1&r=//x HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\nAccept: */*\r\n\r\n"
    )
    assert parsed("GET http://example.org?x HTTP/1.1", "Host: example.org").target == "/?x"
    assert b"Host: example.org:81\r\n" in parsed("GET http://example.org:81 HTTP/1.0").head()


def test_bodies():
    sized = parsed("POST http://a.org/ HTTP/1.1", "Host: a.org", "Content-Length: 12")
    assert (sized.length, b"Content-Length: 12\r\n" in sized.head()) == (12, True)
    chunked = parsed("POST http://a.org/ HTTP/1.1", "Host: a.org", "Transfer-Encoding: Chunked")
    assert (chunked.length, b"Transfer-Encoding: chunked\r\n" in chunked.head()) == (None, True)
    assert b"Content-Length: 0\r\n" in parsed("POST http://a.org/ HTTP/1.1", "Host: a.org").head()


@pytest.mark.parametrize(
    "lines",
    [
        ["GET / HTTP/1.1", "Host: a.org"],
        ["GET //a.org/ HTTP/1.1", "Host: a.org"],
        ["GET https://a.org/ HTTP/1.1", "Host: a.org"],
        ["GET ftp://a.org/ HTTP/1.1", "Host: a.org"],
        ["GET file:///etc/passwd HTTP/1.1", "Host: a.org"],
        ["GET http://a.org@b.org/ HTTP/1.1", "Host: b.org"],
        ["GET http://a.org#@b.org/ HTTP/1.1", "Host: a.org"],
        ["GET http://a.org\\@b.org/ HTTP/1.1", "Host: a.org"],
        ["GET http:///a.org/ HTTP/1.1", "Host: a.org"],
        ["GET http://a.org/ HTTP/1.1", "Host: b.org"],
        ["GET http://a.org/ HTTP/1.1", "Host: a.org:81"],
        ["GET http://a.org/ HTTP/1.1", "Host: a.org", "Host: b.org"],
        ["GET http://a.org/ HTTP/1.1", "Host: a.org", "host: a.org"],
        ["GET http://a.org/ HTTP/1.1", "Host: a.org, b.org"],
        ["GET http://a.org/ HTTP/1.1"],
        ["GET http://a.org/ HTTP/1.1", "Host : a.org"],
        ["GET http://a.org/ HTTP/1.1", "Host: a.org", " folded: x"],
        ["GET http://a.org/ HTTP/1.1", "Host: a.org", "X: a\nHost: b.org"],
        ["GET http://a.org/ HTTP/1.1", "Host: a.org", "X: a\rb"],
        ["GET http://a.org/ HTTP/1.1", "Host: a.org", "X: a\0b"],
        ["GET http://a.org/ HTTP/1.1", "Host: a.org", "no colon"],
        ["GET http://a.org/ HTTP/2.0", "Host: a.org"],
        ["GET  http://a.org/ HTTP/1.1", "Host: a.org"],
        ["get http://a.org/ HTTP/1.1", "Host: a.org"],
        ["GET http://a.org/\x80 HTTP/1.1", "Host: a.org"],
        ["PRI * HTTP/2.0"],
        ["CONNECT a.org HTTP/1.1", "Host: a.org"],
        ["CONNECT http://a.org:443 HTTP/1.1", "Host: a.org"],
        ["CONNECT a.org:443 HTTP/1.1", "Host: b.org:443"],
        ["CONNECT a.org:443 HTTP/1.1", "Host: a.org:80"],
        ["CONNECT a.org:443 HTTP/1.1"],
        ["CONNECT a.org:0443443 HTTP/1.1", "Host: a.org"],
        ["POST http://a.org/ HTTP/1.1", "Host: a.org", "Content-Length: 1", "Content-Length: 1"],
        ["POST http://a.org/ HTTP/1.1", "Host: a.org", "Content-Length: +1"],
        ["POST http://a.org/ HTTP/1.1", "Host: a.org", "Content-Length: 1, 1"],
        ["POST http://a.org/ HTTP/1.1", "Host: a.org", "Content-Length: 1", "Transfer-Encoding: chunked"],
        ["POST http://a.org/ HTTP/1.1", "Host: a.org", "Transfer-Encoding: gzip, chunked"],
        ["POST http://a.org/ HTTP/1.1", "Host: a.org", "Transfer-Encoding: chunked", "Transfer-Encoding: identity"],
        ["POST http://a.org/ HTTP/1.0", "Host: a.org", "Transfer-Encoding: chunked"],
        ["GET http://a.org/ HTTP/1.1", "Host: a.org", *["X: 1"] * 120],
    ],
)
def test_what_is_refused(lines):
    with pytest.raises(BadRequestError):
        parsed(*lines)


def test_connection_cannot_take_out_what_frames_a_request():
    found = parsed(
        "POST http://a.org/ HTTP/1.1", "Host: a.org", "Content-Length: 3", "Connection: content-length, host"
    )
    assert found.length == 3
    assert b"Host: a.org\r\n" in found.head()
    assert b"Content-Length: 3\r\n" in found.head()

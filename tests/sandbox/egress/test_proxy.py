"""The proxy of one sandbox, attacked from its side of the connection. The hosts are servers of this machine."""

import asyncio
import contextlib
import logging
import socket
import ssl
import threading

import pytest

from agentrl_sandbox.egress import proxy as proxies
from agentrl_sandbox.egress.proxy import EgressProxy

HERE = "127.0.0.2"


class Host:
    """A server that keeps what it was sent, and answers it: once to HTTP, else with the same bytes."""

    def __init__(self):
        self.heard, self.connections, self.answer = b"", 0, b""

    async def serve(self, reader, writer):
        self.connections += 1
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                self.heard += data
                writer.write(self.answer or data)
                await writer.drain()
                if self.answer:
                    break
        writer.close()


@pytest.fixture
async def host():
    host = Host()
    server = await asyncio.start_server(host.serve, HERE, 0)
    host.port = server.sockets[0].getsockname()[1]
    yield host
    server.close()


@pytest.fixture
async def serving(host):
    """A proxy whose list has good.org and *.wild.org, both at `host`'s port; `names` are the addresses of names."""
    host.names = {"good.org": [HERE], "a.wild.org": [HERE]}
    listener = socket.create_server(("127.0.0.1", 0))
    entries = [f"good.org:{host.port}", f"*.wild.org:{host.port}", f"{HERE}:{host.port}"]

    def resolve(name):
        asked.append(name)
        if name not in host.names:
            raise OSError("no such name")
        return host.names[name]

    asked = host.asked = []
    proxy = EgressProxy("a-sandbox", entries, resolve)
    proxy.port = listener.getsockname()[1]
    await proxy.serve(listener)
    yield proxy
    await proxy.close()


async def says(proxy, data, *, more=b"", after=b"\r\n\r\n", whole=True):
    """What the proxy sends back: to `data`, and then to `more`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        async with asyncio.timeout(10):
            writer.write(data)
            if not more:
                return await reader.read() if whole else await reader.readuntil(after)
            said = await reader.readuntil(after)
            writer.write(more)
            writer.write_eof()
            return said + await reader.read()
    except (ConnectionResetError, BrokenPipeError, asyncio.IncompleteReadError):
        return b""
    finally:
        writer.close()


def get(host, path="/", *headers):
    return "\r\n".join([f"GET http://{host}{path} HTTP/1.1", f"Host: {host}", *headers, "", ""]).encode()


def connect(host):
    return f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


def hello(name):
    """The first message of a TLS client."""
    context, out = ssl.create_default_context(), ssl.MemoryBIO()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    return out.read()


async def test_a_request_and_its_answer(serving, host):
    host.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
    assert (await says(serving, get(f"good.org:{host.port}", "/x?y"))).endswith(b"hi")
    assert host.heard.startswith(f"GET /x?y HTTP/1.1\r\nHost: good.org:{host.port}\r\n".encode())
    assert serving.refused == {}


async def test_a_tunnel_passes_tls_for_its_host_unchanged(serving, host):
    sent = hello("good.org") + b"what follows"
    said = await says(serving, connect(f"good.org:{host.port}"), more=sent)
    assert said == b"HTTP/1.1 200 Connection established\r\n\r\n" + sent
    sent = hello(None)
    assert (await says(serving, connect(f"{HERE}:{host.port}"), more=sent)).endswith(sent)
    assert serving.refused == {}


@pytest.mark.parametrize("name", ["evil.org", "notgood.org", "good.org.evil.org", "wild.org", "127.0.0.1", "[::1]"])
@pytest.mark.parametrize("ask", [get, connect])
async def test_other_hosts_are_refused_and_not_looked_up(serving, host, name, ask, caplog):
    caplog.set_level(logging.INFO, "agentrl")
    wanted = f"{name}:{host.port}"
    said = await says(serving, ask(wanted))
    assert said.startswith(b"HTTP/1.1 403 Forbidden")
    assert b"it is not on the list of hosts" in said
    assert (host.connections, host.asked, serving.refused) == (0, [], {wanted: 1})
    assert f"a-sandbox was refused {wanted}" in caplog.text


async def test_another_port_is_refused(serving, host):
    assert b" 403 " in await says(serving, connect("good.org:443"))
    assert b" 403 " in await says(serving, get("good.org"))
    assert serving.refused == {"good.org:443": 1, "good.org:80": 1}


@pytest.mark.parametrize(
    "found", [["169.254.169.254"], ["10.0.0.1"], ["127.0.0.1"], ["::1"], ["::ffff:127.0.0.1"], ["fd00:ec2::254"]]
)
async def test_a_listed_name_opens_no_private_address(serving, host, found):
    host.names["good.org"] = found
    said = await says(serving, connect(f"good.org:{host.port}"))
    assert b" 403 " in said
    assert b"no public address" in said
    assert found[0].encode() not in said
    assert serving.refused == {f"good.org:{host.port}": 1}


async def test_a_name_that_changes_its_address_is_connected_to_the_one_that_was_checked(serving, host, monkeypatch):
    """Rebinding: the first answer is allowed, a later one is not, and nobody asks twice."""
    reached = []
    real = asyncio.open_connection

    async def opened(*place, **rest):
        reached.extend(place[:1])
        return await real(*place, **rest)

    monkeypatch.setattr(proxies.asyncio, "open_connection", opened)
    host.names["good.org"] = ["10.0.0.1", HERE, "169.254.169.254"]  # the allowed one of several is taken
    host.answer = b"HTTP/1.1 200 OK\r\n\r\n"
    assert b"200 OK" in await says(serving, get(f"good.org:{host.port}"))
    assert (reached[-1], host.asked) == (HERE, ["good.org"])
    host.names["good.org"] = ["10.0.0.1"]
    assert b" 403 " in await says(serving, get(f"good.org:{host.port}"))
    assert HERE not in reached[2:]


async def test_tls_for_another_host_does_not_pass(serving, host):
    for name in ("evil.org", "agood.org", None):
        assert (await says(serving, connect(f"good.org:{host.port}"), more=hello(name))).count(b"\r\n") == 2
    assert host.heard == b""
    port = host.port
    assert serving.refused == {f"evil.org:{port}": 1, f"agood.org:{port}": 1, f"good.org:{port}": 1}


@pytest.mark.parametrize(
    "data", [b"SSH-2.0-x\r\n", b"GET / HTTP/1.1\r\nHost: evil.org\r\n\r\n", b"\x16\x03\x01\xff\xff" * 9]
)
async def test_a_tunnel_carries_nothing_but_tls(serving, host, data):
    await says(serving, connect(f"good.org:{host.port}"), more=data)
    assert host.heard == b""
    assert serving.refused in ({f"good.org:{host.port}": 1}, {})  # {}: the message never became complete


async def test_a_second_request_in_the_connection_is_never_sent_on(serving, host):
    first = get(f"good.org:{host.port}")
    host.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    await says(serving, first + b"GET http://evil.org/ HTTP/1.1\r\nHost: evil.org\r\n\r\n")
    assert b"evil" not in host.heard
    assert host.heard.count(b"HTTP/1.1") == 1


async def test_bodies_end_where_they_say(serving, host):
    name = f"good.org:{host.port}"
    smuggled = b"GET /admin HTTP/1.1\r\nHost: evil.org\r\n\r\n"
    head = f"POST http://{name}/ HTTP/1.1\r\nHost: {name}\r\n"
    sized = f"{head}Content-Length: 3\r\n\r\nabc".encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", serving.port)
    writer.write(sized + smuggled)
    assert (await reader.readuntil(b"abc")).startswith(b"POST / HTTP/1.1\r\n")  # the host echoes
    writer.close()
    chunked = f"{head}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n".encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", serving.port)
    writer.write(chunked + smuggled)
    await reader.readuntil(b"0\r\n\r\n")
    writer.close()
    for wrong in (b"3;x=1\r\nabc\r\n0\r\n\r\n", b"3\nabc\r\n0\r\n\r\n", b"3\r\nabcd\r\n0\r\n\r\n", b"-1\r\n"):
        await says(serving, f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + wrong)
    assert b"evil" not in host.heard
    assert b";x" not in host.heard


async def test_a_redirect_is_passed_on_and_not_followed(serving, host):
    host.answer = b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"
    assert b"302 Found" in await says(serving, get(f"good.org:{host.port}"))
    assert (host.connections, host.asked) == (1, ["good.org"])


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: good.org\r\n\r\n", b" 400 "),
        (b"rubbish\r\n\r\n", b" 400 "),
        (b"GET http://good.org/ HTTP/1.1\r\nHost: evil.org\r\n\r\n", b" 400 "),
        (b"GET http://good.org/ HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", b" 431 "),
        (b"x" * 100_000, b" 431 "),
    ],
)
async def test_what_cannot_be_read(serving, host, data, status):
    assert status in await says(serving, data)
    assert (host.connections, serving.refused) == (0, {"(a malformed request)": 1})


async def test_a_refused_upload_sees_why(serving):
    head = b"POST http://evil.org/ HTTP/1.1\r\nHost: evil.org\r\nContent-Length: 2000000\r\n\r\n"
    assert b"not on the list" in await says(serving, head + b"x" * 2_000_000)


@pytest.mark.thorough
async def test_slow_clients_and_slow_hosts_are_given_up(serving, host, monkeypatch):
    monkeypatch.setattr(proxies, "_ASKING_S", 0.2)
    monkeypatch.setattr(proxies, "_IDLE_S", 0.3)
    assert await says(serving, b"GET http://good.org/ HT") == b""
    said = await says(serving, connect(f"good.org:{host.port}") + hello("good.org")[:50])
    assert said == b"HTTP/1.1 200 Connection established\r\n\r\n"
    name, whole = f"good.org:{host.port}", hello("good.org")
    assert (await says(serving, connect(name) + whole)).endswith(whole)  # and it ended, although neither side did
    await says(serving, f"POST http://{name}/ HTTP/1.1\r\nHost: {name}\r\nContent-Length: 9\r\n\r\nabc".encode())
    assert not serving.connections


async def test_a_host_that_is_listed_but_does_not_answer(serving, host):
    host.names["b.wild.org"] = ["127.0.0.3"]
    assert b" 502 " in await says(serving, connect(f"c.wild.org:{host.port}"))
    assert serving.refused == {}
    host.names["good.org"] = []
    assert b" 502 " in await says(serving, connect(f"good.org:{host.port}"))


async def test_a_name_service_that_hangs(serving, host, monkeypatch):
    monkeypatch.setattr(proxies, "_REACHING_S", 0.2)
    hanging = threading.Event()
    serving.resolve = lambda name: hanging.wait(20) or []
    wanted = connect(f"good.org:{host.port}")
    try:
        said = await asyncio.gather(*(says(serving, wanted) for _ in range(6)))
        assert all(b"502" in one and b"name service" in one for one in said)
    finally:
        hanging.set()


async def test_connections_beyond_the_limit_wait(serving, monkeypatch):
    monkeypatch.setattr(proxies, "_CONNECTIONS", 3)
    held = [await asyncio.open_connection("127.0.0.1", serving.port) for _ in range(3)]
    asking = asyncio.create_task(says(serving, get("evil.org")))
    await asyncio.sleep(0.2)
    assert (len(serving.connections), serving.refused) == (3, {})
    held[0][1].close()
    assert b"403" in await asking
    for _, writer in held:
        writer.close()


async def test_all_sandboxes_together_leave_files_for_the_rest(serving, monkeypatch):
    monkeypatch.setattr(proxies, "_most_open", lambda: 0)
    asking = asyncio.create_task(says(serving, get("evil.org")))
    await asyncio.sleep(0.1)
    assert not serving.connections
    monkeypatch.setattr(proxies, "_most_open", lambda: 1)
    assert b"403" in await asking
    assert not proxies._all_open


async def test_bytes_in_all(serving, host, caplog):
    serving.budget = 300_000
    name = f"good.org:{host.port}"
    head = f"POST http://{name}/ HTTP/1.1\r\nHost: {name}\r\nContent-Length: 1000000\r\n\r\n".encode()
    said = await says(serving, head + b"x" * 1_000_000)
    assert len(said) + len(host.heard) < 500_000
    assert "has used up its" in caplog.text
    assert serving.refused == {"(too many bytes)": 1}
    with pytest.raises(ConnectionRefusedError):
        await says(serving, get(name))


async def test_refused_addresses_are_bounded(serving):
    for number in range(proxies.MOST_ADDRESSES + 5):
        await says(serving, get(f"h{number}.org"))
    assert len(serving.refused) == proxies.MOST_ADDRESSES + 1
    assert serving.refused["others"] == 5


async def test_its_end_ends_everything(serving, host):
    reader, writer = await asyncio.open_connection("127.0.0.1", serving.port)
    writer.write(connect(f"good.org:{host.port}") + hello("good.org"))
    await reader.readexactly(100)
    await serving.close()
    with contextlib.suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), 2)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", serving.port)
    await serving.close()
    writer.close()

"""The proxy of a sandbox: connects to the allowed hosts, and to no other host.

A name is first compared with the list, then resolved here, and the connection goes to the checked address. So a later
change in the name service cannot evade the check. A tunnel must contain TLS for the tunnel's host. Responses of hosts
are passed on unread: after a redirect, the sandbox sends a new request to the proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import resource
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

from agentrl_sandbox.egress.hosts import AllowedHosts, literal
from agentrl_sandbox.egress.requests import LONGEST_HEAD, BadRequestError, ProxyRequest, authority, parse_head

log = logging.getLogger("agentrl")

_CONNECTIONS = 64
"""The most parallel connections of a sandbox."""
_PAUSE_S = 0.01
"""Seconds between accepting two connections, so that many connections of a sandbox do not block this event loop."""
_BYTES = 8 << 30
"""The most bytes that a sandbox may send and receive in total."""
_ASKING_S = 10.0
"""The most seconds for a request's head, and for the first message in a tunnel."""
_REACHING_S = 10.0
"""The most seconds to resolve a host's name, and to connect to an address."""
_LINGERING_S, _LINGERING = 1.0, 64
"""How long, and how often, the rest of a refused request is read."""
_IDLE_S = 120.0
"""A connection ends after so many seconds without a byte in either direction."""
_LOOKUPS = 4
"""The most parallel name look-ups of a sandbox."""
MOST_ADDRESSES = 50
"""The most refused addresses that are counted separately. All others are counted together."""
_TRIES = 4
"""The most addresses of a host to which a connection is tried."""
_PIECE = _LONGEST_HELLO = 64 << 10
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})\r\n")
_NO_NAME = re.compile(r"[^a-z0-9._-]")
_LONGEST_NAME = 253
_OTHERS = "others"

_resolving = ThreadPoolExecutor(16, "agentrl-names")
"""Separate threads for name look-ups, so that a slow name service does not delay the rest of this process."""
_all_open: set[asyncio.Task[None]] = set()
"""Tasks of the connections of all sandboxes of this process."""
_warned: set[str] = set()


class EgressProxy:
    """The proxy of a sandbox. `refused` has the number of refused requests for each `host:port`."""

    def __init__(
        self, sandbox_id: str, entries: Sequence[str], resolve: Callable[[str], Sequence[str]] | None = None
    ) -> None:
        """`entries` come from `SandboxSpec.network`. `resolve` returns a host's addresses: it may block, and raises
        OSError for a host without addresses. Raises ValueError for an entry without a host.
        """
        self.refused: dict[str, int] = {}
        self._name, self._hosts = sandbox_id, AllowedHosts(entries)
        self.resolve = resolve or _resolved
        self._lookups = asyncio.Semaphore(_LOOKUPS)
        self.budget = _BYTES
        self._serving: asyncio.Task[None] | None = None
        self.connections: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket) -> None:
        """Begin to serve the connections to a listening socket, until `close`, which also closes the socket."""
        listener.setblocking(False)
        self._serving = asyncio.create_task(self._accept(listener), name=f"proxy of {self._name}")
        self._serving.add_done_callback(lambda _: listener.close())

    async def close(self) -> None:
        """End all connections. Safe to call twice."""
        tasks = {*self.connections, *([self._serving] if self._serving is not None else [])}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _accept(self, listener: socket.socket) -> None:
        """Accept connections. Connections beyond the limits wait in the kernel, not in this process."""
        while True:
            if len(self.connections) < _CONNECTIONS and len(_all_open) < _most_open():
                try:
                    link, _ = await asyncio.get_running_loop().sock_accept(listener)
                    wrapped = await _wrapped(link)
                except OSError as exc:  # no room for a new file, or the client has gone
                    log.debug("sandbox %s: no connection to its proxy: %s", self._name, exc)
                else:
                    task = asyncio.create_task(self._connection(wrapped))
                    for tasks in (self.connections, _all_open):
                        tasks.add(task)
                        task.add_done_callback(tasks.discard)
            await asyncio.sleep(_PAUSE_S)

    async def _connection(self, link: _Link) -> None:
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await self._serve(link)
            link.close()
        finally:
            if self.budget <= 0 or not link.writer.is_closing():
                link.writer.transport.abort()

    async def _serve(self, link: _Link) -> None:
        request = None
        try:
            request = await link.request()
            remote = await self._reach(request)
        except BadRequestError as exc:
            self._refuse("(a malformed request)", str(exc))
            return await link.answer(exc.status, str(exc))
        except _HostRefusedError as exc:
            assert request is not None
            self._refuse(request.address, str(exc))
            return await link.answer(HTTPStatus.FORBIDDEN, f"this sandbox does not reach {request.address}: {exc}")
        except _UnreachableError as exc:
            assert request is not None
            return await link.answer(HTTPStatus.BAD_GATEWAY, f"{request.address} was not reached: {exc}")
        try:
            if request.is_tunnel:
                await self._tunnel(link, remote, request)
            else:
                await self._send_on(link, remote, request)
        finally:
            remote.writer.transport.abort()
        return None

    async def _reach(self, request: ProxyRequest) -> _Link:
        """Connect to the host of a request. Raises _HostRefusedError for a refused host, and _UnreachableError if the
        host does not respond."""
        if not self._hosts.has(request.host, request.port):
            raise _HostRefusedError("it is not on the list of hosts")
        addresses = await self._addresses(request.host)
        reasons = {candidate: self._hosts.refusal(ipaddress.ip_address(candidate)) for candidate in addresses}
        reachable = [candidate for candidate, why in reasons.items() if not why]
        if not reachable:
            address, why = next(iter(reasons.items()))
            _warn_once(f"sandboxes do not reach {request.host}, although it is listed: {address} is {why}")
            raise _HostRefusedError("it has no public address")
        problem: object = ""
        for candidate in reachable[:_TRIES]:
            try:
                async with asyncio.timeout(_REACHING_S):
                    return _Link(*await asyncio.open_connection(candidate, request.port))
            except TimeoutError:
                problem = f"no connection within {_REACHING_S:g} s"
            except OSError as exc:
                problem = exc.strerror or exc
        raise _UnreachableError(problem)

    async def _addresses(self, host: str) -> Sequence[str]:
        """The addresses of a host. A look-up that exceeds the time limit still counts as running until its end."""
        if literal(host) is not None:
            return [host]
        try:
            async with asyncio.timeout(_REACHING_S):
                await self._lookups.acquire()
                looking = asyncio.get_running_loop().run_in_executor(_resolving, self.resolve, host)
                looking.add_done_callback(self._looked_up)
                addresses = await asyncio.shield(looking)
        except TimeoutError:
            raise _UnreachableError(f"the name service did not answer within {_REACHING_S:g} s") from None
        except (OSError, UnicodeError) as exc:
            raise _UnreachableError(f"its name was not found: {exc}") from exc
        if not addresses:
            raise _UnreachableError("its name has no address")
        return addresses

    def _looked_up(self, looking: asyncio.Future[Sequence[str]]) -> None:
        self._lookups.release()
        if not looking.cancelled():
            looking.exception()

    async def _tunnel(self, link: _Link, remote: _Link, request: ProxyRequest) -> None:
        link.writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        hello = _ClientHello()
        try:
            async with asyncio.timeout(_ASKING_S):
                while not hello.feed(await link.some()):
                    pass
        except _NotTLSError:
            return self._refuse(request.address, "what it was sent is not TLS")
        if hello.name != (request.host if literal(request.host) is None else None):
            meant = _NO_NAME.sub("?", hello.name or "")[:_LONGEST_NAME]
            why = f"a tunnel to {request.address} carried TLS for {meant or 'no host by name'}"
            return self._refuse(authority(meant or request.host, request.port), why)
        exchange = _Exchange(self._count)
        self._count(len(hello.data))
        remote.writer.write(bytes(hello.data))
        await exchange.run(exchange.copy(link, remote), exchange.copy(remote, link))
        return None

    async def _send_on(self, link: _Link, remote: _Link, request: ProxyRequest) -> None:
        """Send a request to the host, and its whole response to the sandbox. Later data of the sandbox is never
        read."""
        self._count(len(request.head()))
        remote.writer.write(request.head())
        exchange = _Exchange(self._count)
        length = request.length
        body = exchange.copy_chunks(link, remote) if length is None else exchange.copy_bytes(link, remote, length)
        await exchange.run(body, exchange.copy(remote, link))

    def _count(self, size: int) -> None:
        """Count sent or received bytes. Raises OSError if the sandbox exceeds its limit."""
        if self.budget > 0 >= self.budget - size:
            log.warning("sandbox %s has used up its %d GiB of network traffic", self._name, _BYTES >> 30)
            self._refuse("(too many bytes)")
            if self._serving is not None:
                self._serving.cancel()
        self.budget -= size
        if self.budget <= 0:
            raise OSError("too many bytes")

    def _refuse(self, address: str, why: str = "") -> None:
        if address not in self.refused:
            log.info("sandbox %s was refused %s%s", self._name, address, why and f": {why}")
            if len(self.refused) >= MOST_ADDRESSES:
                address = _OTHERS
        self.refused[address] = self.refused.get(address, 0) + 1


class _HostRefusedError(Exception):
    """The sandbox may not reach the host. The message has the reason."""


class _UnreachableError(Exception):
    """An allowed host does not respond."""


class _Link:
    """A TCP connection, to the sandbox or to a host."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def request(self) -> ProxyRequest:
        """Read the head of a request. Raises BadRequestError, and TimeoutError for a slow request."""
        try:
            async with asyncio.timeout(_ASKING_S):
                return parse_head(await self.reader.readuntil(b"\r\n\r\n"))
        except asyncio.LimitOverrunError:
            raise BadRequestError(f"the head is longer than {LONGEST_HEAD >> 10} KiB", 431) from None

    async def some(self) -> bytes:
        """Read some bytes. Raises IncompleteReadError at the end of the connection."""
        if data := await self.reader.read(_PIECE):
            return data
        raise asyncio.IncompleteReadError(b"", None)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, status: int, why: str) -> None:
        """Send a response of the proxy itself. The client's remaining data is read for a moment: otherwise the kernel
        would reset the connection, and the client would not read the response."""
        text = f"{why}\n".encode(errors="replace")
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: text/plain\r\n"
        self.writer.write(f"{head}Content-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode() + text)
        self.writer.write_eof()
        async with asyncio.timeout(_LINGERING_S):
            for _ in range(_LINGERING):
                await self.some()

    def close(self) -> None:
        """Close the connection after all data is sent. If the client does not read, the connection is cut after some
        time."""
        self.writer.close()
        asyncio.get_running_loop().call_later(_ASKING_S, self.writer.transport.abort)


async def _wrapped(link: socket.socket) -> _Link:
    try:
        return _Link(*await asyncio.open_connection(sock=link, limit=LONGEST_HEAD))
    except BaseException:
        link.close()
        raise


class _Exchange:
    """Both directions of a connection through the proxy."""

    def __init__(self, count: Callable[[int], None]) -> None:
        self._count = count
        self._deadline: asyncio.Timeout | None = None

    async def run(self, forth: Coroutine[Any, Any, None], back: Coroutine[Any, Any, None]) -> None:
        """Run both directions until the host has sent all data, the connection breaks, or no data has moved for some
        time."""
        sending, answering = asyncio.create_task(forth), asyncio.create_task(back)
        try:
            async with asyncio.timeout(_IDLE_S) as self._deadline:
                await asyncio.wait([sending, answering], return_when=asyncio.FIRST_COMPLETED)
                if not answering.done() and sending.exception() is None:
                    await asyncio.wait([answering])
        finally:
            sending.cancel()
            answering.cancel()
            await asyncio.gather(sending, answering, return_exceptions=True)

    async def copy(self, source: _Link, target: _Link) -> None:
        """Everything up to the end, and the end too."""
        while data := await source.reader.read(_PIECE):
            await self._pass(target, data)
        if target.writer.can_write_eof():
            target.writer.write_eof()

    async def copy_bytes(self, source: _Link, target: _Link, size: int) -> None:
        while size:
            data = await source.reader.read(min(size, _PIECE))
            if not data:
                raise asyncio.IncompleteReadError(b"", size)
            size -= len(data)
            await self._pass(target, data)

    async def copy_chunks(self, source: _Link, target: _Link) -> None:
        """Copy a chunked body, without its extensions and trailers."""
        while True:
            match = _CHUNK.fullmatch(await source.reader.readuntil(b"\r\n"))
            if match is None:
                raise OSError("a chunk cannot be read")
            size = int(match[1], 16)
            await self._pass(target, b"%x\r\n" % size)
            await self.copy_bytes(source, target, size)
            if await source.reader.readexactly(2) != b"\r\n":
                raise OSError("a chunk is not as long as it says")
            await self._pass(target, b"\r\n")
            if size == 0:
                return

    async def _pass(self, target: _Link, data: bytes) -> None:
        self._count(len(data))
        if self._deadline is not None:
            self._deadline.reschedule(asyncio.get_running_loop().time() + _IDLE_S)
        await target.send(data)


def _resolved(host: str) -> Sequence[str]:
    """The addresses of a host, in the order in which to try them. Blocks."""
    entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def _most_open() -> int:
    """The most parallel connections of all sandboxes. A connection needs two file descriptors; all connections get at
    most a quarter of the descriptors of this process."""
    return max(8, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 20) // 8)


def _warn_once(text: str) -> None:
    if text not in _warned and len(_warned) < MOST_ADDRESSES:
        _warned.add(text)
        log.warning("%s", text)


class _NotTLSError(Exception):
    """The data is not the beginning of a TLS connection."""


class _ClientHello:
    """Parses the first message of a TLS client, which has the name of the target host."""

    def __init__(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.set_ciphers("ALL:@SECLEVEL=0")  # whatever the host accepts: no answer is sent here
        context.sni_callback = self._hear
        self._incoming = ssl.MemoryBIO()
        self._handshake = context.wrap_bio(self._incoming, ssl.MemoryBIO(), server_side=True)
        self._heard = False
        self.data = bytearray()
        """The data read so far."""
        self.name: str | None = None
        """The host name that the client sent, in lower case. None if there is no name, or if it is not read yet."""

    def feed(self, data: bytes) -> bool:
        """Add data. Returns whether the message is complete. Raises _NotTLSError."""
        self.data += data
        self._incoming.write(data)
        try:
            self._handshake.do_handshake()
        except ssl.SSLWantReadError:
            if len(self.data) > _LONGEST_HELLO:
                raise _NotTLSError from None
            return False
        except (ssl.SSLError, ValueError) as exc:
            if not self._heard:
                raise _NotTLSError from exc
        return True

    def _hear(self, _socket: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int:
        self._heard, self.name = True, name and name.lower()
        return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR  # ends the handshake: the host answers, not the proxy

"""The bridge to an engine over TLS: each direction ends alone, and nothing is lost at an end."""

import asyncio
import socket
import ssl
import subprocess

import pytest

pytest.importorskip("aiodocker", reason="the extra `docker` is not installed")

from agentrl.errors import SandboxError
from agentrl_sandbox.docker.tls import TlsTunnel

DATA = bytes(range(256)) * 8000


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A file with a key and its certificate, for 127.0.0.1."""
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=engine", "-keyout", str(file)]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", f"{file}.cert"]
    subprocess.run([*made, *names], check=True, capture_output=True)
    file.write_text(file.read_text() + (file.parent / f"{file.name}.cert").read_text())
    return str(file)


class Echo:
    """A TLS server, in plain blocking sockets, which can end one direction alone. After a ping it sends all it got in
    pieces, the last of them after the client's end."""

    def __init__(self, certificate):
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificate)

    def serve(self, server, count):
        for _ in range(count):
            plain, _ = server.accept()
            with plain, self.context.wrap_socket(plain, server_side=True, suppress_ragged_eofs=False) as client:
                first = client.recv(1 << 16)
                if first.startswith(b"GET /_ping"):
                    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                    continue
                client.sendall(first)
                while piece := client.recv(1 << 16):
                    client.sendall(piece)
                client.sendall(b"the end was heard")


async def test_an_end_is_heard_and_nothing_is_lost(certificate):
    context = ssl.create_default_context(cafile=certificate)
    with socket.create_server(("127.0.0.1", 0)) as server:
        tunnel = TlsTunnel(f"tcp://127.0.0.1:{server.getsockname()[1]}", context)
        serving = asyncio.create_task(asyncio.to_thread(Echo(certificate).serve, server, 21))
        await tunnel.open()
        for _ in range(20):
            reader, writer = await asyncio.open_unix_connection(tunnel.socket)
            writer.write(DATA)
            writer.write_eof()
            assert await reader.read() == DATA + b"the end was heard"
            writer.close()
        await tunnel.close()
        await serving


async def test_a_certificate_that_is_not_trusted_is_named(certificate):
    with socket.create_server(("127.0.0.1", 0)) as server:
        tunnel = TlsTunnel(f"tcp://127.0.0.1:{server.getsockname()[1]}", ssl.create_default_context())
        serving = asyncio.create_task(asyncio.to_thread(Echo(certificate).serve, server, 1))
        with pytest.raises(SandboxError, match=r"cannot be reached: .*certificate verify failed"):
            await tunnel.open()
        await tunnel.close()
        with pytest.raises(ssl.SSLError):
            await serving

"""The name of the target host in the first message of a TLS client."""

from __future__ import annotations

import ssl

LONGEST_HELLO = 64 << 10


class NotTLSError(Exception):
    """The data is not the beginning of a TLS connection."""


class ClientHello:
    """Reads the beginning of a client's side of a connection, until the host name is known."""

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
        """The name sent by the client, in lower case. None: no name, or the name is not read yet."""

    def feed(self, data: bytes) -> bool:
        """Whether the message is complete. Raises NotTLSError."""
        self.data += data
        self._incoming.write(data)
        try:
            self._handshake.do_handshake()
        except ssl.SSLWantReadError:
            if len(self.data) > LONGEST_HELLO:
                raise NotTLSError from None
            return False
        except (ssl.SSLError, ValueError) as exc:
            if not self._heard:
                raise NotTLSError from exc
        return True

    def _hear(self, _socket: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int:
        self._heard, self.name = True, name and name.lower()
        return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR  # ends the handshake: the host answers, not the proxy

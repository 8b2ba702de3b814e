"""Encryption of the page and of the line to other machines, by a certificate of the user's own."""

from __future__ import annotations

import hashlib
import re
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from splatstudio.files.inputs import read_input, refuse_irregular
from splatstudio.operating_system import wait_for

SCHEME = "tls://"  # before the address of a training whose line is encrypted
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """A certificate for TLS, and its key.

    Args:
        tls_cert: Encrypt what is listened for with the certificate in this PEM file (with those that lead to
            its authority, where browsers need them).
        tls_key: PEM file with the certificate's private key, where it is not in the same file.
    """

    tls_cert: Path | None = None
    tls_key: Path | None = None

    def context(self) -> ssl.SSLContext | None:
        """Return how a server encrypts, None: not at all; ValueError, a sentence, for other files."""
        if self.tls_cert is None:
            if self.tls_key is not None:
                raise ValueError("--tls-key needs the certificate that belongs to it: add --tls-cert")
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            for file in filter(None, (self.tls_cert, self.tls_key)):
                refuse_irregular(file)
            context.load_cert_chain(self.tls_cert, self.tls_key, password=_refuse_encrypted)
        except ssl.SSLError as error:
            key = self.tls_key or self.tls_cert
            raise ValueError(
                f"{self.tls_cert} and {key} are no certificate and its private key in PEM, so the connection"
                f" would not be encrypted ({error.reason or error}): name others with --tls-cert, --tls-key"
            ) from error
        except OSError as error:
            raise ValueError(f"{error.filename or self.tls_cert} cannot be read: {error.strerror}") from error
        return context

    @property
    def fingerprint(self) -> str:
        """Return the SHA-256 of the certificate, "" without one; `context` has found it to be good."""
        if self.tls_cert is None:
            return ""
        first = _CERTIFICATE.search(read_input(self.tls_cert))
        assert first is not None, "it was loaded"
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first[0].decode())).hexdigest()


NO_TLS = TlsFiles()


def _refuse_encrypted() -> str:
    # Else OpenSSL asks at the terminal, of which a service has none.
    raise ValueError(
        "the key of --tls-key is encrypted with a password, which cannot be asked for: decrypt it with"
        " openssl pkey -in KEY -out FILE, for yourself alone to read"
    )


class TlsSocket(ssl.SSLSocket):
    """An encrypted connection from which one thread reads while another writes, which OpenSSL does not allow.

    Neither holds the other up: the socket does not block, and who has to wait does so without the lock.
    Sending fails with TimeoutError where the other end does not read for `send_seconds`.
    """

    _turn = threading.Lock()  # each has its own once it is made
    _seconds: float | None = None
    send_seconds: Callable[[], float]

    def settimeout(self, value: float | None) -> None:
        """Wait at most so many seconds to read, None: for ever."""
        self._seconds = value

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Return what has come, b"" at the end."""
        while True:
            with self._turn:
                try:
                    return super().recv(buflen, flags)
                except ssl.SSLWantReadError:
                    sending = False
                except ssl.SSLWantWriteError:
                    sending = True
            self._wait(sending, self._seconds)

    def sendall(self, data: bytes, flags: int = 0) -> None:  # type: ignore[override]
        """Send all of it."""
        view = memoryview(data)
        while view:
            with self._turn:
                try:
                    view = view[super().send(view, flags) :]
                    continue
                except ssl.SSLWantWriteError:
                    sending = True
                except ssl.SSLWantReadError:
                    sending = False
            self._wait(sending, self.send_seconds())

    def shutdown(self, how: int) -> None:
        """Wake who waits; unlike that of ssl it never lets what is still being sent go unencrypted."""
        socket.socket.shutdown(self, how)

    def _wait(self, sending: bool, seconds: float | None) -> None:
        """Wait until the socket is ready; OSError once it is closed or takes too long."""
        if self.fileno() < 0:
            raise ConnectionError("the line was closed")
        if not wait_for(self, sending=sending, seconds=seconds):
            raise TimeoutError("the other end does not answer")


def encrypted(
    line: socket.socket, context: ssl.SSLContext, seconds: float, send_seconds: Callable[[], float]
) -> TlsSocket:
    """Return a line that is encrypted, after a handshake of at most `seconds`; OSError where that fails."""
    context.sslsocket_class = TlsSocket
    client = context.protocol == ssl.PROTOCOL_TLS_CLIENT
    line.settimeout(seconds)
    wrapped = context.wrap_socket(line, server_side=not client, do_handshake_on_connect=False)
    assert isinstance(wrapped, TlsSocket)
    wrapped._turn, wrapped._seconds, wrapped.send_seconds = threading.Lock(), None, send_seconds
    try:
        ssl.SSLSocket.settimeout(wrapped, seconds)
        wrapped.do_handshake()
        ssl.SSLSocket.settimeout(wrapped, 0.0)
    except BaseException:
        wrapped.close()
        raise
    return wrapped


def caller_context() -> ssl.SSLContext:
    """Return how a caller encrypts who knows the token: the certificate is checked by the proofs of that.

    A certificate of one's own has no authority. Both sides prove that they know the token and see the same
    certificate, so that one in between, who has another, gains nothing.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context

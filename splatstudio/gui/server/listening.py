"""Taking a port, with an answer at once.

viser itself hangs for ever on a bad address, and silently moves on from a port that is taken.
"""

from __future__ import annotations

import errno
import os
import socket

_FIRST_PORT = 8080
_NUM_PORTS = 100


def listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens on a host and port.

    Args:
        host: name or address of this machine.
        port: 1..65535, or 0 for any; None for the first free one from 8080 on.

    Raises:
        ValueError: the port is taken or not allowed, the host is unknown or not of this machine.
    """
    if port is not None and not 0 <= port <= 65535:
        raise ValueError(f"There is no port {port}: choose one from 1024 to 65535.")
    family, address = _resolve(host, port or 0)
    ports = range(_FIRST_PORT, _FIRST_PORT + _NUM_PORTS) if port is None else [port]
    for candidate in ports:
        try:
            return _bound(family, address, candidate)
        except OSError as error:
            if port is None and error.errno == errno.EADDRINUSE:
                continue
            raise ValueError(_explanation(error, host, candidate)) from error
    last = _FIRST_PORT + _NUM_PORTS - 1
    raise ValueError(f"All ports from {_FIRST_PORT} to {last} are in use: name a free one with --port.")


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"The host {host!r} is not known: try 127.0.0.1.") from error
    # "localhost" has two addresses; every browser tries the IPv4 one.
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, str(address[0])


def _bound(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # elsewhere this would share the port with another program
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(100)
    except OSError:
        listener.close()
        raise
    return listener


def _explanation(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} is already in use, perhaps by another splatstudio: close it, name another one, or "
            "take a free one with --port auto."
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"The address {host} does not belong to this machine: try 127.0.0.1, or 0.0.0.0 for all."
    if error.errno in {errno.EACCES, errno.EPERM}:
        return f"Port {port} is reserved for the administrator: choose one from 1024 to 65535."
    return f"Cannot listen on {host}, port {port}: {error.strerror}."

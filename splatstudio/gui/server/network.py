"""Where the page listens: taking a port, and what its user must know of reaching it."""

from __future__ import annotations

import errno
import getpass
import ipaddress
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import psutil

from splatstudio.gui.server.access import is_address, is_wildcard

_PORTS = range(8080, 8180)  # that "auto" tries


@dataclass(frozen=True)
class Listen:
    """Where the studio's page can be reached.

    Args:
        host: Address to listen on; 0.0.0.0 for every network of this machine.
        port: Port to listen on; "auto" takes the first free one from 8080 on.
        allow_host: Further names of this machine, such as that of a reverse proxy.
        allow_origin: Further pages that may connect, such as https://studio.example.org.
    """

    host: str = "127.0.0.1"
    port: int | Literal["auto"] = "auto"
    allow_host: tuple[str, ...] = ()
    allow_origin: tuple[str, ...] = ()

    def take_port(self) -> socket.socket:
        """Return a socket that listens here; port 0 takes any.

        viser itself hangs for ever on a bad address, and silently moves on from a port that is taken.
        Raises ValueError when the port is taken or not allowed, or the host is not of this machine.
        """
        if self.port != "auto" and not 0 <= self.port <= 65535:
            raise ValueError(f"There is no port {self.port}: choose one from 1024 to 65535.")
        family, address = _resolve(self.host)
        for port in _PORTS if self.port == "auto" else [self.port]:
            try:
                return _bound(family, address, port)
            except OSError as error:
                if self.port != "auto" or error.errno != errno.EADDRINUSE:
                    raise ValueError(_explanation(error, self.host, port)) from error
        first, last = _PORTS[0], _PORTS[-1]
        raise ValueError(f"All ports from {first} to {last} are in use: name a free one with --port.")


THIS_MACHINE = Listen()


def advice(host: str, url: str, port: int, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the sentences to print below the page's address.

    Args:
        host: the address that the server listens on.
        url: the page's address with its token, as seen on this machine.
        port: the port that the server has.
        environment: the variables of the shell; sshd sets SSH_CONNECTION.
    """
    if not _is_loopback(host):
        others = [url.replace(f"localhost:{port}", f"{address}:{port}") for address in _addresses(host)]
        if others and others != [url]:
            yield f"From other machines: {' or '.join(others)}"
        yield (
            f"Warning: the studio listens on {host}, unencrypted, and who learns its address with the token "
            "can steer it; where you do not trust the network, omit --host and use ssh -L."
        )
    tunnel = ssh_line(host, port, environment)
    if tunnel is not None:
        yield f"To open it in the browser of the computer that you came from, run there first: {tunnel}"


def ssh_line(host: str, port: int, environment: Mapping[str, str]) -> str | None:
    """Return the command that brings the page's port to the computer one logged in from; None without SSH."""
    # The client's address and port, then this machine's.
    parts = environment.get("SSH_CONNECTION", "").split()
    if len(parts) != 4:
        return None
    _, _, server, server_port = parts
    target = "localhost" if _is_loopback(host) or is_wildcard(host) else host
    if ":" in target:
        target = f"[{target}]"
    login = f"{environment.get('USER') or getpass.getuser()}@{server}"
    option = "" if server_port == "22" else f" -p {server_port}"
    return f"ssh -N -L {port}:{target}:{port}{option} {login}"


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def _addresses(host: str) -> list[str]:
    """Return the addresses under which other machines may reach a server on `host`, three at most."""
    if not is_wildcard(host):
        return [host]
    found = [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET and not _is_loopback(entry.address)
    ]
    return found[:3]


def _resolve(host: str) -> tuple[socket.AddressFamily, str]:
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
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

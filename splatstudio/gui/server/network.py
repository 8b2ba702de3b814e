"""Where the page listens, and what its user must know of reaching it."""

from __future__ import annotations

import getpass
import ipaddress
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import psutil


@dataclass(frozen=True)
class Network:
    """Where the page listens, and under which further names it may be reached.

    `port` None takes the first free one from 8080 on, 0 any. `allow_hosts` are names of this server, such as
    that of a reverse proxy; `allow_origins` are pages that may connect, such as https://studio.example.org.
    """

    host: str = "127.0.0.1"
    port: int | None = None
    allow_hosts: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()


LOOPBACK = Network()


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

    @property
    def network(self) -> Network:
        """Return the same as the studio takes it."""
        port = None if self.port == "auto" else self.port
        return Network(self.host, port, self.allow_host, self.allow_origin)


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
            "can steer it; where you do not trust the network, leave --host away and use ssh -L."
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
    target = "localhost" if _is_loopback(host) or _is_wildcard(host) else host
    if ":" in target:
        target = f"[{target}]"
    login = f"{environment.get('USER') or getpass.getuser()}@{server}"
    option = "" if server_port == "22" else f" -p {server_port}"
    return f"ssh -N -L {port}:{target}:{port}{option} {login}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    return _address(host) is not None and ipaddress.ip_address(host).is_loopback


def _is_wildcard(host: str) -> bool:
    return _address(host) is not None and ipaddress.ip_address(host).is_unspecified


def _address(host: str) -> str | None:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return None
    return host


def _addresses(host: str) -> list[str]:
    """Return the addresses under which other machines may reach a server on `host`, three at most."""
    if not _is_wildcard(host):
        return [host]
    found = [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET and not _is_loopback(entry.address)
    ]
    return found[:3]

"""The store by which the machines of a training meet, held by the studio: no machine of it is the one needed.

torchrun's agents keep their state there, and rank 0 says there where it can be steered; one that takes its
place, on another machine perhaps, says it again. The store knows no password: who reaches it can do what the
agents do, so it is for networks that are trusted, and listens on that one alone where its address is known.
"""

from __future__ import annotations

import errno
import socket
from datetime import timedelta
from ipaddress import ip_address

import msgspec
from msgspec import Struct
from torch._C._distributed_c10d import TCPStore

from splatstudio.runtime.remote_run import RemoteLine, Unreachable, dial

KEY = "splatstudio/rank0"
STORE_SECONDS = 10.0  # for the store to answer
BACKLOG = 2048  # connections that wait to be accepted: all ranks come at once
EVERYWHERE = "0.0.0.0"


class Announcement(Struct, frozen=True):
    """Where rank 0 can be steered."""

    address: str
    token: str


class StoreHost:
    """A store for the agents of several machines."""

    def __init__(self, port: int = 0, host: str | None = None):
        """Listen where `host` is an address of this machine, else on all its networks, as `address` says.

        ValueError where the port is not available. 0: any.
        """
        try:
            listening = _listening(EVERYWHERE if host is None else host, port)
            self.address, self.port = listening.getsockname()[:2]
            self._store = TCPStore(
                self.address,
                self.port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=STORE_SECONDS),
                master_listen_fd=listening.detach(),
            )
        except (OSError, RuntimeError) as error:  # all errors of the store are a RuntimeError
            raise ValueError(f"port {port} is not free for the machines to meet; choose another") from error

    def dialed(self) -> RemoteLine:
        """Return a line to rank 0, wherever it runs now; Unreachable while there is none.

        Raises ValueError with one sentence where what is said of it is not understood.
        """
        try:
            if not self._store.check([KEY]):
                raise Unreachable("the machines have not met yet")
            told = self._store.get(KEY)
        except RuntimeError as error:  # all errors of the store are
            raise Unreachable(f"the store by which the machines meet does not answer: {error}") from error
        try:
            said = msgspec.json.decode(told, type=Announcement)
        except msgspec.MsgspecError as error:
            raise ValueError(
                "what the machines say of rank 0 is not understood: use the same release"
            ) from error
        return dial(said.address, said.token, frames=True)


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the address of this machine that `host` names, or on all of them.

    On all where none is meant or known: behind a router, and where a machine's name is one of loopback for
    itself, as Debian's are. Raises OSError where the port is not available.
    """
    try:
        named = [(family, at[:2]) for family, _, _, _, at in socket.getaddrinfo(host, port, proto=6)]
    except (OSError, UnicodeError):
        named = []
    for family, at in named:
        if ip_address(at[0]).is_loopback and host not in ("localhost", at[0]):
            continue
        try:
            return socket.create_server(at, family=family, backlog=BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    return socket.create_server((EVERYWHERE, port), backlog=BACKLOG)


def own_address(toward: tuple[str, int]) -> str:
    """Return the address by which this machine reaches a host; OSError where it does not."""
    with socket.create_connection(toward, STORE_SECONDS) as line:
        return str(line.getsockname()[0])


def announce(store_at: tuple[str, int], address: str, token: str) -> None:
    """Say in the store at `store_at` where rank 0 can be steered; OSError where it does not answer."""
    try:
        timeout = timedelta(seconds=STORE_SECONDS)
        store = TCPStore(*store_at, is_master=False, wait_for_workers=False, timeout=timeout)
        store.set(KEY, msgspec.json.encode(Announcement(address, token)).decode())
    except RuntimeError as error:
        raise OSError(f"the store at {store_at[0]}:{store_at[1]} does not answer") from error

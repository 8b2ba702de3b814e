"""What stands in the place of a studio for a training that a launcher started: rank 0's other end.

It starts the training, and is its hub: the terminal and who attaches are clients.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from splatstudio.checkpoints.checkpoint import newest_or_why
from splatstudio.files.durable import write_durably
from splatstudio.files.inputs import read_input
from splatstudio.files.outputs import make_folder
from splatstudio.files.recent import state_folder
from splatstudio.files.run import Run
from splatstudio.runtime import messages, supervisor
from splatstudio.runtime.channel.codec import decode, encode_order
from splatstudio.runtime.channel.frame_slots import FrameSlots
from splatstudio.runtime.channel.hub import Hub
from splatstudio.runtime.channel.remote_server import RemoteServer, RunCard
from splatstudio.runtime.channel.tls import NO_TLS, TlsFiles
from splatstudio.runtime.kept_orders import (
    KeptOrders,
    forget_orders,
    going_on_sentence,
    keep_orders,
    kept_orders,
    launch_of,
    restarted,
)
from splatstudio.runtime.store_host import EVERYWHERE, announce, own_address
from splatstudio.runtime.supervisor import SaveRetries
from splatstudio.settings.config import to_json

LISTEN_SECONDS = 5.0  # between two tries, where the ranks were started again
MAX_ROWS = 1000  # of the metrics, for who comes later, but for those with
TELLING = {"test_psnr", "densified"}  # of which each is a mark in the curves

Address = tuple[str, int]


class HeadlessController:
    """Starts the training, tells of it, lets in who has the token; `tell` is the terminal."""

    def __init__(
        self,
        connection: Connection,
        slots: FrameSlots,
        job: messages.TrainJob,
        tell: Callable[[messages.Event], None],
        tls: TlsFiles = NO_TLS,
    ):
        self._connection = connection
        self._slots = slots
        self._job = job
        self._tell = tell
        self._tls = tls
        self._sending = threading.Lock()
        self._closed = threading.Event()
        self._num_ranks = 1
        self.unsaved = False  # the training stands still because there is no room for the model
        self._steered = False  # or nobody could let it go on
        self._orders = KeptOrders("")
        self._server: RemoteServer | None = None
        self._hub = Hub(self._send)

    def listen(self, at: Address | None, store_at: Address | None, num_ranks: int) -> None:
        """Let in who has the token at `at`, and print it; OSError where the address is not available.

        `at` None: at any port, which is said in the store at `store_at`. After a restart it is tried again
        meanwhile: the rank before may not have let go of the port yet.
        """
        self._num_ranks, self._steered = num_ranks, True
        self._orders = KeptOrders(launch_of(os.environ, named_once=store_at is not None))
        try:
            self._open(at, store_at)
        except OSError as error:
            if self._job.attempt == 0:
                raise
            self._tell(messages.Warned(f"It cannot be steered for now and tries again: {error}."))
            threading.Thread(target=self._keep_trying, args=(at, store_at), daemon=True).start()

    def _keep_trying(self, at: Address | None, store_at: Address | None) -> None:
        while not self._closed.wait(LISTEN_SECONDS):
            try:
                return self._open(at, store_at)
            except OSError:
                continue  # it was told of

    def _open(self, at: Address | None, store_at: Address | None) -> None:
        token = kept_token(self._job.run_dir)
        if at is None:
            assert store_at is not None, "there is a place to be found at"
            at = own_address(store_at), 0
        serve = partial(RemoteServer, hub=self._hub, card=self._card, token=token, tls=self._tls)
        name, server = _listening(at, serve)
        address = f"{server.scheme}{name}:{server.port}"
        if store_at is not None:
            try:
                announce(store_at, address, server.token)
            except OSError:
                server.close()
                raise
        self._tell(
            messages.Warned(f"Watch and steer it with: splatstudio attach {address} --token {server.token}")
        )
        self._server = server

    def follow(self) -> None:
        """Start the training, hand on what is told of it, and let all ranks leave at its end."""
        self._start()
        retries, retry_at = SaveRetries(), math.inf
        while True:
            try:
                left = max(retry_at - time.monotonic(), 0.0) if math.isfinite(retry_at) else None
                if not self._connection.poll(left):
                    retry_at = math.inf
                    self._send(messages.Stop() if retries.fail() else messages.Close())
                    continue
                event = decode(self._connection.recv_bytes(), messages.Event)
            except (EOFError, OSError):
                return
            if isinstance(event, messages.Frame):
                self._hand_on(event)
                continue
            server = self._server
            if server is not None and isinstance(event, messages.Started):
                self._keep(server.token)
            self._keep_orders(event)  # before anybody is told: what a page shows holds after a restart
            self.tell(event)
            if isinstance(event, messages.Finished):
                self._send(messages.Close())
            elif isinstance(event, messages.StateChanged):
                self.unsaved = event.unsaved
                retry_at = time.monotonic() + supervisor.RETRY_SECONDS if event.unsaved else math.inf

    def _start(self) -> None:
        """Start the training; one that the launcher starts again goes on with the orders that held."""
        if self._job.attempt > 0 and self._steered:
            self._orders = kept_orders(self._job.run_dir, self._orders.launch)
        orders = self._orders.orders(self._job)
        if self._job.attempt > 0:
            checkpoint, again = self._job.checkpoint, restarted(os.environ) or len(orders) > 1
            why = newest_or_why(self._job.run_dir)[1] if checkpoint is None else ""
            self.tell(messages.Warned(going_on_sentence(checkpoint, orders, again=again, why=why)))
        for order in orders:
            self._send(order)

    def _keep_orders(self, event: messages.Event) -> None:
        before, self._orders = self._orders, self._orders.after(event)
        if self._orders == before or not self._steered:
            return
        try:
            keep_orders(self._job.run_dir, self._orders)
        except OSError as error:
            why = error.strerror or error
            self.tell(messages.Warned(f"A restart would forget what was changed since the last save: {why}."))

    def forget_orders(self) -> None:
        """Keep nothing for a restart: the training has ended, and not by a signal of a launcher's."""
        try:
            forget_orders(self._job.run_dir)
        except OSError as error:
            self.tell(messages.Warned(f"{error.filename} cannot be removed: {error.strerror}."))

    def _hand_on(self, frame: messages.Frame) -> None:
        image = self._slots.view(frame.slot, frame.height, frame.width).copy()
        self._send(messages.ReturnSlot(frame.slot))
        self._hub.take_frame(frame, image)

    def tell(self, event: messages.Event) -> None:
        """Tell the terminal and who watches; also something beside the training, which may hang."""
        self._tell(event)
        self._hub.receive(event)

    def close(self) -> None:
        """Let everybody go who watches."""
        self._closed.set()
        if self._server is not None:
            self._server.close()

    def _card(self) -> RunCard:
        job = self._job
        rows = json.dumps(metrics_rows(job.run_dir))
        return RunCard(job.scene_path, job.run_dir, json.dumps(to_json(job.config)), self._num_ranks, rows)

    def _keep(self, token: str) -> None:
        try:
            keep_token(self._job.run_dir, token)
        except (OSError, RuntimeError) as error:
            self._tell(
                messages.Warned(f"After a restart it has another token, which cannot be kept: {error}.")
            )

    def _send(self, command: messages.Command) -> None:
        with self._sending:
            self._connection.send_bytes(encode_order(command))


def _listening(at: Address, serve: Callable[[str, int], RemoteServer]) -> tuple[str, RemoteServer]:
    """Return the name by which others find the server that listens at `at`; OSError, a sentence, without one.

    On all networks where no machine is named, and where the machine's own name is one of loopback there, as
    Debian's are.
    """
    (host, port), here = at, socket.gethostname()
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, port, proto=socket.IPPROTO_TCP)}
        own_name = host.partition(".")[0] == here.partition(".")[0] != "localhost"
        own_name = own_name and all(ip_address(each).is_loopback for each in found)
        return (here if host == EVERYWHERE else host), serve(EVERYWHERE if own_name else host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OSError(f"port {port} of {here} is taken: give --attach another one") from error
        why = str(error.strerror).partition(" (")[0]
        raise OSError(
            f"rank 0 runs on {here} and cannot listen at {host} there ({why}): give --attach a name or"
            f" address of {here}, or {EVERYWHERE} for whichever machine it runs on"
        ) from error


def token_file(run_dir: Path) -> Path:
    """Return where the token of a run is kept; RuntimeError where this user has no home.

    Not in the run's folder: who made a run that came from elsewhere would know its token.
    """
    name = hashlib.sha256(os.fsencode(run_dir.resolve())).hexdigest()[:32]
    return state_folder() / "attach" / f"{name}.json"


def kept_token(run_dir: Path) -> str | None:
    """Return the token by which a run was steered before it was started again, None where there is none."""
    try:
        token = json.loads(read_input(token_file(run_dir)))["token"]
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        return None
    return token if isinstance(token, str) and len(token) >= 16 else None


def keep_token(run_dir: Path, token: str) -> None:
    """Keep the token of a run for its user alone; OSError or RuntimeError where that is not possible."""
    if kept_token(run_dir) == token:
        return
    file = token_file(run_dir)
    make_folder(file.parent)
    write_durably(file, json.dumps({"token": token}).encode(), 0o600)


def metrics_rows(run_dir: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics, of many every n-th and those that tell of more than the loss."""
    try:
        rows = Run.open(run_dir).metrics().rows
    except (OSError, ValueError):
        return []  # none yet
    stride = -(-len(rows) // MAX_ROWS) if rows else 1
    return [
        row for i, row in enumerate(rows) if i % stride == 0 or TELLING & row.keys() or i == len(rows) - 1
    ]

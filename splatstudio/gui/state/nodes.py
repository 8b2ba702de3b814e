"""A training on several machines that the studio brings together: what to start on each, then its page."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from splatstudio.gui.app import say_where, show_in_browser
from splatstudio.gui.attached import AttachedStudio, attached_studio
from splatstudio.gui.server.network import Network
from splatstudio.runtime.remote_run import REDIAL_SECONDS, Unreachable
from splatstudio.runtime.store_host import EVERYWHERE, StoreHost
from splatstudio.train.device_options import DeviceOptions

# What is for the studio, of the words of a command line; all else is for the training.
OWN = {"host", "port", "allow-host", "allow-origin", "nodes", "nodes-at", "gpus", "ranks", "run", "browser"}
OWN |= {"train", "no-train", "no-browser", "attach", "attach-via"}
MAX_RESTARTS = 100  # a machine that is replaced counts, too


@dataclass(frozen=True)
class Gathering:
    """A training that several machines come together for; `host` is this one's address, as they see it."""

    scene_path: Path
    run_dir: Path
    num_nodes: int
    host: str
    per_node: str = "gpu"  # ranks on each: a number, or "gpu" for one on each GPU
    words: tuple[str, ...] = ()  # further ones for `splatstudio train`

    def command(self, port: int) -> str:
        """Return what to start on each machine, where the store is at `port` of this one."""
        launch = ["torchrun", "--nnodes", str(self.num_nodes), "--nproc-per-node", self.per_node]
        launch += ["--max-restarts", str(MAX_RESTARTS), "--rdzv-backend", "c10d"]
        launch += ["--rdzv-endpoint", f"{self.host}:{port}", "--rdzv-id", self.run_dir.name]
        launch += ["--rdzv-conf", "is_host=0,keep_alive_interval=1,keep_alive_max_attempt=3"]
        train = ["splatstudio", "train", str(self.scene_path), "--run", str(self.run_dir), *self.words]
        train += ["--attach-via", f"{self.host}:{port}"]
        # Else the ranks of a restart read the addresses of those before (pytorch#135712).
        shared = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 "
        return shared + shlex.join([*launch, "--no-python", "--", *train])


def words_for_training(arguments: Sequence[str], path: Path) -> tuple[str, ...]:
    """Return those words of an `open` command that are settings of the training."""
    kept, words = False, []
    for word in arguments:
        if word.startswith("--"):
            kept = word[2:].partition("=")[0].replace("_", "-") not in OWN
        if kept and Path(word) != path:
            words.append(word)
    return tuple(words)


def nodes_asked_for(
    words: Sequence[str], path: Path, run_dir: Path | None, devices: DeviceOptions, network: Network
) -> AttachedStudio:
    """Open the page of what an `open` command with --nodes asks for; see `open_nodes`.

    Raises ValueError with one sentence for what is missing in it.
    """
    if run_dir is None:
        raise ValueError("--nodes needs --run: one folder that all machines see")
    devices.check_spread()
    if devices.gpus is not None:
        raise ValueError(
            "--gpus names those of this machine: with --nodes choose on each by CUDA_VISIBLE_DEVICES, or give"
            " --ranks"
        )
    host, port = devices.meeting_at
    kept = words_for_training(words, path)
    per_node = "gpu" if devices.ranks is None else str(devices.ranks)
    gathering = Gathering(path.resolve(), run_dir.resolve(), devices.nodes, host, per_node, kept)
    return open_nodes(gathering, port, network=network, browser="--no-browser" not in words)


def open_nodes(gathering: Gathering, port: int, *, network: Network, browser: bool) -> AttachedStudio:
    """Say what to start on the machines, wait for them, and open the page of their training.

    Raises ValueError with one sentence for a port that cannot be had. The store lives as long as the
    studio, and the agents of torchrun end without: their ranks save, and leave.
    """
    host = StoreHost(port, gathering.host)
    print(f"Start this on each of {gathering.num_nodes} machines, which all see {gathering.run_dir}:\n")
    print(f"  {gathering.command(host.port)}\n", flush=True)
    print(f"The machines meet {_where(host)}, without a password: in a network that you trust.", flush=True)
    while True:
        try:
            studio = attached_studio(host.dialled, network)
            break
        except Unreachable:
            time.sleep(REDIAL_SECONDS)
    say_where(studio, network)
    print("When this studio is closed the training saves and ends: its machines meet here.", flush=True)
    if browser:
        show_in_browser(studio)
    return studio


def _where(host: StoreHost) -> str:
    if host.address == EVERYWHERE:
        return f"at port {host.port} of all networks of this machine"
    return f"at {host.address}:{host.port} alone"

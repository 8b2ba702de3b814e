"""Whether all ranks train the same: by one release, of one scene, with one command, into one folder.

A launcher starts each rank by a command line of its own machine, which may differ from the others'.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from hashlib import sha256
from importlib import metadata
from pathlib import Path

import msgspec

from splatstudio.checkpoints.manifest import SEAL, read_manifest
from splatstudio.distributed.failures import FailedTogether
from splatstudio.distributed.ranks import Ranks
from splatstudio.files.run import lock_holder
from splatstudio.runtime.messages import TrainJob
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import to_json

log = logging.getLogger("splatstudio.runtime")

SEEN_SECONDS, SEEN_POLL_SECONDS = 30.0, 0.5  # for what rank 0 wrote to be seen over a network disk
MOST_NAMED = 5  # settings that differ
MAY_DIFFER = ("images",)  # machines may have the photos in different places


class Facts(msgspec.Struct, frozen=True):
    """What a rank tells the others before the first step. `settings` are values by dotted names, as text."""

    host: str
    process: int
    release: str
    settings: dict[str, str]
    scene: str  # its path
    num_photos: int
    num_points: int
    names: str  # a digest of the photos' names and sizes
    checkpoint: str  # a digest, "" without one


def agree(ranks: Ranks, job: TrainJob, scene: Scene) -> Facts:
    """Compare what all ranks are about to train, and return what rank 0 told; all ranks call it.

    Raises FailedTogether, on all of them, with one sentence where a rank has something else than rank 0.
    """
    own = _facts(job, scene)
    told = [
        msgspec.json.decode(each, type=Facts) for each in ranks.all_gather_bytes(msgspec.json.encode(own))
    ]
    first = told[0]
    for rank, other in enumerate(told):
        if (problem := _difference(first, other)) is not None:
            raise FailedTogether(f"rank {rank} on {other.host} {problem}")
    return first


def wait_for_run(run_dir: Path, leader: Facts) -> None:
    """Wait for the run that rank 0 has made to be seen here.

    Raises ValueError where it does not come, or where another folder is at its place: rank 0 holds its lock.
    """
    deadline = time.monotonic() + SEEN_SECONDS
    while True:
        # Listing a folder has a network disk look again; asking for a name may be answered from memory.
        there = run_dir.is_dir() and "run.json" in os.listdir(run_dir)
        try:
            holder = lock_holder(run_dir) if there else None
        except OSError as error:
            log.info("whose run %s is cannot be seen: %s", run_dir, error)
            return
        if holder is not None and (holder.pid, holder.host) == (leader.process, leader.host):
            return
        if time.monotonic() >= deadline:
            does = f"has another folder at {run_dir} than rank 0" if there else f"does not see {run_dir}"
            raise ValueError(
                f"the machine {socket.gethostname()} {does}: --run must be on a disk that all machines share"
            )
        time.sleep(SEEN_POLL_SECONDS)


def _facts(job: TrainJob, scene: Scene) -> Facts:
    settings = {
        **_dotted(to_json(job.config)),
        **{name: msgspec.json.encode(value).decode() for name, value in job.settings},
    }
    sizes = sorted((view.name, view.camera.width, view.camera.height) for view in scene.views)
    return Facts(
        host=socket.gethostname(),
        process=os.getpid(),
        release=metadata.version("splatstudio"),
        settings={name: value for name, value in settings.items() if name not in MAY_DIFFER},
        scene=str(job.scene_path),
        num_photos=len(scene.photos),
        num_points=len(scene.points),
        names=sha256(msgspec.json.encode(sizes)).hexdigest(),
        checkpoint="" if job.checkpoint is None else read_manifest(job.checkpoint).get(SEAL, ""),
    )


def _dotted(values: dict[str, object], before: str = "") -> dict[str, str]:
    """Return single values by their dotted names."""
    dotted: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            dotted |= _dotted(value, f"{before}{name}.")
        else:
            dotted[before + name] = msgspec.json.encode(value).decode()
    return dotted


def _difference(first: Facts, other: Facts) -> str | None:
    """Return how a rank differs from rank 0, as the end of a sentence; None: it does not."""
    if other.release != first.release:
        return (
            f"has splatstudio {other.release}, rank 0 has {first.release}: install the same on all machines"
        )
    names = sorted({*first.settings, *other.settings})
    differing = [name for name in names if first.settings.get(name) != other.settings.get(name)]
    if differing:
        told = ", ".join(
            f"{name} is {other.settings.get(name)}, not {first.settings.get(name)}"
            for name in differing[:MOST_NAMED]
        )
        more = f", and {len(differing) - MOST_NAMED} more" if len(differing) > MOST_NAMED else ""
        return f"was started otherwise than rank 0 ({told}{more}): give all ranks the same command"
    if (other.num_photos, other.num_points, other.names) != (first.num_photos, first.num_points, first.names):
        here = f"{other.num_photos} photos and {other.num_points} points"
        there = f"{first.num_photos} photos and {first.num_points} points"
        return (
            f"has another scene at {other.scene} ({here}) than rank 0 at {first.scene} ({there}): put the"
            " same on all machines"
        )
    if other.checkpoint != first.checkpoint:
        return (
            "would go on from another checkpoint than rank 0: --run must be on a disk that all machines share"
        )
    return None

"""A mesh that several ranks make together: processes of this machine, or those that a launcher started."""

from __future__ import annotations

import os
import shutil
import tempfile
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from splatstudio.distributed.process_ranks import ProcessRanks
from splatstudio.distributed.rank_devices import RankDevices, settle_device, usable_gpus
from splatstudio.error_text import first_line
from splatstudio.files.leftovers import clear_leftovers
from splatstudio.operating_system import hold
from splatstudio.runtime.channel.broadcast import meet
from splatstudio.runtime.fork_server import guarded_start, process_context
from splatstudio.runtime.launched import LaunchedRank, cores_for_rank
from splatstudio.runtime.root_cause import is_of_a_peer, read_report, write_report
from splatstudio.runtime.stop_signals import hear_sigterm, outlive_the_terminal
from splatstudio.surfaces.make_mesh import Progress, WrittenMesh, help_with_mesh, mesh_of_task
from splatstudio.surfaces.mesh_options import MeshTask

GONE = "another rank has gone; what that one or the launcher says tells why; nothing was written"
ERROR_SECONDS = 5.0  # for a rank that has gone to have left word of why


def mesh_launched(launched: LaunchedRank, task: MeshTask, on_progress: Progress) -> WrittenMesh | None:
    """Make a mesh as one rank of several that a launcher has started; None: rank 0 writes it.

    Raises what `mesh_of_task` does, and ValueError where another rank has gone.
    """
    usable = usable_gpus()
    gpu = usable[launched.local_rank % len(usable)] if usable else None
    settle_device(gpu, None if usable else cores_for_rank(launched, os.environ))
    try:
        meet(launched.rank, launched.num_ranks, None)
        if launched.rank == 0:
            return mesh_of_task(task, on_progress, ProcessRanks())
        help_with_mesh(task, ProcessRanks())
    except RuntimeError as error:
        if not is_of_a_peer(error):
            raise
        raise ValueError(f"rank {launched.rank}: {GONE}") from error
    return None


def mesh_by_processes(task: MeshTask, devices: RankDevices, on_progress: Progress) -> WrittenMesh:
    """Make a mesh with one process on each of `devices`, of which this is the first.

    Nothing is left of the others when it returns or raises. Raises what `mesh_of_task` does, ValueError with
    the reason where another process has gone, and OSError where none can be started.
    """
    clear_leftovers()
    folder = Path(tempfile.mkdtemp(prefix="splatstudio-ranks-"))
    held = hold(folder)
    helpers: list[BaseProcess] = []
    try:
        helpers = _started(task, devices, folder)
        settle_device(devices.gpus[0], devices.num_threads)
        meet(0, devices.num_ranks, folder)
        return mesh_of_task(task, on_progress, ProcessRanks())
    except RuntimeError as error:
        if not is_of_a_peer(error):
            raise
        raise ValueError(_last_word(folder, helpers)) from error
    finally:
        for helper in helpers:
            helper.kill()
            helper.join()
        os.close(held)
        shutil.rmtree(folder, ignore_errors=True)


def _started(task: MeshTask, devices: RankDevices, folder: Path) -> list[BaseProcess]:
    """Return the processes of all ranks but this one, which are ready to meet."""
    context = process_context()
    helpers: list[BaseProcess] = []
    try:
        for rank in range(1, devices.num_ranks):
            ours, theirs = context.Pipe(duplex=False)
            helper: BaseProcess = context.Process(  # type: ignore[attr-defined]
                target=_help, args=(theirs, task, devices, rank, folder), daemon=True
            )
            with guarded_start():
                helper.start()
            helpers.append(helper)
            theirs.close()
            with ours:
                wait([ours, helper.sentinel])
                if not ours.poll():
                    raise ValueError(_last_word(folder, helpers))
    except BaseException:
        for helper in helpers:
            helper.kill()
        raise
    return helpers


def _help(ready: Connection, task: MeshTask, devices: RankDevices, rank: int, folder: Path) -> None:
    """Be one of the other ranks; the process's entry point."""
    outlive_the_terminal(launched=False)
    hear_sigterm()
    try:
        settle_device(devices.gpus[rank], devices.num_threads)
        ready.send(True)
        meet(rank, devices.num_ranks, folder)
        help_with_mesh(task, ProcessRanks())
    except Exception as error:
        write_report(folder, rank, 0, error, first_line(error))
        raise SystemExit(1) from None


def _last_word(folder: Path, helpers: list[BaseProcess]) -> str:
    """Return a sentence on why one of the other processes has gone."""
    gone = wait([helper.sentinel for helper in helpers], ERROR_SECONDS)
    for rank, helper in enumerate(helpers, 1):
        if helper.sentinel in gone:
            helper.join(ERROR_SECONDS)  # a process that ends closes its files before it can be asked how
        report = read_report(folder, rank)
        if report is not None and not report.of_a_peer:
            return report.sentence if report.final else f"rank {rank}: {report.sentence}; nothing was written"
        if helper.exitcode is not None and helper.exitcode < 0:
            return f"rank {rank} was killed (signal {-helper.exitcode}); nothing was written"
    return GONE

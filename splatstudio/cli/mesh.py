"""`splatstudio mesh`: the surface of a model as triangles, with a report on how good it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import OmitArgPrefixes, Positional

from splatstudio.cli.json_output import CommandResult
from splatstudio.cli.options import MeshPlace, MeshRanks
from splatstudio.cli.overview import say_starting
from splatstudio.files.durable import refuse_existing, refuse_unwritable
from splatstudio.gaussians.trimming import KEEP_ALL, Trim
from splatstudio.surfaces.mesh_options import PLAIN_MESH, THE_FILES, MeshOptions, MeshTask

if TYPE_CHECKING:
    from splatstudio.surfaces.make_mesh import Progress, WrittenMesh


def mesh(
    path: Positional[Path],
    /,
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
    shape: OmitArgPrefixes[MeshOptions] = PLAIN_MESH,
    trim: OmitArgPrefixes[Trim] = KEEP_ALL,
    place: OmitArgPrefixes[MeshPlace] = MeshPlace(),
    processes: OmitArgPrefixes[MeshRanks] = MeshRanks(),
    overwrite: bool = False,
    json: bool = False,
) -> int | CommandResult:
    """Make a triangle mesh of a model, and report how good it is.

    The report is also written beside it, as model.glb.report.json. Ctrl-C leaves no file.

    Args:
        path: A run folder (its newest good checkpoint is taken), a checkpoint folder or a file of splats.
        output: The file to write; its ending says the format: .glb (glTF), .obj, .ply or .stl.
        shape: How fine the mesh is, and what is done to it.
        trim: What to leave out; a crop box is in the coordinates of the scene's files.
        place: Where it lies, and which photos look at it.
        processes: How many make it.
        overwrite: Replace files that are there already.
        json: Print the report as one JSON object, and all else to standard error.
    """
    shape.check()
    trim.check()
    task = MeshTask(
        path, output, shape, place.scene, place.images, place.upright, trim=trim, box_frame=THE_FILES
    )
    for written in task.files:
        refuse_existing(written, overwrite)
        refuse_unwritable(written)
    say_starting()
    from splatstudio.cli.terminal import console, print_part, stage_progress

    print_part(path)
    with stage_progress() as report:
        written = _written(task, processes, report)
    if written is None:
        return 0
    if json:
        return CommandResult(0, {"output": str(written.output), **written.report.values})
    width = max(len(name) for name, _ in written.report.rows)
    for name, value in written.report.rows:
        console.print(f"{name:<{width}}  {value}")
    for note in written.report.notes:
        console.print(note, style="yellow")
    console.print(f"Written to {written.output}, with its report in {written.report_file.name}")
    return 0


def _written(task: MeshTask, processes: MeshRanks, report: Progress) -> WrittenMesh | None:
    """Make the mesh with all processes; None: another one of them writes it."""
    from splatstudio.runtime.launched import launched_rank
    from splatstudio.runtime.mesh_ranks import mesh_by_processes, mesh_launched
    from splatstudio.surfaces.make_mesh import mesh_of_task
    from splatstudio.training.device_options import DeviceOptions

    launched = launched_rank(os.environ)
    if launched is not None and launched.num_ranks > 1:
        if processes != MeshRanks():
            raise ValueError("torchrun or Slurm says how many ranks there are: omit --gpus and --ranks")
        return mesh_launched(launched, task, report)
    if processes == MeshRanks():
        return mesh_of_task(task, report)
    return mesh_by_processes(task, DeviceOptions(processes.gpus, processes.ranks).chosen(), report)

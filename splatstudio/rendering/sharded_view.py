"""Pictures of a model whose Gaussians lie on several ranks.

Every rank projects its own Gaussians for the cameras of all ranks, sends each rank what that one's cameras
see, and composites the pictures of its own cameras. A picture is that of the whole model to the last bit,
as it does not follow from the order of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.devices.transfer import ReadBack
from splatstudio.distributed.exchange import Arrived, ExchangeRoute, Fp16Packing, Return, Splits, exchange
from splatstudio.distributed.failures import OutOfMemory, together, unless_out_of_memory
from splatstudio.distributed.ranks import Ranks
from splatstudio.gaussians.gaussians import Gaussians, rgb_to_sh0
from splatstudio.kernels import ops
from splatstudio.kernels.ops import CAMERA_MODELS
from splatstudio.kernels.stages import Projected, ProjectSettings, Raster, RasterSettings
from splatstudio.rendering.dropout import Dropout
from splatstudio.rendering.render import RenderOptions, project, stages_for

COLUMNS = (2, 3, 1, 1, 3)  # of means2d, conics, depths, opacities, colors in a row of the exchange
PROBE_COLUMNS = 2  # of their gradients, where a strategy looks at absolute values
CAMERA_NUMBERS = 16 + 9 + 3  # viewmat, K; width, height, model


@dataclass(frozen=True, eq=False)
class Shared:
    """What this rank's Gaussians look like to the cameras of all ranks, packed for the exchange."""

    record: Tensor  # [M, 12] by camera: COLUMNS, and the bits of both radii
    visible: tuple[Tensor, ...]  # for each camera the indices of its rows among this rank's Gaussians, rising
    run_sizes: tuple[tuple[int, ...], ...]  # for each camera how many of its rows are of each run
    all_radii: tuple[Tensor, ...]  # for each camera [N, 2]
    parts: tuple[Tensor, ...]  # on the reference: what each camera sees, [M_c, 10], differentiable; else ()

    def colors(self) -> list[Tensor]:
        """Return for each camera the colors of its rows, [M_c, 3]."""
        colors = self.record[:, sum(COLUMNS[:-1]) : sum(COLUMNS)]
        return list(colors.split([len(rows) for rows in self.visible]))


@dataclass(frozen=True, eq=False)
class Received:
    """What all ranks' Gaussians look like to the cameras of this one, by rank, then by camera."""

    arrived: Arrived
    counts: (
        Tensor  # [num_ranks, cameras, runs] int64: how many of the rows each rank has sent for each camera
    )
    route: ExchangeRoute  # back to those that have sent them

    def places_back(self) -> Tensor | None:
        """Return where the gradients of each row lie among those that are sent back, [K]; None: in its row.

        They go by run, then by rank and camera.
        """
        num_runs = self.counts.shape[2]
        if num_runs == 1 or self.counts.numel() == 0:
            return None
        ends = self.counts.permute(2, 0, 1).reshape(-1).cumsum(0).view(num_runs, -1).t().reshape(-1)
        spans, device = zip(self.counts.reshape(-1), ends, strict=True), self.arrived.radii.device
        return torch.cat([torch.arange(int(end - num), int(end), device=device) for num, end in spans])

    @property
    def given(self) -> Tensor:
        """Return memory for the gradients of the rows, [K, D], see `places_back`; each is some camera's."""
        return self.arrived.back.given

    def start_return(self) -> Return:
        """Begin to send what is `given` to those whose rows these are; all ranks do this together."""
        return Return(self.arrived.back, self.route)


def project_settings(gaussians: Gaussians, options: RenderOptions) -> ProjectSettings:
    """Return how Gaussians are projected under `options`."""
    sh_degree = gaussians.sh_degree
    if options.sh_degree is not None:
        sh_degree = min(options.sh_degree, sh_degree)
    return ProjectSettings(sh_degree, options.antialiased, options.near, options.far)


def cameras_of_all(ranks: Ranks, cameras: Sequence[Camera]) -> list[list[Camera]]:
    """Return every rank's cameras, of whatever sizes and numbers, rank 0's first."""
    if ranks.num_ranks == 1:
        return [list(cameras)]
    return [cameras_of(part) for part in ranks.all_gather(camera_records(cameras))]


def camera_records(cameras: Sequence[Camera]) -> Tensor:
    """Return what is told of cameras, [C, CAMERA_NUMBERS] float64, for `cameras_of`."""
    records = torch.zeros(len(cameras), CAMERA_NUMBERS, dtype=torch.float64, device="cpu")
    for record, camera in zip(records, cameras, strict=True):
        size = [camera.width, camera.height, CAMERA_MODELS.index(camera.model)]
        numbers = np.concatenate([camera.viewmat.reshape(-1), camera.K.reshape(-1), size])
        record[:] = torch.from_numpy(numbers)
    return records


def cameras_of(records: Tensor) -> list[Camera]:
    """Return the cameras of which `camera_records` has told."""
    return [_camera(record) for record in records.numpy()]


def by_round(records: Sequence[Tensor], sizes: Sequence[int]) -> list[list[list[Camera]]]:
    """Return the cameras of which each rank has told, a round after the other, by round and rank.

    `sizes` is how many a rank has in each round, all of them alike.
    """
    parts = [[cameras_of(part) for part in told.split(list(sizes))] for told in records]
    return [list(one) for one in zip(*parts, strict=True)]


def _camera(record: np.ndarray) -> Camera:
    width, height, model = (int(number) for number in record[25:])
    viewmat, K = record[:16].reshape(4, 4).copy(), record[16:25].reshape(3, 3).copy()
    return Camera(viewmat, K, width, height, CAMERA_MODELS[model])


def run_ends(num: int, num_runs: int) -> list[int]:
    """Return where runs of `num` Gaussians end, of about the same length: kernels ask for whole eights."""
    return [num * (run + 1) // num_runs // 8 * 8 for run in range(num_runs - 1)] + [num]


def project_for_all(
    gaussians: Gaussians,
    cameras: Sequence[Camera],
    settings: ProjectSettings,
    dropout: Dropout | None = None,
    num_runs: int = 1,
) -> Shared:
    """Project this rank's Gaussians for `cameras` and pack what each sees.

    On the reference `Shared.parts` are differentiable in the six tensors. `dropout`: who is left out.
    `num_runs`: in how many runs of rows gradients come back, see `run_ends`.
    """
    native = stages_for(gaussians.means) is ops
    if native:
        gaussians = gaussians.detach()  # the way back is `add_gradients`
    seen: list[Projected] = []
    for camera in cameras:
        shown = gaussians if dropout is None else dropout.drawn(gaussians)  # each with a graph of its own
        seen.append(project(shown, camera, settings))
    radii = tuple(each.radii for each in seen)
    visible, run_sizes = _visible_rows(radii, run_ends(len(gaussians), num_runs))
    total = sum(map(len, visible))
    record = gaussians.means.new_empty((total, sum(COLUMNS) + 2), requires_grad=False)
    parts: list[Tensor] = []
    for into, rows in zip(record.split([len(rows) for rows in visible]), visible, strict=True):
        each = seen.pop(0)  # one after the other makes room
        if native:
            _pack_into(into, each, rows)
        else:
            parts.append(_packed(each, rows))
            into[:, : sum(COLUMNS)] = parts[-1].detach()
        torch.index_select(each.radii, 0, rows, out=into[:, sum(COLUMNS) :].view(torch.int32))
    return Shared(record, visible, run_sizes, radii, tuple(parts))


def _visible_rows(
    radii: Sequence[Tensor], ends: Sequence[int]
) -> tuple[tuple[Tensor, ...], tuple[tuple[int, ...], ...]]:
    """Return for each camera the indices of what is seen, and how many are of each run.

    The host waits for a GPU but once.
    """
    masks = [(each > 0).all(dim=1) for each in radii]
    if not masks:
        return (), ()
    spans = list(zip([0, *ends[:-1]], ends, strict=True))
    nums = iter(ReadBack(*[mask[start:end].sum() for mask in masks for start, end in spans]).read())
    sizes = tuple(tuple(int(next(nums)) for _ in spans) for _ in masks)
    rows = [
        torch.nonzero_static(mask, size=sum(of)).squeeze(1) for mask, of in zip(masks, sizes, strict=True)
    ]
    return tuple(rows), sizes


def _columns_of(seen: Projected) -> tuple[Tensor, ...]:
    """Return the columns of a row of the exchange, [N, c] each; see COLUMNS."""
    return seen.means2d, seen.conics, seen.depths[:, None], seen.opacities[:, None], seen.colors


def _pack_into(record: Tensor, seen: Projected, rows: Tensor) -> None:
    """Put `rows` of what a camera sees into the columns of `record`, one after the other."""
    place = 0
    for column in _columns_of(seen):
        num = column.shape[1]
        torch.index_select(column, 0, rows, out=record[:, place : place + num])
        place += num


def _packed(seen: Projected, rows: Tensor) -> Tensor:
    """Return `rows` of what a camera sees as rows of the exchange, [M, 10], differentiable."""
    return torch.cat([column.index_select(0, rows) for column in _columns_of(seen)], dim=1)


def share(
    ranks: Ranks,
    shared: Shared | None,
    num_cameras: Sequence[int],
    packing: Fp16Packing | None = None,
    *,
    num_back: int = 0,
    num_runs: int = 1,
) -> Received:
    """Give every rank what its cameras see of this rank's Gaussians, and return what this rank's see of all.

    `num_cameras` is how many of the cameras each rank has, in the order of `Shared.visible`. `shared`, with
    `num_runs`, is None where a rank had no memory for it. `packing`: what travels in 16 bits; None: nothing.
    `num_back`: how many numbers of each row will be sent back. All ranks raise OutOfMemory, before anything
    is sent, where any has no memory for that or for what comes, there and back.
    """
    most = max(num_cameras)
    told = torch.zeros(ranks.num_ranks, most * num_runs + 1, dtype=torch.int64, device="cpu")
    counts = told[:, :-1].view(ranks.num_ranks, most, num_runs)
    if shared is None:
        told[:, -1] = 1
    else:
        sizes = iter(shared.run_sizes)
        for rank, num in enumerate(num_cameras):
            for camera in range(num):
                counts[rank, camera] = torch.tensor(next(sizes), device="cpu")
    got = ranks.all_to_all_counts(told)
    failed = got[:, -1].nonzero().squeeze(1).tolist()
    if failed or shared is None:
        raise OutOfMemory(failed)
    own = got[:, :-1].view(ranks.num_ranks, most, num_runs)[:, : num_cameras[ranks.rank]]
    sent, received = counts.sum(dim=1), own.sum(dim=1)  # [num_ranks, num_runs]
    there = Splits(sent.sum(dim=1).tolist(), received.sum(dim=1).tolist())
    back = [Splits(sent[:, run].tolist(), received[:, run].tolist()) for run in range(num_runs)]
    route = ExchangeRoute(ranks, there, back, packing)
    return Received(exchange(shared.record, COLUMNS, route, num_back), own, route)


def rows_of_camera(received: Received, camera: int) -> Tensor | slice:
    """Return which rows of `received` belong to one of this rank's cameras, by rank."""
    counts, radii = received.counts.sum(dim=2), received.arrived.radii
    if counts.shape[1] == 1:
        return slice(0, len(radii))
    ends = counts.reshape(-1).cumsum(0).view_as(counts)
    own = zip(counts[:, camera].tolist(), ends[:, camera].tolist(), strict=True)
    return torch.cat([torch.arange(end - count, end, device=radii.device) for count, end in own])


def projected_from(received: Received, rows: Tensor | slice) -> Projected:
    """Return `rows` of what was received as what `rasterize` takes, without gradients."""
    columns = [column[rows].detach() for column in received.arrived.columns]
    means2d, conics, depths, opacities, colors = columns
    radii = received.arrived.radii[rows]
    return Projected(means2d, conics, depths.squeeze(1), opacities.squeeze(1), colors, radii)


def received_for(
    ranks: Ranks, gaussians: Gaussians, cameras: Sequence[Camera], options: RenderOptions
) -> Received:
    """Return what this rank's `cameras` see of all ranks' Gaussians.

    `options` must be the same on all ranks. Raises OutOfMemory on all of them alike where any has no memory.
    """
    by_rank = cameras_of_all(ranks, cameras)
    settings = project_settings(gaussians, options)
    of_all, model = [camera for part in by_rank for camera in part], gaussians.detach()
    shared = unless_out_of_memory(lambda: project_for_all(model, of_all, settings))
    return share(ranks, shared, [len(part) for part in by_rank])


def drawn(
    gaussians: Gaussians, received: Received, cameras: Sequence[Camera], options: RenderOptions
) -> list[Raster]:
    """Draw what was received for this rank's `cameras`; no other rank is asked."""
    background = gaussians.means.new_tensor(options.background if options.sky is None else (0.0, 0.0, 0.0))
    pictures = []
    for number, camera in enumerate(cameras):
        projected = projected_from(received, rows_of_camera(received, number))
        raster_settings = RasterSettings(camera.width, camera.height, background)
        raster = stages_for(gaussians.means).rasterize(projected, raster_settings)
        if options.sky is not None:
            raster = replace(raster, rgb=options.sky.over(raster.rgb, raster.alpha, camera))
        pictures.append(raster)
    return pictures


@torch.no_grad()
def as_seen_from(gaussians: Gaussians, camera: Camera, options: RenderOptions = RenderOptions()) -> Gaussians:
    """Return the Gaussians that `camera` sees, with the colors that it sees, as a model of degree 0.

    Drawn from `camera` with the same options it gives the same picture, from elsewhere another. Of a model
    with harmonics of degree 3 it has a quarter of the bytes of what is seen.
    """
    seen = project(gaussians.detach(), camera, project_settings(gaussians, options))
    rows = (seen.radii > 0).all(dim=1).nonzero().squeeze(1)
    sh0 = rgb_to_sh0(seen.colors[rows])[:, None, :]
    return Gaussians(
        means=gaussians.means[rows],
        quats=gaussians.quats[rows],
        scales=gaussians.scales[rows],
        opacities=gaussians.opacities[rows],
        sh0=sh0,
        shN=sh0.new_zeros((len(rows), 0, 3)),
    )


@torch.no_grad()
def gathered(ranks: Ranks, gaussians: Gaussians) -> Gaussians | None:
    """Return all ranks' Gaussians as one model on rank 0, on the CPU; None on the others.

    Raises OutOfMemory on all ranks where any has no memory for it.
    """
    counts = [int(part) for part in ranks.all_gather(torch.tensor([len(gaussians)], device="cpu"))]
    first = ranks.rank == 0
    num, nothing = sum(counts) if first else 0, [0] * (ranks.num_ranks - 1)

    def copies() -> list[tuple[Tensor, Tensor]]:
        own = [tensor.detach().cpu() for tensor in gaussians.tensors().values()]
        return [(tensor, tensor.new_empty((num, *tensor.shape[1:]))) for tensor in own]

    # Before the first message: a rank that fails in the midst of them leaves the others waiting.
    made = together(ranks, copies)
    received = counts if first else [0, *nothing]
    for own, whole in made:
        ranks.all_to_all(own, [len(own), *nothing], received, into=whole)
    model = {name: whole for name, (_, whole) in zip(gaussians.tensors(), made, strict=True)}
    return Gaussians(**model) if first else None

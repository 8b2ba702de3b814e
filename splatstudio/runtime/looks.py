"""What a camera sees of a model that is spread over several processes: enough to draw it, and no more.

Each process sends the Gaussians that the camera sees of its part, with the colour that they have from there.
What comes together is a model of degree 0, which is drawn as any other, in every mode.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.distributed import Ranks
from splatstudio.distributed.failures import OutOfMemory, together, unless_out_of_memory
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.gaussians.trimming import Trim
from splatstudio.rendering.mode_pictures import scaled
from splatstudio.rendering.render import RenderOptions
from splatstudio.rendering.sharded_view import as_seen_from
from splatstudio.runtime.messages import ViewOptions
from splatstudio.runtime.painter import asked_for

COLUMNS = 14  # means 3, quats 4, scales 3, opacity 1, sh0 3


@dataclass(frozen=True, eq=False)
class ViewRequest:
    """A camera that a model is drawn from, and how it is drawn."""

    camera: Camera
    options: ViewOptions


@dataclass(frozen=True, eq=False)
class Seen:
    """What was gathered for a look."""

    rows: Tensor  # [M, COLUMNS] on the model's device
    short: tuple[int, ...]  # the ranks that had no memory for their part


@torch.no_grad()
def seen_rows(gaussians: Gaussians, look: ViewRequest, options: RenderOptions) -> Tensor:
    """Return the Gaussians that are seen, [M, COLUMNS] float32, with their colours from there.

    `options` are the model's own.
    """
    factor = look.options.splat_scale if look.options.splat_scale > 0 else 1.0
    # Larger splats are seen from farther away; the painter makes them larger itself.
    seen = as_seen_from(scaled(gaussians, factor), look.camera, asked_for(options, look.options))
    seen = scaled(seen, 1.0 / factor)
    columns = (seen.means, seen.quats, seen.scales, seen.opacities[:, None], seen.sh0[:, 0])
    return torch.cat(columns, dim=1)


def gather_seen(ranks: Ranks, gaussians: Gaussians, look: ViewRequest, options: RenderOptions) -> Seen:
    """Return what all ranks' Gaussians look like, on rank 0; the others send, and get nothing.

    A rank that has no memory for its part sends none. Called by all ranks.
    """
    # Between GPUs they go the short way: by the CPU's memory and network a picture would take far longer.
    own, nothing = unless_out_of_memory(lambda: seen_rows(gaussians, look, options)), (0, COLUMNS)
    short, rows = own is None, gaussians.means.new_zeros(nothing) if own is None else own
    table = torch.cat(ranks.all_gather(torch.tensor([[len(rows), int(short)]], device="cpu")))
    received = table[:, 0].tolist() if ranks.rank == 0 else [0] * ranks.num_ranks
    try:
        got = together(ranks, lambda: rows.new_empty((sum(received), COLUMNS)))
    except OutOfMemory as error:
        return Seen(gaussians.means.new_zeros(nothing), error.ranks)
    got = ranks.all_to_all(rows, [len(rows), *[0] * (ranks.num_ranks - 1)], received, into=got)
    return Seen(got, tuple(table[:, 1].nonzero().squeeze(1).tolist()))


def shown_model(seen: Seen, device: torch.device) -> tuple[Gaussians, str | None]:
    """Return the model to draw of what was gathered, and a sentence on what is missing in it, if anything."""
    model = unless_out_of_memory(lambda: gaussians_of_rows(seen.rows).to(device))
    short = seen.short if model is not None else (*seen.short, 0)
    if model is None:
        model = gaussians_of_rows(seen.rows[:0]).to(device)
    if not short:
        return model, None
    names = ", ".join(str(rank) for rank in sorted(set(short)))
    return model, f"There was no memory for this picture on rank {names}, whose part of it is missing."


def gaussians_of_rows(rows: Tensor) -> Gaussians:
    """Return the model, of degree 0, that the rows of all processes make up."""
    means, quats, scales, opacities, sh0 = rows.split((3, 4, 3, 1, 3), dim=1)
    return Gaussians(
        means=means.contiguous(),
        quats=quats.contiguous(),
        scales=scales.contiguous(),
        opacities=opacities[:, 0].contiguous(),
        sh0=sh0[:, None].contiguous(),
        shN=sh0.new_zeros(len(sh0), 0, 3),
    )


def encoded_looks(looks: Sequence[ViewRequest]) -> bytes:
    """Return looks as JSON."""
    return json.dumps(
        [
            {
                "viewmat": look.camera.viewmat.tolist(),
                "K": look.camera.K.tolist(),
                "size": [look.camera.width, look.camera.height],
                "model": look.camera.model,
                "options": asdict(look.options),
            }
            for look in looks
        ]
    ).encode()


def decoded_looks(body: bytes) -> list[ViewRequest]:
    """Return the looks that `encoded_looks` wrote."""
    return [
        ViewRequest(
            Camera(np.array(one["viewmat"]), np.array(one["K"]), *one["size"], model=one["model"]),
            _decoded(one["options"]),
        )
        for one in json.loads(body)
    ]


def _decoded(options: dict[str, Any]) -> ViewOptions:
    crop = options["trim"]["crop"]
    trim = Trim(options["trim"]["min_opacity"], None if crop is None else tuple(crop))
    return ViewOptions(**{**options, "background": tuple(options["background"]), "trim": trim})

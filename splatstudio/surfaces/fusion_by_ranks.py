"""Fusion by blocks: each rank has its own blocks of the field, and all of the depth images go to each.

The blocks are in the order of their keys, x first: those of a rank lie together, and for its surface it needs
few of others, those that follow at its border. The mesh is that of one rank, bit for bit.
"""

from __future__ import annotations

import socket
from collections import Counter

import torch
from torch import Tensor

from splatstudio.distributed.ranks import Ranks
from splatstudio.files.free_memory import free_memory
from splatstudio.surfaces.extract import CORNERS, SurfacePart, extract_surface, joined_surface, surface_part
from splatstudio.surfaces.mesh import Mesh
from splatstudio.surfaces.tsdf import NUM_VOXELS, Tsdf, keys_of, places_of


def memory_of_rank(ranks: Ranks) -> int:
    """Return how many bytes each rank may take: the least that any has, those of a machine sharing it."""
    hosts = ranks.all_gather_bytes(socket.gethostname().encode())
    own = free_memory() // Counter(hosts)[socket.gethostname().encode()]
    return min(int(part) for part in ranks.all_gather(torch.tensor([own])))


def all_keys(own: Tensor, ranks: Ranks) -> Tensor:
    """Return the keys, sorted, that any rank found; `own` are this one's, sorted."""
    found = ranks.all_gather(own)
    return torch.unique(torch.cat(found)) if len(found) > 1 else own


def surface_by_ranks(own: Tsdf, keys: Tensor, min_views: float, ranks: Ranks) -> Mesh:
    """Return the surface, see `extract_surface`, of a field of which every rank has its share.

    `keys` [B] are those of all blocks, sorted, and `own` has this rank's share of them. All ranks call it and
    get the same mesh.
    """
    if ranks.num_ranks == 1:
        return extract_surface(own, min_views)
    field = _with_blocks_after(own, keys, ranks)
    rows = torch.searchsorted(field.keys, own.keys)
    part = surface_part(field, rows, min_views)
    # The same number for an edge on all ranks: by the block's place among those of all.
    row = torch.searchsorted(keys, field.keys)[part.edges // (3 * NUM_VOXELS)]
    edges = row * (3 * NUM_VOXELS) + part.edges % (3 * NUM_VOXELS)
    gathered = (ranks.all_gather(rows) for rows in (edges, part.vertices, part.triangles))
    return joined_surface([SurfacePart(*each) for each in zip(*gathered, strict=True)])


def _with_blocks_after(own: Tsdf, keys: Tensor, ranks: Ranks) -> Tsdf:
    """Return a field that holds also the blocks of other ranks next to this one's, where there are such."""
    steps = torch.tensor(CORNERS[1:])
    near = torch.unique(keys_of(places_of(own.keys)[:, None] + steps).flatten())
    wanted = near[torch.isin(near, keys) & ~torch.isin(near, own.keys)]
    ends = [len(keys) * (rank + 1) // ranks.num_ranks for rank in range(ranks.num_ranks)]
    before = torch.searchsorted(torch.searchsorted(keys, wanted), torch.tensor([0, *ends]))
    asked = before.diff()  # of each rank, whose blocks lie together
    answers = ranks.all_to_all_counts(asked[:, None].contiguous())[:, 0]
    requests = ranks.all_to_all(wanted, asked.tolist(), answers.tolist())
    told = torch.stack([own.distance, own.weight], dim=1)[torch.searchsorted(own.keys, requests)]
    got = ranks.all_to_all(told, answers.tolist(), asked.tolist())
    order = torch.argsort(torch.cat([own.keys, wanted]))
    return Tsdf(
        own.grid,
        torch.cat([own.keys, wanted])[order],
        torch.cat([own.distance, got[:, 0]])[order],
        torch.cat([own.weight, got[:, 1]])[order],
    )

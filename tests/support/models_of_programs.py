"""Models as other programs write them and we do not: .ksplat, SOG version 1, splatfacto's checkpoints."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from format_models import model
from PIL import Image

from splatstudio.formats import read_splats, write_gaussians
from splatstudio.gaussians.gaussians import SH_C0, Gaussians

BUCKET_SIZE, BLOCK_SIZE, LIMIT = 7, 5.0, 0.8


def harmonics(part: Gaussians) -> np.ndarray:
    """Return the coefficients [N, 3 * K] by degree, then by color."""
    degrees = [part.shN[:, d * d - 1 : d * d + 2 * d] for d in range(1, part.sh_degree + 1)]
    rows = [degree.transpose(1, 2).reshape(len(part), -1).numpy() for degree in degrees]
    return np.concatenate([np.zeros((len(part), 0), np.float32), *rows], axis=1)


def section(part: Gaussians, level: int) -> tuple[bytes, bytes]:
    """Return the header and the data of a section."""
    number = "<f4" if level == 0 else "<f2"
    means, buckets, sizes = part.means.numpy(), b"", np.zeros(0, int)
    if level:
        sizes = np.diff([*range(0, len(part), BUCKET_SIZE), len(part)])
        starts = np.cumsum(sizes) - sizes
        centers = np.stack(
            [means[at : at + size].mean(axis=0) for at, size in zip(starts, sizes, strict=True)]
        )
        partly = sizes[sizes < BUCKET_SIZE]
        buckets = partly.astype("<u4").tobytes() + centers.astype("<f4").tobytes()
        steps = (means - np.repeat(centers, sizes, axis=0)) / (0.5 * BLOCK_SIZE) * 32767 + 32767
        means = np.rint(steps).astype("<u2")
    colors = np.concatenate([0.5 + SH_C0 * part.sh0[:, 0], part.opacities.sigmoid()[:, None]], axis=1)
    sh = harmonics(part)
    sh = (
        np.rint((sh.clip(-LIMIT, LIMIT) + LIMIT) / (2 * LIMIT) * 255).astype("u1")
        if level == 2
        else sh.astype(number)
    )
    columns = [
        means.astype("<f4") if level == 0 else means,
        part.scales.exp().numpy().astype(number),
        torch.nn.functional.normalize(part.quats, dim=1).numpy().astype(number),
        np.rint(255 * colors.clip(0, 1)).astype("u1"),
        sh,
    ]
    rows = b"".join(b"".join(column[i].tobytes() for column in columns) for i in range(len(part)))
    full = int((sizes == BUCKET_SIZE).sum())
    head = struct.pack(
        "<4IfH2x", len(part), len(part), BUCKET_SIZE, len(sizes), BLOCK_SIZE, 12 if level else 0
    )
    head += struct.pack("<4IH", 32767 if level else 0, 0, full, len(sizes) - full, part.sh_degree)
    return head.ljust(1024, b"\0"), buckets + rows


def write_ksplat(path: Path, parts: list[Gaussians], level: int) -> Path:
    """Write each part as a section, compressed at `level` (0 to 2)."""
    sections = [section(part, level) for part in parts]
    count = sum(map(len, parts))
    head = struct.pack(
        "<4B4IH2x3f2f", 0, 1, 0, 0, len(parts), len(parts), count, count, level, 0, 0, 0, -LIMIT, LIMIT
    )
    content = [head.ljust(4096, b"\0"), *(header for header, _ in sections), *(data for _, data in sections)]
    path.write_bytes(b"".join(content))
    return path


def steps(values: np.ndarray) -> tuple[np.ndarray, dict[str, list[float]]]:
    """Return values [N, C] as bytes from the least to the largest of each channel, and both."""
    low, high = values.min(axis=0), values.max(axis=0)
    return np.rint((values - low) / (high - low) * 255).astype(np.uint8), {
        "mins": low.tolist(),
        "maxs": high.tolist(),
    }


def write_sog_1(path: Path, gaussians: Gaussians) -> None:
    """Write the Gaussians as PlayCanvas' first program did: even steps instead of codebooks."""
    entries: dict[str, bytes] = {}
    num, count = len(gaussians), gaussians.shN.shape[1]

    def add(name: str, pixels: np.ndarray, width: int) -> str:
        rows = np.zeros((-(-len(pixels) // width) * width, pixels.shape[1]), np.uint8)
        rows[: len(pixels)] = pixels
        buffer = io.BytesIO()
        image = Image.fromarray(rows.reshape(-1, width, pixels.shape[1]))
        image.save(buffer, "WEBP", lossless=True, exact=True)
        entries[f"{name}.webp"] = buffer.getvalue()
        return f"{name}.webp"

    write_gaussians(path, gaussians)
    with zipfile.ZipFile(path) as archive:
        ours = {name: archive.read(name) for name in archive.namelist()}
    meta = json.loads(ours["meta.json"])
    order = read_splats(path).gaussians  # sorted in space, which version 2 has done
    index = (torch.cdist(order.means.double(), gaussians.means.double())).argmin(dim=1)
    sorted_ = gaussians[index]
    entries |= {name: ours[name] for name in ("means_l.webp", "means_u.webp", "quats.webp")}
    told: dict[str, Any] = {"means": {**meta["means"], "shape": [num, 3], "dtype": "float32"}}
    told["quats"] = {**meta["quats"], "shape": [num, 4], "encoding": "quaternion_packed"}
    scales, limits = steps(sorted_.scales.numpy())
    told["scales"] = {**limits, "shape": [num, 3], "files": [add("scales", scales, 20)]}
    colors = torch.cat([sorted_.sh0[:, 0], sorted_.opacities[:, None]], dim=1)
    pixels, limits = steps(colors.numpy())
    told["sh0"] = {**limits, "shape": [num, 1, 4], "files": [add("sh0", pixels, 20)]}
    if count:
        flat, limits = steps(sorted_.shN.reshape(-1, 1).numpy())
        labels = np.column_stack([np.arange(num) & 255, np.arange(num) >> 8, np.zeros(num)]).astype(np.uint8)
        centroids = np.zeros((-(-num // 64) * 64, count, 3), np.uint8)
        centroids[:num] = flat.reshape(num, count, 3)
        files = [
            add("shN_centroids", centroids.reshape(-1, 3), 64 * count),
            add("shN_labels", labels, 20),
        ]
        told["shN"] = {name: value[0] for name, value in limits.items()} | {
            "shape": [num, 3 * count],
            "quantization": 8,
            "files": files,
        }
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {"meta.json": json.dumps(told).encode(), **entries}.items():
            archive.writestr(name, content)


def write_nerfstudio(
    folder: Path, data: Path = Path("/nowhere"), *, rows: Any = None, flat: bool = False
) -> Path:
    """Write what splatfacto leaves: 5 splats at step 1000 and 9 at 2000, in a frame of half the size."""
    (folder / "nerfstudio_models").mkdir(parents=True)
    for step, num in ((1000, 5), (2000, 9)):
        made = model(num, 0 if flat else 1)
        names = {
            "features_dc": made.sh0[:, 0],
            "features_rest": made.shN,
            "opacities": made.opacities[:, None],
        }
        if flat:
            names["features_dc"] = torch.logit(SH_C0 * made.sh0[:, 0].clamp(-1, 1) + 0.5)
        names |= {"means": made.means, "quats": made.quats, "scales": made.scales}
        state = {f"_model.gauss_params.{name}": tensor for name, tensor in names.items()}
        content = {"step": step, "pipeline": state, "schedulers": {"means": {"_last_lr": [np.float64(1e-4)]}}}
        torch.save(content, folder / f"nerfstudio_models/step-{step:09}.ckpt")
    told = {"transform": rows or [[0, -1, 0, 1], [1, 0, 0, 2], [0, 0, 1, 3]], "scale": 0.5}
    (folder / "dataparser_transforms.json").write_text(json.dumps(told))
    parts = "".join(f"- {part}\n" for part in data.parts)
    (folder / "config.yml").write_text(
        f"!!python/object:nerfstudio.Config\ndata: &id003 !!python/object/apply:pathlib.PosixPath\n{parts}"
        "experiment_name: a\n"
    )
    return folder

"""Gaussians in files: every format that can be read or written, chosen by a file's ending and its content."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from splatstudio.error_text import first_line
from splatstudio.files.inputs import open_input
from splatstudio.files.kinds import ZIP, kind_of_file
from splatstudio.formats.compressed_ply import is_compressed, read_compressed_ply, write_compressed_ply
from splatstudio.formats.gltf import write_glb
from splatstudio.formats.ksplat import read_ksplat
from splatstudio.formats.model_arrays import SplatFile
from splatstudio.formats.ply import read_ply, write_ply, write_point_cloud
from splatstudio.formats.sog import read_sog, write_sog
from splatstudio.formats.splat import read_splat, write_splat
from splatstudio.formats.spz import GZIP, MAGIC, beyond_spz, read_spz, write_spz
from splatstudio.formats.torch_file import (
    is_gsplat_checkpoint,
    is_inria_checkpoint,
    is_nerfstudio_checkpoint,
    load_tensors,
    splats_of_gsplat,
    splats_of_inria,
    splats_of_nerfstudio,
    write_gsplat_checkpoint,
)
from splatstudio.formats.viewer_page import AS_IT_LIES, PageView, write_viewer_page
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.operating_system import free_memory
from splatstudio.scene.ply_header import LONGEST_HEADER, PLY, UNSAID, Orientation, parse_header


@dataclass(frozen=True, eq=False)
class FileExtras:
    """What a file may hold besides its Gaussians; a format keeps what it can, as its `Format` says."""

    step: int | None = None  # of the training
    antialiased: bool = False  # trained so
    normals: torch.Tensor | None = None  # [N, 3] on the CPU
    page: PageView = AS_IT_LIES  # how a web page shows them
    orientation: Orientation = UNSAID


def _nothing_more(gaussians: Gaussians) -> list[str]:
    return []


@dataclass(frozen=True)
class Format:
    """A file format for Gaussians, as a list of choices shows it."""

    name: str
    endings: tuple[str, ...]  # the first is the usual one
    purpose: str  # who reads it
    loses: str  # what a file does not keep, in words; empty when it keeps everything
    bytes_each: tuple[float, float, float, float]  # a Gaussian, by SH degree; typical where it is compressed
    read: Callable[[Path], SplatFile] | None
    write: Callable[[Path, Gaussians, FileExtras], None] | None
    bytes_once: int = 0  # of a file, besides its Gaussians
    tells_antialiased: bool = False  # whether a file says that its model was trained anti-aliased
    has_normals: bool = False  # whether there is room for normals
    has_sizes: bool = True  # whether a file has more of its Gaussians than points
    is_page: bool = False  # whether a file is looked at as it is, from a first point of view
    rounds: Callable[[Gaussians], list[str]] = _nothing_more  # sentences on what of these it cannot hold

    def estimated_bytes(self, num_gaussians: int, sh_degree: int) -> int:
        """Return about how large a file of that many Gaussians is."""
        return self.bytes_once + round(num_gaussians * self.bytes_each[sh_degree])


def refuse_write_only(path: Path) -> None:
    """Raise ValueError for a file of a format that cannot be read."""
    form = format_of(path) if path.is_file() else None
    if form is not None and form.read is None:
        raise ValueError(
            f"{path} cannot be read: {form.name} is a format that is only written; name the run or the file"
            " that it was made from"
        )


def _read_ply(path: Path) -> SplatFile:
    """Return the content of a PLY of either kind."""
    try:
        with open_input(path) as file:
            compressed = is_compressed(parse_header(path, file.read(LONGEST_HEADER)))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    return read_compressed_ply(path) if compressed else read_ply(path)


def _read_torch(path: Path) -> SplatFile:
    """Return the content of a checkpoint of gsplat's, the original or nerfstudio's trainer."""
    content = load_tensors(path)
    if is_gsplat_checkpoint(content):
        return splats_of_gsplat(path, content)
    if is_inria_checkpoint(content):
        return splats_of_inria(path, content)
    if is_nerfstudio_checkpoint(content):
        return splats_of_nerfstudio(path, content)
    raise ValueError(
        f"{path} is a file of PyTorch, but no checkpoint of gsplat, nerfstudio or the original trainer"
    )


def _read_zip(path: Path) -> SplatFile:
    """Return the content of an archive: SOG, or a checkpoint of PyTorch."""
    try:
        with zipfile.ZipFile(path) as archive:
            is_sog = "meta.json" in archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise ValueError(f"{path} is cut off or damaged: {first_line(error)[:200]}") from error
    return read_sog(path) if is_sog else _read_torch(path)


FORMATS = (
    Format(
        name="PLY",
        endings=(".ply",),
        purpose="what nearly every program for Gaussian splatting reads",
        loses="",
        bytes_each=(68, 104, 164, 248),
        read=_read_ply,
        write=lambda path, model, extras: write_ply(
            path, model, extras.normals, antialiased=extras.antialiased, orientation=extras.orientation
        ),
        tells_antialiased=True,
        has_normals=True,
    ),
    Format(
        name="Compressed PLY",
        endings=(".compressed.ply",),
        purpose="SuperSplat, PlayCanvas and other web viewers",
        loses="positions keep 10 to 11 bits within a group of 256 neighbors, color, opacity and SH 8 bits",
        bytes_each=(16.3, 25.3, 40.3, 61.3),
        read=_read_ply,
        write=lambda path, model, extras: write_compressed_ply(
            path, model, antialiased=extras.antialiased, orientation=extras.orientation
        ),
        tells_antialiased=True,
    ),
    Format(
        name="SPZ",
        endings=(".spz",),
        purpose="Scaniverse, Niantic Studio and many viewers",
        loses="positions keep 24 bits, all else 8 bits or fewer, SH 4 to 5 bits between -1 and 1",
        bytes_each=(16, 20, 27, 34),
        read=read_spz,
        write=lambda path, model, extras: write_spz(path, model, antialiased=extras.antialiased),
        tells_antialiased=True,
        rounds=beyond_spz,
    ),
    Format(
        name="SOG",
        endings=(".sog",),
        purpose="PlayCanvas and SuperSplat: the smallest files",
        loses="all is rounded: positions keep 16 bits, all else 8, SH choose from a palette of 65,536",
        bytes_each=(9.5, 12, 14, 16),
        read=read_sog,
        write=lambda path, model, extras: write_sog(path, model, antialiased=extras.antialiased),
        tells_antialiased=True,
    ),
    Format(
        name="splat",
        endings=(".splat",),
        purpose="antimatter15's viewer and others in browsers",
        loses="drops view-dependent color; color, opacity and rotation stored at 8 bits",
        bytes_each=(32, 32, 32, 32),
        read=read_splat,
        write=lambda path, model, extras: write_splat(path, model),
    ),
    Format(
        name="ksplat",
        endings=(".ksplat",),
        purpose="mkkellogg's viewer GaussianSplats3D",
        loses="",
        bytes_each=(44, 80, 140, 224),
        read=read_ksplat,
        write=None,
    ),
    Format(
        name="glTF",
        endings=(".glb",),
        purpose="Cesium, Babylon.js, PlayCanvas and other programs that know KHR_gaussian_splatting",
        loses="",
        bytes_each=(60, 96, 156, 240),
        read=None,
        write=lambda path, model, extras: write_glb(path, model),
    ),
    Format(
        name="Web page",
        endings=(".html",),
        purpose="any browser, without a network: one file with a viewer and the model in it",
        loses="drops view-dependent color; sizes stored at 11 bits, color and opacity at 8",
        bytes_each=(20, 20, 20, 20),
        read=None,
        write=lambda path, model, extras: write_viewer_page(path, model, extras.page),
        is_page=True,
        bytes_once=820_000,
    ),
    Format(
        name="Point cloud",
        endings=(".points.ply",),
        purpose="MeshLab, CloudCompare, Blender: centers with their colors",
        loses="only centers and colors: no sizes, rotations, opacities or view-dependent color",
        bytes_each=(15, 15, 15, 15),
        read=None,
        write=lambda path, model, extras: write_point_cloud(path, model, extras.normals),
        has_normals=True,
        has_sizes=False,
    ),
    Format(
        name="gsplat checkpoint",
        endings=(".pt",),
        purpose="gsplat's trainer and viewer, with --ckpt",
        loses="",
        bytes_each=(56, 92, 152, 236),
        read=_read_torch,
        write=lambda path, model, extras: write_gsplat_checkpoint(path, model, step=extras.step or 0),
    ),
    Format(
        name="original trainer's checkpoint",
        endings=(".pth",),
        purpose="chkpnt*.pth of the first implementation of 3D Gaussian splatting",
        loses="",
        bytes_each=(56, 92, 152, 236),
        read=_read_torch,
        write=None,
    ),
    Format(
        name="nerfstudio's checkpoint",
        endings=(".ckpt",),
        purpose="step-*.ckpt of nerfstudio's splatfacto",
        loses="",
        bytes_each=(56, 92, 152, 236),
        read=_read_torch,
        write=None,
    ),
)


def format_of(path: Path | str) -> Format | None:
    """Return the format that a file's name says, by its longest matching ending, or None."""
    name = Path(path).name.lower()
    matching = [(len(ending), form) for form in FORMATS for ending in form.endings if name.endswith(ending)]
    return max(matching, key=lambda pair: pair[0])[1] if matching else None


def format_to_write(path: Path | str) -> Format:
    """Return the format to write `path` in; ValueError, naming those there are, when its ending says none."""
    form = format_of(path)
    if form is None or form.write is None:
        endings = ", ".join(form.endings[0] for form in FORMATS if form.write)
        raise ValueError(f"cannot write {Path(path).name}: its name must end in one of {endings}")
    return form


def write_gaussians(
    path: Path | str, gaussians: Gaussians, extras: FileExtras = FileExtras(), *, form: Format | None = None
) -> None:
    """Write the Gaussians, in the frame they are given (COLMAP's axes), by default as the file's ending says.

    Of `extras` a format keeps what it can; but normals are asked for. An older file of that name stays until
    the new one is complete. Raises ValueError, and writes nothing, for an unknown ending, normals that cannot
    be kept, a parameter that is not finite, or a file that cannot be written.
    """
    form = form or format_to_write(path)
    assert form.write is not None
    if extras.normals is not None and not form.has_normals:
        able = " and ".join(other.endings[0] for other in FORMATS if other.has_normals)
        raise ValueError(f"{path} has no room for normals; files with the endings {able} have")
    form.write(Path(path), gaussians, extras)


def read_splats(path: Path | str) -> SplatFile:
    """Return what a file holds, by its content where that tells the format, else by its ending.

    Raises ValueError, naming the file and the reason, for one that is missing, damaged or of no known kind.
    """
    path = Path(path)
    form = format_of(path)
    if path.name.lower() == "meta.json":
        return read_sog(path)
    reader = _reader_by_content(path)
    if (reader is None and (form is None or form.read)) or reader is _read_zip:
        _refuse_other_kinds(path)
    reader = reader or (form.read if form else None)
    if reader is None:
        refuse_write_only(path)
    if reader is None:
        endings = ", ".join(ending for form in FORMATS if form.read for ending in form.endings)
        raise ValueError(f"{path} is no model that can be read; files are known by the endings {endings}")
    try:
        return reader(path)
    except MemoryError as error:
        size, free = path.stat().st_size, free_memory()
        raise ValueError(
            f"{path} ({size / 1e9:.2f} GB) needs more memory to be opened than the {free / 1e9:.1f} GB that"
            " are free: close other programs, or open it on a machine with more memory"
        ) from error


def _refuse_other_kinds(path: Path) -> None:
    """Raise ValueError, naming the kind, for a file that holds something else than splats."""
    kind = kind_of_file(path)
    if kind is not None:
        raise ValueError(f"{path} holds no splats: it is {kind}")


def _reader_by_content(path: Path) -> Callable[[Path], SplatFile] | None:
    """Return the reader for what a file begins with, or None when it has no mark of its own."""
    try:
        with open_input(path) as file:
            start = file.read(4)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    if not start:
        raise ValueError(f"{path} is empty: copy or download it again")
    if start in PLY:
        return _read_ply
    # With its method, deflate: a .splat has no mark, and its first number may be any.
    if start == MAGIC or start[:3] == GZIP + b"\x08":
        return read_spz
    if start == ZIP:
        return _read_zip
    return None


def free_path(path: Path) -> Path:
    """Return `path`, or where something has that name the same with -2, -3 ... before its ending."""
    form, name = format_of(path), path.name
    endings = [path.suffix] if form is None else [e for e in form.endings if name.lower().endswith(e)]
    length = max(map(len, endings), default=0)
    stem, ending = name[: len(name) - length], name[len(name) - length :]
    number, free = 2, path
    while os.path.lexists(free):
        number, free = number + 1, path.with_name(f"{stem}-{number}{ending}")
    return free

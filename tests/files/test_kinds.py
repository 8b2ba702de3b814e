"""Files that are no scenes and no models are named, and so are pointers of Git LFS."""

from __future__ import annotations

import gzip
import io
import sqlite3
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from command_line import CommandLine
from PIL import Image
from scene_builder import tiny_scene, write_colmap, write_colmap_text, write_transforms

from splatstudio.formats import read_splats
from splatstudio.scene.load import load_scene

POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345678\n"
)


@pytest.mark.parametrize("ending", [".ply", ".compressed.ply", ".spz", ".sog", ".splat", ".pt", ""])
def test_a_pointer_is_no_damaged_model(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"model{ending}"
    path.write_bytes(POINTER)
    with pytest.raises(ValueError, match=r"is a pointer of Git LFS, .* run `git lfs pull`"):
        read_splats(path)


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (write_colmap, "sparse/0/cameras.bin"),
        (write_colmap, "sparse/0/images.bin"),
        (write_colmap, "sparse/0/points3D.bin"),
        (write_colmap, "images/view_001.png"),
        (write_colmap_text, "sparse/0/images.txt"),
        (write_transforms, "transforms.json"),
        (write_transforms, "sparse_pc.ply"),
    ],
)
def test_a_pointer_is_no_damaged_scene(tmp_path: Path, write, name: str) -> None:
    folder = write(tmp_path, tiny_scene(3))
    (folder / name).write_bytes(POINTER)
    with pytest.raises(ValueError, match=f"{Path(name).name} is a pointer of Git LFS, .* `git lfs pull`"):
        load_scene(folder)


BEGINNINGS = {
    ".htm": b"<!doctype html>",
    ".mp4": b"\0\0\0\x20ftypisom",
    ".heic": b"\0\0\0\x24ftypheic",
    ".heif": b"\0\0\0\x1cftypmif1",
    ".avif": b"\0\0\0\x20ftypavif",
    ".cr3": b"\0\0\0\x18ftypcrx ",
}


def written(path: Path) -> Path:
    """Write a file of the kind that its ending says."""
    if path.suffix == ".npz":
        np.savez(path, means=np.zeros(3))
    elif path.suffix == ".npy":
        np.save(path, np.zeros(3))
    elif path.suffix in (".zip", ".docx"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("[Content_Types].xml" if path.suffix == ".docx" else "scene/a.txt", "a" * 99)
    elif path.suffix in (".tar", ".tgz"):
        with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as archive:
            archive.addfile(tarfile.TarInfo("a"), io.BytesIO())
    elif path.suffix == ".db":
        with sqlite3.connect(path) as database:
            database.execute("create table cameras (id)")
    elif path.suffix in (".png", ".jpg"):
        Image.new("RGB", (4, 4)).save(path)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(b"ply\n" * 99))
    else:
        path.write_bytes(BEGINNINGS[path.suffix] + bytes(99))
    return path


@pytest.mark.parametrize(
    ("ending", "told"),
    [
        (".npz", "it is a NumPy archive"),
        (".npy", "it is a NumPy array"),
        (".zip", "it is a ZIP archive: unpack it"),
        (".docx", "it is an Office document"),
        (".tar", "it is a tar archive: unpack it"),
        (".tgz", "compressed by gzip, but no SPZ file: unpack it"),
        (".gz", "compressed by gzip, but no SPZ file: unpack it"),
        (".db", "it is an SQLite database, as COLMAP has"),
        (".png", "it is a PNG picture"),
        (".jpg", "it is a JPEG picture"),
        (".htm", "it is a web page: download"),
        (".mp4", "it is a video: `splatstudio poses`"),
        (".heic", "it is a HEIC picture"),
        (".heif", "it is a HEIC picture"),
        (".avif", "it is an AVIF picture"),
        (".cr3", "it is a raw picture"),
    ],
)
def test_other_files_are_called_what_they_are(
    tmp_path: Path, command: CommandLine, ending: str, told: str
) -> None:
    path = written(tmp_path / f"file{ending}")
    with pytest.raises(ValueError, match=told) as caught:
        read_splats(path)
    assert str(path) in str(caught.value)
    # A wrong ending does not make it another file.
    renamed = path.rename(tmp_path / "model.ply")
    with pytest.raises(ValueError, match=told):
        read_splats(renamed)
    if ending not in (".tgz", ".gz"):
        with pytest.raises(ValueError, match=told.removeprefix("it ") + ".*give the folder of a scene"):
            load_scene(renamed)
    code, said = command("info", renamed)
    assert code == 2 and "PytorchStreamReader" not in said and "is" in said

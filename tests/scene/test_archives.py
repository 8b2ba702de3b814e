"""Scenes in archives: opened, and unpacked so that nothing of the user's is harmed."""

from __future__ import annotations

import errno
import io
import itertools
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine
from format_models import model
from scene_builder import tiny_scene, write_colmap

from splatstudio import operating_system
from splatstudio.formats import write_gaussians
from splatstudio.scene import archives
from splatstudio.scene.archives import is_archive, unpacked
from splatstudio.scene.load import load_scene

PICTURE = "a.png"
MODES: dict[str, Any] = {".tar": "w", ".tgz": "w:gz", ".tar.xz": "w:xz"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_colmap(tmp_path / "scene", tiny_scene(3))


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def tarred(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def test_poses_of_photos_in_an_archive_outlive_what_becomes_of_it(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"photos/a.png": b"1", "photos/b.png": b"2"})
    poses = unpacked(path) / "photos/.splatstudio/poses/database.db"
    run = unpacked(path) / "photos/runs/a/run.json"
    for made in (poses, run):
        made.parent.mkdir(parents=True)
        made.write_text("hours of work")
    os.utime(path, ns=(0, 0))
    folder = unpacked(path)
    (folder / "photos/a.png").write_bytes(b"not unpacked again")
    assert (unpacked(path) / "photos/a.png").read_bytes() == b"not unpacked again"
    assert poses.read_text() == run.read_text() == "hours of work", "copied: the same content"

    before = (folder / "photos/b.png").stat().st_mtime_ns
    zipped(path, {"photos/a.png": b"1", "photos/b.png": b"2", "photos/c.png": b"3"})
    assert {file.name for file in (unpacked(path) / "photos").glob("*.png")} == {"a.png", "b.png", "c.png"}
    assert (folder / "photos/a.png").read_bytes() == b"1"
    assert poses.read_text() == run.read_text() == "hours of work", "another content"
    assert (folder / "photos/b.png").stat().st_mtime_ns == before, "poses are not told to be of other photos"
    assert [file.name for file in folder.parent.iterdir()] == ["a.zip"]


def test_who_may_read_the_folder_may_read_what_is_unpacked_there(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"photos/a.png": b"1"})
    beside = tmp_path / "beside"
    beside.mkdir()
    assert unpacked(path).stat().st_mode == beside.stat().st_mode


@pytest.mark.parametrize("breaks_at", range(1, 5))
def test_whatever_fails_while_an_archive_is_unpacked_again_costs_no_poses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks_at: int
) -> None:
    path = zipped(tmp_path / "a.zip", {"photos/a.png": b"1"})
    poses = unpacked(path) / "photos/.splatstudio/poses/database.db"
    poses.parent.mkdir(parents=True)
    poses.write_text("hours of work")
    zipped(path, {"photos/a.png": b"1", "photos/b.png": b"2"})
    moves, put = itertools.count(1), archives.put_in_place

    def fail(source: Path, target: Path) -> None:
        if next(moves) == breaks_at:
            raise OSError(errno.EIO, "Input/output error")
        put(source, target)

    with monkeypatch.context() as broken:
        broken.setattr(archives, "put_in_place", fail)
        with pytest.raises(ValueError, match="cannot be unpacked"):
            unpacked(path)
    assert (unpacked(path) / "photos/b.png").read_bytes() == b"2"
    assert poses.read_text() == "hours of work"


@pytest.mark.parametrize("ending", [".zip", *MODES])
def test_a_scene_in_an_archive_opens_and_is_unpacked_once(folder: Path, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"all{ending}"
    if ending == ".zip":
        files = {str(file.relative_to(tmp_path)): file for file in folder.rglob("*") if file.is_file()}
        zipped(path, {name: file.read_bytes() for name, file in files.items()})
    else:
        with tarfile.open(path, MODES[ending]) as archive:
            archive.add(folder, "scene")
    scene = load_scene(path)
    place = tmp_path / ".splatstudio/unpacked" / path.name
    assert scene.notes[0] == f"{path} is unpacked: {place} is opened"
    assert len(scene.views) == 3 and scene.photo(0).rgb.any()
    (place / "mine").touch()
    load_scene(path)
    assert (place / "mine").exists()  # it was not done again


@pytest.mark.parametrize("name", ["a/IMG_1.HEIC", "IMG_1.heif", "IMG_1.CR2", "IMG_1.dng"])
def test_photos_that_poses_are_estimated_of_are_photos_in_an_archive(tmp_path: Path, name: str) -> None:
    place = unpacked(zipped(tmp_path / "a.zip", {name: b"1"}))
    assert (place / name).read_bytes() == b"1"
    with pytest.raises(ValueError, match=r"holds 1 photo but no camera poses.*`splatstudio poses"):
        load_scene(tmp_path / "a.zip")


def test_an_archive_that_has_changed_is_unpacked_again(folder: Path, tmp_path: Path) -> None:
    path = zipped(tmp_path / "all.zip", {PICTURE: b"1", "old.txt": b""})
    place = unpacked(path)
    zipped(path, {PICTURE: b"22"})
    assert unpacked(path) == place and [file.name for file in sorted(place.iterdir())] == [
        ".unpacked",
        PICTURE,
    ]


def test_of_a_file_that_is_there_twice_the_later_one_counts(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {PICTURE: b"old", "b.png": b"1"})
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(PICTURE, b"newer")
    assert (unpacked(path) / PICTURE).read_bytes() == b"newer"
    path = tarred(tmp_path / "a.tgz", [(member(PICTURE), b"old"), (member(PICTURE), b"newer")])
    assert (unpacked(path) / PICTURE).read_bytes() == b"newer"


def test_notes_of_macos_on_files_are_no_photos(folder: Path, tmp_path: Path) -> None:
    for photo in list((folder / "images").iterdir()):
        photo.with_name(f"._{photo.name}").write_bytes(b"\0\5\x16\7")
    scene = load_scene(folder)
    assert len(scene.views) == 3 and not scene.unposed
    path = tmp_path / "scene.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(folder, "scene")
    assert not list(unpacked(path).rglob("._*")) and not load_scene(path).unposed


@pytest.mark.parametrize("says_so", [True, False])
def test_names_in_utf_8_are_read_as_such(tmp_path: Path, says_so: bool) -> None:
    path = zipped(tmp_path / "a.zip", {"Fuchs für 1.png": b"1"})
    if not says_so:
        content = bytearray(path.read_bytes())
        for at in (content.find(b"PK\x03\x04") + 7, content.rfind(b"PK\x01\x02") + 9):
            content[at] &= ~8
        path.write_bytes(content)
    assert (unpacked(path) / "Fuchs für 1.png").read_bytes() == b"1"


@pytest.mark.parametrize(
    ("page", "name"), [("cp437", "Küche"), ("cp850", "À café"), ("cp1252", "Küche"), ("cp1252", "École")]
)
def test_names_of_programs_of_windows_are_read_in_their_code_page(
    tmp_path: Path, page: str, name: str
) -> None:
    written = name.encode(page)
    path = zipped(tmp_path / "a.zip", {f"{'@' * len(written)}/a.png": b"1"})
    path.write_bytes(path.read_bytes().replace(b"@" * len(written), written))
    assert (unpacked(path) / name / "a.png").read_bytes() == b"1"


def test_links_in_an_archive_are_left_out(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("link.png")
    link.external_attr = 0o120777 << 16
    path = zipped(tmp_path / "a.zip", {PICTURE: b"1", "__MACOSX/._a.png": b""})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(link, "/etc/passwd")
    assert sorted(file.name for file in unpacked(path).iterdir()) == [".unpacked", PICTURE]
    kinds = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
    members = [(member(f"{i}.png", kind, "/etc/passwd"), b"") for i, kind in enumerate(kinds)]
    path = tarred(tmp_path / "a.tgz", [*members, (member(PICTURE), b"1")])
    assert sorted(file.name for file in unpacked(path).iterdir()) == [".unpacked", PICTURE]


@pytest.mark.parametrize(
    "name", ["../out.png", "/tmp/out.png", "a/../../out.png", "C:\\out.png", "..\\out.png", "./c:out.png"]
)
def test_a_file_outside_of_the_folder_refuses_the_archive(tmp_path: Path, name: str) -> None:
    for path in (
        zipped(tmp_path / "a.zip", {PICTURE: b"1", name: b"1"}),
        tarred(tmp_path / "a.tgz", [(member(PICTURE), b"1"), (member(name), b"1")]),
    ):
        with pytest.raises(ValueError, match="would lie outside of its folder: it is not unpacked"):
            unpacked(path)
    assert (
        not list((tmp_path / ".splatstudio/unpacked").iterdir())
        and not (tmp_path.parent / "out.png").exists()
    )


def test_a_colon_in_a_name_is_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "Scan 2026-05-01 12:30/a.png"
    path = zipped(tmp_path / "a.zip", {name: b"1"})
    assert (unpacked(path) / name).read_bytes() == b"1"
    monkeypatch.setattr(operating_system, "WINDOWS", True)
    other = tarred(tmp_path / "a.tgz", [(member(name), b"1")])
    assert (unpacked(other) / "Scan 2026-05-01 12_30/a.png").read_bytes() == b"1"


def test_folders_with_backslashes_are_folders(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (("fox\\", b""), ("fox\\images\\", b""), ("fox\\images\\a.png", b"1")):
            info = zipfile.ZipInfo("x")
            info.filename = info.orig_filename = name
            archive.writestr(info, content)
    assert (unpacked(path) / "fox/images/a.png").read_bytes() == b"1"


def locked(path: Path) -> None:
    content = bytearray(path.read_bytes())
    at = content.rfind(b"PK\x01\x02")
    content[at + 8] |= 1  # the flag in the list of contents
    path.write_bytes(content)


def overstated(path: Path) -> None:
    content = bytearray(path.read_bytes())
    at = content.rfind(b"PK\x01\x02")
    content[at + 24 : at + 28] = (2**32 - 2).to_bytes(4, "little")
    path.write_bytes(content)


def deflate64(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8] = content[content.rfind(b"PK\x01\x02") + 10] = 9  # how it is packed, said twice
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def unnamed(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(PICTURE.encode(), b"/" * len(PICTURE)).replace(b"/", b"\0"))


BROKEN: list[tuple[Callable[[Path], object], str]] = [
    (cut, "is cut off or damaged"),
    (deflate64, "is packed in a way that is not known here .*: unpack it with another program"),
    (unnamed, "a file has no name"),
    (locked, "is locked with a password: unpack it yourself"),
    (overstated, "needs more than 4.3 GB where it lies, and 1.0 GB can be used"),
    (lambda path: zipped(path, {"a.txt": b""}), "is an archive without photos; splats in it"),
    (lambda path: zipped(path, {"in/b.tar.gz": b""}), "without photos; in/b.tar.gz, an archive in it,"),
    (lambda path: zipped(path, {f"{i}.png": b"" for i in range(9)}), "holds more than 8 files"),
]


@pytest.mark.parametrize(("broken", "sentence"), BROKEN)
def test_what_cannot_be_unpacked_is_told_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Callable[[Path], object], sentence: str
) -> None:
    monkeypatch.setattr(archives, "MOST_FILES", 8)
    usage = archives.shutil.disk_usage(tmp_path)
    free = archives.MIN_FREE_BYTES + 10**9
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: usage._replace(free=free))
    path = zipped(tmp_path / "a.zip", {PICTURE: b"1"})
    broken(path)
    with pytest.raises(ValueError, match=sentence):
        load_scene(path)
    assert not list((tmp_path / ".splatstudio/unpacked").iterdir())


def test_a_tar_whose_names_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    long = tarfile.TarInfo("x" * (archives.MOST_HEADER_BYTES + 1) + ".png")
    path = tarred(tmp_path / "a.tgz", [(long, b"")])
    with pytest.raises(ValueError, match="is cut off or damaged"):
        unpacked(path)


def test_models_are_no_archives_whatever_they_are_called(tmp_path: Path) -> None:
    write_gaussians(tmp_path / "a.sog", model(10))
    (tmp_path / "a.sog").rename(tmp_path / "a.zip")
    assert not is_archive(tmp_path / "a.zip") and not is_archive(tmp_path)


def test_the_commands_say_where_an_archive_is_unpacked(
    folder: Path, tmp_path: Path, command: CommandLine
) -> None:
    path = tmp_path / "all.zip"
    files = {str(file.relative_to(folder)): file for file in folder.rglob("*") if file.is_file()}
    zipped(path, {name: file.read_bytes() for name, file in files.items()})
    code, said = command("info", path)
    assert code == 0 and said.startswith(f"{path} is unpacked: ") and "3: 2 to train, 1 to test" in said

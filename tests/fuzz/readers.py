"""Every reader of what strangers may send, with whole examples that the product's own writers made."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
from blob_models import ring_of_cameras
from example_checkpoints import example
from format_models import model, valid_files
from models_of_programs import write_ksplat, write_nerfstudio, write_sog_1
from poses_of_programs import WRITERS
from scene_builder import tiny_scene, write_blender, write_colmap, write_colmap_text, write_transforms

from splatstudio.cameras.camera_path import orbit_of
from splatstudio.cameras.path_file import read_camera_path, write_camera_path
from splatstudio.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from splatstudio.checkpoints.manifest import SEAL, write_sealed
from splatstudio.files.recent import recent_paths, remember
from splatstudio.files.run import Run, read_metrics
from splatstudio.formats import read_splats, write_gaussians
from splatstudio.poses.records import Manifest, PoseReport, read_record
from splatstudio.runtime.channel.codec import decode, encode
from splatstudio.runtime.channel.remote_server import (
    PROTOCOL,
    Hello,
    Ready,
    RunCard,
    Welcome,
    checked,
    checked_remote_command,
    new_greeting,
    proof,
)
from splatstudio.runtime.headless_controller import keep_token, kept_token
from splatstudio.runtime.messages import (
    Event,
    Export,
    Progress,
    RenderPath,
    Saved,
    SetCap,
    SetView,
    Step,
    UpdateSettings,
    Warned,
)
from splatstudio.scene.load import load_scene
from splatstudio.scene.photo import decode as decode_photo
from splatstudio.scene.photo import picture_header
from splatstudio.settings.config import TrainConfig

Read = Callable[[bytes], object]


@dataclass(frozen=True)
class Target:
    """A reader: a whole example, how its values are found where it has any, and what reads a changed one."""

    name: str
    whole: bytes
    read: Read
    values: str = ""  # "json" or "msgpack"; "": bytes alone are changed
    declared: Callable[[], int] = (
        int  # bytes of what the file that was read last says that it holds, 0: not known
    )


def targets(folder: Path) -> Iterator[Target]:
    """Yield all readers; they work in `folder`, one at a time."""
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    yield from _models(folder / "models")
    yield from _scenes(folder / "scenes")
    yield from _runs(folder / "run")
    yield from _users_files(folder / "own")
    yield from _pictures(folder / "pictures")
    yield from _messages()


def _in_place_of(path: Path, read: Callable[[], object]) -> Read:
    """Return what reads after a file has got another content."""

    def replaced(data: bytes) -> object:
        path.write_bytes(data)
        return read()

    return replaced


def _models(folder: Path) -> Iterator[Target]:
    folder.mkdir()
    files = valid_files(folder)
    for ending in (".compressed.ply", ".sog", ".spz", ".glb"):
        write_gaussians(folder / f"many{ending}", model(300, 3))
        files[f"many{ending}"] = (folder / f"many{ending}").read_bytes()
    write_sog_1(folder / "version1.sog", model(300, 2))
    write_nerfstudio(folder)
    for path in (write_ksplat(folder / "a.ksplat", [model(9, 1)], 1), folder / "version1.sog"):
        files[path.name] = path.read_bytes()
    (checkpoint, _) = sorted((folder / "nerfstudio_models").iterdir())
    files[str(checkpoint.relative_to(folder))] = checkpoint.read_bytes()
    for name, whole in files.items():
        path = folder / name
        yield Target(name, whole, _in_place_of(path, lambda path=path: _finite(path)))


def _finite(path: Path) -> object:
    gaussians = read_splats(path).gaussians
    assert all(tensor.isfinite().all() for tensor in gaussians.tensors().values()), "not finite"
    return gaussians


def _scenes(folder: Path) -> Iterator[Target]:
    scene = tiny_scene(4, num_points=6)
    for kind, write in {"bin": write_colmap, "txt": write_colmap_text}.items():
        place = write(folder / kind, scene)
        for part in ("cameras", "images", "points3D"):
            file = place / "sparse" / "0" / f"{part}.{kind}"
            yield _file(file, lambda place=place: load_scene(place))
    place = write_transforms(folder / "ngp", scene)
    yield _file(place / "transforms.json", lambda: load_scene(place), "json")
    yield _file(place / "sparse_pc.ply", lambda: load_scene(place))
    blender = write_blender(folder / "blender", tiny_scene(6))
    yield _file(blender / "transforms_train.json", lambda: load_scene(blender), "json")
    for program, write in WRITERS.items():
        place = write(folder / program)
        file = next(path for path in sorted(place.rglob("*")) if path.is_file() and path.suffix != ".png")
        values = "" if file.suffix in (".xml", ".csv") else "json"
        yield _file(file, lambda place=place: load_scene(place), values)
    for kind in ("zip", "tar", "gztar"):
        archive = Path(shutil.make_archive(str(folder / kind), kind, folder / "txt"))
        yield _file(archive, lambda archive=archive: load_scene(archive))


def _file(
    path: Path, read: Callable[[], object], values: str = "", declared: Callable[[], int] = int
) -> Target:
    """Return a reader of one file of several; the whole one is put back before another is tried."""
    whole = path.read_bytes()

    def then_whole(data: bytes) -> object:
        try:
            path.write_bytes(data)
            return read()
        finally:
            path.write_bytes(whole)

    return Target("/".join(path.parts[-2:]), whole, then_whole, values, declared)


def _runs(folder: Path) -> Iterator[Target]:
    run = Run.create(folder, folder.parent / "scene", TrainConfig())
    run.append_metrics({"step": 1, "loss": 0.5, "test_psnr": 20.0})
    run.append_metrics({"step": 2, "loss": 0.4})
    yield _file(folder / "run.json", lambda: Run.open(folder), "json")
    yield _file(folder / "metrics.jsonl", lambda: read_metrics(folder))
    saved = save_checkpoint(folder, example(4))
    manifest = json.loads((saved / "manifest.json").read_text())
    del manifest[SEAL]

    def sealed(data: bytes) -> object:
        """Read a manifest that is what was written, as its seal tells, whatever that was."""
        values = json.loads(data)
        assert isinstance(values, dict)
        write_sealed(saved, values)
        return load_checkpoint(saved)

    yield _file(saved / "manifest.json", lambda: load_checkpoint(saved), "json")
    yield Target("sealed manifest.json", json.dumps(manifest).encode(), _unless_no_object(sealed), "json")
    (shard,) = saved.glob("*.safetensors")

    def known(data: bytes) -> object:
        """Read a shard whose size and SHA-256 the manifest knows."""
        (entry,) = manifest["ranks"]
        digest = hashlib.sha256(data).hexdigest()
        shard.write_bytes(data)
        write_sealed(saved, {**manifest, "ranks": [{**entry, "bytes": len(data), "sha256": digest}]})
        return load_checkpoint(saved)

    whole = shard.read_bytes()
    yield Target("shard.safetensors", whole, known)
    length = int.from_bytes(whole[:8], "little")
    header, rest = whole[8 : 8 + length], whole[8 + length :]
    yield Target(
        "header of safetensors",
        header,
        lambda data: known(len(data).to_bytes(8, "little") + data + rest),
        "json",
    )


def _unless_no_object(read: Read) -> Read:
    def checked_first(data: bytes) -> object:
        try:
            values = json.loads(data)
            json.dumps(values).encode()
        except (ValueError, RecursionError):
            return None  # it cannot be sealed
        return read(data) if isinstance(values, dict) else None

    return checked_first


def _users_files(folder: Path) -> Iterator[Target]:
    folder.mkdir()
    file = folder / "camera_path.json"
    write_camera_path(file, orbit_of(ring_of_cameras()), with_frames=False)
    yield _file(file, lambda: read_camera_path(file), "json")
    keep_token(folder, "a" * 32)
    remember(folder)
    for kept in sorted((folder.parent / "state").rglob("*.json")):
        yield _file(kept, recent_paths if kept.name == "recent.json" else lambda: kept_token(folder), "json")
    for kind in (Manifest, PoseReport):
        record = folder / f"{kind.__name__}.json"
        record.write_text('{"version": 1, "groups": [], "photographs": []}')
        yield _file(record, lambda record=record, kind=kind: read_record(record, kind), "json")


def _pictures(folder: Path) -> Iterator[Target]:
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (16, 24, 3), np.uint8)
    sizes: dict[Path, int] = {}

    def read(file: Path) -> object:
        sizes[file] = 0
        header = picture_header(file)
        sizes[file] = 4 * header.width * header.height
        return decode_photo(file)

    for ending in ("png", "jpg", "webp", "tiff"):
        file = folder / f"a.{ending}"
        assert cv2.imwrite(str(file), pixels)
        yield _file(file, lambda file=file: read(file), declared=lambda file=file: sizes[file])


def _messages() -> Iterator[Target]:
    camera, path = ring_of_cameras()[0], orbit_of(ring_of_cameras())
    commands = (Step(3), SetCap(900), UpdateSettings((("ssim_weight", 0.3),)), SetView(1, 1, camera))
    for command in (*commands, Export(Path("exports/a.ply"), job=3), RenderPath(path, Path("renders/a.mp4"))):
        name = f"command {type(command).__name__}"
        yield Target(name, encode(command), checked_remote_command, "msgpack")
    progress = Progress(1, 60, 0.1, None, 0, 1.0, None)
    for event in (Warned("a"), progress, Saved(4, Path("a"))):
        name = f"event {type(event).__name__}"
        yield Target(name, encode(event), lambda data: decode(data, Event), "msgpack")
    greeting = new_greeting()
    shown = proof("token", "caller", greeting.nonce, "0" * 32)
    hello = encode(Hello(PROTOCOL, "0" * 32, shown))
    yield Target("hello", hello, lambda data: checked(data, "token", greeting), "msgpack")
    for message in (greeting, Welcome("0" * 64), Ready(), RunCard(Path("a"), Path("b"), "{}", 2)):
        kind: Any = type(message)
        yield Target(kind.__name__, encode(message), lambda data, kind=kind: decode(data, kind), "msgpack")


def values_of(target: Target) -> Any:
    """Return what the example holds, as lists and dicts."""
    return json.loads(target.whole) if target.values == "json" else msgspec.msgpack.decode(target.whole)


def bytes_of(target: Target, values: Any) -> bytes | None:
    """Return changed values as the target has them; None where they have no such form."""
    try:
        if target.values == "msgpack":
            return msgspec.msgpack.encode(values)
        return json.dumps(values).encode()
    except (ValueError, OverflowError, UnicodeEncodeError):
        return None

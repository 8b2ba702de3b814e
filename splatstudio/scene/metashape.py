"""Read the cameras that Metashape exports as XML (Export Cameras, Agisoft XML).

A camera's transform is camera to world with OpenCV's axes. Offsets of the center and focal lengths are in
pixels; the tangential coefficients are OpenCV's with their places exchanged. PhotoScan before version 1.2
wrote the center itself, fx, fy and skew, and the tangential coefficients in OpenCV's places. The transform of
a component, or of the chunk, leads from there to the coordinates of the project: local ones, or those of the
earth's center (WGS 84). Sources: Metashape's manual, "Camera models", and that of Agisoft Lens.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from splatstudio.cameras.camera import moved_viewmat, rigid
from splatstudio.scene.capture import read_file
from splatstudio.scene.colmap_model import panorama
from splatstudio.scene.lens import Lens
from splatstudio.scene.posed_frames import (
    ROTATION_TOLERANCE,
    PosedFrame,
    PosedFrames,
    Values,
    fixed,
    focal_lens,
    view_of,
)

EQUATOR, POLE = 6_378_137.0, 6_356_752.3  # radii of the earth in WGS 84, meters
HIGHEST = 30_000.0  # above and below the ground, meters
FISHEYES = ("fisheye", "equidistant_fisheye")  # one lens, by its former and its present name


def read_metashape(path: Path) -> PosedFrames:
    """Return what the file holds: cameras that are enabled and aligned, of the component with most of them.

    Raises ValueError for a damaged file and for sensors that cannot be undistorted, as of panoramas.
    """
    content = read_file(path, "the file")
    try:
        root = ElementTree.fromstring(content)
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # the others: of an unknown encoding
        raise ValueError(f"{path} is not valid XML: {error}; export it again") from error
    chunk = max(root.iterfind("chunk"), key=_num_posed, default=None)
    if chunk is None:
        raise ValueError(f"{path} holds no chunk of Metashape: export its cameras as Agisoft XML")
    notes: list[str] = []
    sensors = {sensor.get("id"): sensor for sensor in chunk.iterfind("sensors/sensor")}
    lenses: dict[str | None, Lens] = {}
    components: defaultdict[str | None, list[PosedFrame]] = defaultdict(list)
    num_not_aligned = num_in_rigs = 0
    for camera in chunk.iterfind(".//camera"):
        transform = camera.findtext("transform")
        where = f"{path}, camera {camera.get('label', '')[:60]!r},"
        values = Values(where, {**camera.attrib, "transform": transform})
        if transform is None or camera.get("enabled", "true") in ("0", "false"):
            in_rig = camera.get("master_id", camera.get("id")) != camera.get("id")
            num_in_rigs += in_rig
            num_not_aligned += not in_rig
            continue
        sensor = camera.get("sensor_id")
        if sensor not in sensors:
            raise values.error("has a sensor that the file does not hold")
        if sensor not in lenses:
            lenses[sensor] = _lens(path, sensors[sensor], notes)
        matrix = values.numbers("transform", 16).reshape(4, 4)
        viewmat = view_of(values.error, matrix[:3, :3], matrix[:3, 3])
        frame = PosedFrame(values.text("label"), viewmat, fixed(lenses[sensor]))
        components[camera.get("component_id")].append(frame)
    if not components:
        raise ValueError(
            f"{path} holds no camera with a pose: align the photos in Metashape, and export again"
        )
    most = max(components, key=lambda component: len(components[component]))
    frames, world = components[most], _world_of(path, chunk, most)
    if len(components) > 1:
        sizes = ", ".join(str(len(each)) for each in components.values())
        notes.append(f"{path} holds {len(components)} components of {sizes} photos: the largest is used")
    if num_not_aligned:
        notes.append(f"{num_not_aligned} cameras in {path} are not aligned or not enabled")
    if num_in_rigs:
        notes.append(
            f"{num_in_rigs} cameras in {path} are left out: the file tells their poses only by those of the "
            "cameras beside them in a rig; Metashape can also export cameras as COLMAP's"
        )
    if world is None:
        return PosedFrames(tuple(frames), notes=tuple(notes))
    moved = (replace(frame, viewmat=moved_viewmat(frame.viewmat, world)) for frame in frames)
    return PosedFrames(tuple(moved), notes=tuple(notes), upright=True)


def _num_posed(chunk: ElementTree.Element) -> int:
    return sum(camera.find("transform") is not None for camera in chunk.iterfind(".//camera"))


def _world_of(path: Path, chunk: ElementTree.Element, component: str | None) -> np.ndarray | None:
    """Return the similarity [4, 4] to the coordinates of the project, z up; None where nobody gave it any.

    Coordinates that count from the earth's center become meters to the east, to the north and up from the
    place that the file gives as its own.
    """
    own = (each for each in chunk.iterfind("components/component") if each.get("id") == component)
    told = [each.find("transform") for each in (*own, chunk)]
    element = next((each for each in told if each is not None and each.find("rotation") is not None), None)
    if element is None:
        return None
    values = Values(f"{path}, transform,", {each.tag: each.text for each in element})
    rotation, place = values.numbers("rotation", 9).reshape(3, 3), values.numbers("translation", 3)
    scale = values.number("scale", 1.0)
    if np.allclose(rotation, np.eye(3), atol=1e-9) and scale == 1.0 and not place.any():
        return None
    if not scale > 0 or np.linalg.norm(rotation @ rotation.T - np.eye(3)) > ROTATION_TOLERANCE:
        raise values.error("has a rotation or a scale that cannot be")
    if POLE - HIGHEST < np.linalg.norm(place) < EQUATOR + HIGHEST:
        up = place / np.square([EQUATOR, EQUATOR, POLE])
        up = up / np.linalg.norm(up)
        east = np.cross([0.0, 0.0, 1.0], up)
        east = east / max(float(np.linalg.norm(east)), 1e-12)
        rotation, place = np.stack([east, np.cross(up, east), up]) @ rotation, np.zeros(3)
    return rigid(scale * rotation, place)


def _lens(path: Path, sensor: ElementTree.Element, notes: list[str]) -> Lens:
    label = f"{path}, sensor {sensor.get('label', '')[:60]!r},"
    kind = sensor.get("type", "frame")
    if kind == "spherical":
        resolution = sensor.find("resolution")
        return panorama(*Values(label, {} if resolution is None else resolution.attrib).size())
    if kind not in ("frame", *FISHEYES):
        raise ValueError(
            f"{label} is of the type {kind!r}, which is not supported: frame, fisheye and spherical are"
        )
    calibrations = sensor.findall("calibration")
    adjusted = [each for each in calibrations if each.get("class") == "adjusted"]
    if not calibrations:
        raise ValueError(f"{label} has no calibration: align the photos in Metashape, and export again")
    calibration = (adjusted or calibrations)[0]
    resolution = calibration.find("resolution")
    resolution = sensor.find("resolution") if resolution is None else resolution
    told = {element.tag: element.text for element in calibration if element.tag != "resolution"}
    values = Values(label, {**told, **({} if resolution is None else resolution.attrib)})
    width, height = size = values.size()
    k1, k2, k3, k4, p1, p2 = (values.number(name, 0.0) for name in ("k1", "k2", "k3", "k4", "p1", "p2"))
    if "fx" in told:
        fx, focal = values.number("fx"), values.number("fy")
        center = values.number("cx", 0.5 * width), values.number("cy", 0.5 * height)
        skew, p1, p2 = values.number("skew", 0.0), p2, p1
    else:
        focal = values.number("f")
        fx, skew = focal + values.number("b1", 0.0), values.number("b2", 0.0)
        center = 0.5 * width + values.number("cx", 0.0), 0.5 * height + values.number("cy", 0.0)
    plain = focal_lens(values, size, fx, focal, *center)
    skew /= fx
    if any(values.number(name, 0.0) for name in ("p3", "p4")):
        notes.append(f"{label} has the coefficients p3 and p4, which are not used: align without them")
    if kind in FISHEYES:
        prism = (k1, k2, p2, p1, k3, k4, 0.0, 0.0, skew)
        return Lens(*size, fx, focal, plain.cx, plain.cy, "thin_prism_fisheye", prism, "FISHEYE")
    brown = (k1, k2, p2, p1, k3, k4, skew)
    brown = brown if skew != 0 else brown[:6] if k4 != 0 else brown[:5]
    return Lens(*size, fx, focal, plain.cx, plain.cy, "brown", brown, "FRAME")

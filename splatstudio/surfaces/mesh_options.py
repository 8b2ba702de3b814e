"""What a mesh shall be like. Nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from splatstudio.gaussians.trimming import KEEP_ALL, Trim

MeshPreset = Literal["collision", "ground"]
MeshColors = Literal["photos", "reliability", "none"]
Frame = tuple[tuple[float, ...], ...]  # [4, 4], to which it leads from the coordinates of the scene's files
THE_FILES: Frame = ((1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0), (0.0, 0.0, 0.0, 1.0))
RESOLUTION = 512
SMOOTHING, MOST_SMOOTHING = 10, 200  # rounds
TEXTURED_TRIANGLES = 50_000  # more take minutes to lay out flat
LEAST_TEXTURE, MOST_TEXTURE = 64, 8192  # texels
TEXTURED_ENDINGS = (".glb", ".obj")
COARSE_RESOLUTION, COLLISION_TRIANGLES = 128, 10_000  # of a preset


@dataclass(frozen=True)
class MeshOptions:
    """How fine a mesh is, and what is done to it.

    Args:
        voxel_size: The side of a voxel, in the units of the scene's files; by default two pixels of
            the photos on the surface, or more where the resolution or the memory say so.
        resolution: At most so many voxels along the longest side of what the photos show.
        triangles: At most about so many triangles.
        watertight: Close the holes, which nobody has seen; without it they stay open.
        between: Also look at the model from halfway between neighboring photos: fewer holes where those
            are few.
        smoothing: Rounds of smoothing, which take the roughness of the splats off and keep larger shapes; 0:
            none.
        min_island: Drop pieces whose area is below this share of the largest one's; 0 keeps all.
        colors: Those of the photos, or how many of them saw the surface (green: three or more, yellow:
            two, red: fewer), or none.
        texture: Side of a texture in texels, as 2048, blended from the photos in their full size: for
            .glb and .obj. Without --triangles there are 50,000 then.
        mesh_preset: collision: coarse, closed, without colors and with few triangles, for a physics engine;
            what is given beside it wins. ground: the plane on which things stand, as a rectangle named
            shadow_catcher.
    """

    voxel_size: float | None = None
    resolution: int = RESOLUTION
    triangles: int | None = None
    watertight: bool = False
    between: bool = False
    smoothing: int = SMOOTHING
    min_island: float = 0.01
    colors: MeshColors = "photos"
    texture: int | None = None
    mesh_preset: MeshPreset | None = None

    def check(self) -> None:
        """Raise ValueError for a number that cannot be."""
        for name in ("voxel_size", "resolution", "triangles", "smoothing", "min_island", "texture"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise ValueError(f"--{name.replace('_', '-')} must be a number, not {value!r:.60}")
        if self.voxel_size is not None and not 0 < self.voxel_size < float("inf"):
            raise ValueError(f"--voxel-size must be a length above 0, not {self.voxel_size}")
        if not 8 <= self.resolution <= 8192:
            raise ValueError(f"--resolution must be 8 to 8192 voxels, not {self.resolution}")
        if self.triangles is not None and self.triangles < 4:
            raise ValueError(f"--triangles must be 4 or more, not {self.triangles}: no solid has fewer")
        if not 0 <= self.smoothing <= MOST_SMOOTHING:
            raise ValueError(f"--smoothing must be 0 to {MOST_SMOOTHING} rounds, not {self.smoothing}")
        if not 0 <= self.min_island <= 1:
            raise ValueError(f"--min-island must be a share from 0 to 1, not {self.min_island}")
        if self.texture is not None and not LEAST_TEXTURE <= self.texture <= MOST_TEXTURE:
            raise ValueError(
                f"--texture must be {LEAST_TEXTURE} to {MOST_TEXTURE} texels, not {self.texture}"
            )
        if self.mesh_preset == "ground" and (self.texture is not None or self.triangles is not None):
            raise ValueError("--mesh-preset ground is a plain rectangle: omit --texture and --triangles")
        if self.texture is not None and self.colors != "photos":
            raise ValueError("--texture shows the photos: it does not go with --colors " + self.colors)

    def with_preset(self) -> MeshOptions:
        """Return the options with those of the preset in place of what is as by default."""
        if self.texture is not None and self.triangles is None:
            return replace(self, triangles=TEXTURED_TRIANGLES).with_preset()
        if self.mesh_preset is None:
            return self
        if self.mesh_preset == "ground":
            resolution = COARSE_RESOLUTION if self.resolution == RESOLUTION else self.resolution
            return replace(self, resolution=resolution, colors="none")
        return replace(
            self,
            resolution=COARSE_RESOLUTION if self.resolution == RESOLUTION else self.resolution,
            triangles=self.triangles or COLLISION_TRIANGLES,
            watertight=True,
            colors="none" if self.colors == "photos" else self.colors,
        )


PLAIN_MESH = MeshOptions()


def files_beside(path: Path, *, textured: bool) -> tuple[Path, ...]:
    """Return what is written beside a mesh for its texture: a .glb holds it, a .obj names its files."""
    if not textured or path.suffix.lower() != ".obj":
        return ()
    return path.with_suffix(".mtl"), path.with_suffix(".png")


@dataclass(frozen=True)
class MeshTask:
    """Which model becomes a mesh, and where that goes.

    `path` is a run, a checkpoint or a file of splats; `scene` and `images` name its scene where it is another
    one than that of its training. What `trim` leaves out has no surface; its box is in the frame `box_frame`.
    """

    path: Path
    output: Path
    options: MeshOptions = PLAIN_MESH
    scene: Path | None = None
    images: str = ""
    upright: bool = False
    trim: Trim = KEEP_ALL
    box_frame: Frame | None = None  # None: the model's own

    @property
    def files(self) -> tuple[Path, ...]:
        """Return all files that are written."""
        beside = files_beside(self.output, textured=self.options.texture is not None)
        return self.output, self.report_file, *beside

    @property
    def report_file(self) -> Path:
        """Return where the report goes: beside the mesh, by its whole name."""
        return self.output.with_name(f"{self.output.name}.report.json")

"""What the command line asks of a video."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Route:
    """Where the camera of a video goes: one of --path, --orbit, --spiral.

    Args:
        path: A camera_path.json of the studio, nerfstudio or nerfview.
        path_scale: Multiply that file's positions by this; 10 for files that nerfview saved.
        orbit: Once around what the photographs look at, at the distance of their cameras.
        spiral: Wind through the room that the photographs' cameras took.
        scene: The scene, for --orbit and --spiral; a run and a checkpoint remember theirs.
        images: The scene's folder of photographs, where it is another one.
    """

    path: Path | None = None
    path_scale: float = 1.0
    orbit: bool = False
    spiral: bool = False
    scene: Path | None = None
    images: str = ""

    def check(self) -> None:
        """Raise ValueError unless just one way is chosen."""
        if (self.path is not None) + self.orbit + self.spiral != 1:
            raise ValueError("say where the camera goes: one of --path FILE, --orbit, --spiral")

"""Whether the model in the view has a sky, which then can be shown or hidden."""

from __future__ import annotations

from pathlib import Path

from splatstudio.checkpoints.checkpoint import config_of_checkpoint
from splatstudio.checkpoints.rank_parts import SHARD_NAME
from splatstudio.gui.state.controller import Controller


class SkyThere:
    """Knows it of one model at a time: the file of another one is read when that is shown."""

    def __init__(self, controller: Controller):
        self._controller = controller
        self._known: tuple[Path | None, bool] = (None, False)

    @property
    def there(self) -> bool:
        """Say whether the model in the view has learnt a sky."""
        path = self._controller.shown_path
        if path is None:
            return self._controller.project.config.sky.enabled
        if self._known[0] != path:
            self._known = (path, has_sky(path))
        return self._known[1]


def has_sky(path: Path) -> bool:
    """Say whether the model in a checkpoint or a file has a sky; no file of another program's has."""
    folder = path.parent if SHARD_NAME.fullmatch(path.name) else path
    if not (folder / "manifest.json").exists():
        return False
    try:
        return config_of_checkpoint(folder).sky.enabled
    except ValueError:  # damaged: who opens it says so
        return False

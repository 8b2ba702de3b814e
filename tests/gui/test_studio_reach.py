"""What two do at once in one browser, controls of what is not there, and what a photograph says of itself."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import viser
from conftest import blobs
from gui_parts import fake_camera

from splatstudio.checkpoints.checkpoint import save_checkpoint
from splatstudio.evaluation.lpips import load_lpips
from splatstudio.formats.ply import write_ply
from splatstudio.gaussians.trimming import Trim
from splatstudio.gui.panel import Page
from splatstudio.gui.state.stream import FrameSource, ModelState, Stream, Viewport, ViewSettings
from splatstudio.gui.tabs.photo_list import tile_html
from splatstudio.gui.tabs.view import ViewPanel
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import SkyConfig
from splatstudio.settings.config import TrainConfig
from splatstudio.train.trainer import Trainer


class Nothing(FrameSource):
    """A source without a model."""

    def model_state(self) -> ModelState:
        return ModelState(None, training=False)

    def render(self, view: int, camera: Any, options: Any) -> None:
        raise AssertionError("there is no model")

    def forget(self, view: int) -> None: ...


def test_what_two_change_at_once_both_holds() -> None:
    """A box of the View tab is ticked while the Export tab hides what is faint."""
    client = cast(viser.ClientHandle, type("Client", (), {"camera": fake_camera(), "client_id": 7})())
    stream = Stream(client, Nothing(), ViewSettings())
    faint = Trim(min_opacity=0.5)
    hide = Viewport(cast(Any, SimpleNamespace(on_client_connect=id, on_client_disconnect=id)), Nothing())
    hide._streams[7] = stream
    other = threading.Thread(target=hide.show_trim, args=(faint,))

    def in_the_middle(look: ViewSettings) -> ViewSettings:
        other.start()
        other.join(0.2)  # it cannot end before this has
        return replace(look, options=replace(look.options, splat_scale=0.5))

    stream.change(in_the_middle)
    other.join()
    stream.close()
    assert stream.look.options.trim == faint and stream.look.options.splat_scale == 0.5


def test_the_sky_can_be_hidden_where_there_is_one(page: Page, blob_scene: Scene, tmp_path: Path) -> None:
    controller: Any = page.controller
    object.__setattr__(page, "viewport", SimpleNamespace(photos=None, listen=lambda *_: None))
    panel = ViewPanel(page)

    def offered(path: Path | None, config: TrainConfig = TrainConfig()) -> bool:
        controller.shown_path = path
        controller.project = replace(controller.project, config=config)
        return panel._has_sky()

    wide = TrainConfig(sky=SkyConfig(enabled=True))
    assert offered(None, wide) and not offered(None)
    write_ply(tmp_path / "model.ply", blobs())
    assert not offered(tmp_path / "model.ply", wide), "a file of others has none"
    trainer = Trainer(blob_scene, wide)
    trainer.train_step()
    saved = save_checkpoint(tmp_path, trainer.checkpoint())
    trainer.close()
    assert offered(saved) and offered(next(saved.glob("rank*.safetensors")))
    (saved / "manifest.json").write_text("{")
    assert not offered(saved)


def test_a_photograph_tells_its_name_and_score() -> None:
    text = tile_html(
        "id", "a<b>.jpg", "data:,", figure="21.4 dB", color="red", test=True, bad=False, current=True
    )
    assert 'alt="a&lt;b&gt;.jpg, 21.4 dB, test photo"' in text and 'aria-pressed="true"' in text


def test_missing_weights_are_told_with_what_fetches_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("splatstudio.evaluation.lpips._found", lambda *_: None)
    load_lpips.cache_clear()
    with pytest.raises(ValueError, match=r"weights not found, put .*, or let splatstudio eval --fetch-lpips"):
        load_lpips("alex")

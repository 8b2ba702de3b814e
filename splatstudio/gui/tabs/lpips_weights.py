"""Which networks LPIPS is measured with, and the button that downloads their weights."""

from __future__ import annotations

import threading
from collections.abc import Callable

from splatstudio.evaluation.lpips import fetch_lpips, lacks_weights
from splatstudio.gui.panel import Page, Panel
from splatstudio.gui.state.status import Notice

NETWORKS: dict[str, tuple[str, ...]] = {
    "AlexNet": ("alex",),
    "VGG": ("vgg",),
    "Both": ("alex", "vgg"),
    "None": (),
}


class LpipsWeights(Panel):
    """The button that downloads the weights of LPIPS, where those of a chosen network are missing."""

    def __init__(self, page: Page, chosen: Callable[[], tuple[str, ...]]):
        """Offer the weights of the networks that are `chosen`."""
        super().__init__(page)
        self._chosen = chosen
        self._missing: tuple[str, ...] = ()
        self._busy = threading.Lock()
        hint = "230 MB for AlexNet, 530 MB for VGG16, from pytorch.org; kept for all runs of this user."
        button = self.button("Download weights", lambda _: self._download(), hint=hint)
        self.keep(
            button,
            visible=lambda: bool(self._missing),
            disabled=self._busy.locked,
            label=lambda: "Downloading weights …" if self._busy.locked() else "Download LPIPS weights",
        )

    def look(self) -> None:
        """Look for the weights of the networks that are chosen."""
        self._missing = tuple(name for name in self._chosen() if lacks_weights(name))

    def _download(self) -> None:
        if not self._busy.acquire(blocking=False):
            return  # another browser has pressed it
        try:
            self.page.changed(None)
            for name in self._missing:
                fetch_lpips(name)
            self.page.notify(Notice("Weights downloaded", "The next evaluation measures LPIPS."))
        finally:
            self._busy.release()
            self.look()

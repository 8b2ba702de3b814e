"""A browser's list of photographs: thumbnails with their error, the worst first; a click flies there."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Sequence

import viser

from splatstudio.gui.server.viser_private import element_id
from splatstudio.gui.state.photos import Errors, PhotoCache
from splatstudio.gui.theme import css
from splatstudio.scene.scene import Scene

PER_PAGE = 9
WORST, WORST_TEST, WORST_TRAINING, BY_NAME = ORDERS = (
    "Worst first",
    "Worst test photos",
    "Worst training photos",
    "By name",
)
SORT_SECONDS = 3.0  # between two sortings while the errors change
REST_SECONDS = 10.0  # without a sorting, after the user has done something


class PhotoList:
    """The list in one browser, PER_PAGE photographs at a time, however many there are.

    While a training goes on the errors change and the order with them, but not just after the user has done
    something in the list: a picture must not go away from under the mouse.
    """

    def __init__(
        self,
        gui: viser.GuiApi,
        scene: Scene,
        photos: PhotoCache,
        on_pick: Callable[[int], None],
        changed: Callable[[], None],
    ):
        """Call `on_pick` with a photograph that is clicked, `changed` when there is something to refresh."""
        self._scene, self._photos, self._changed = scene, photos, changed
        self._test = set(scene.test_indices)
        self._page = 0
        self._resort = True
        self._current: int | None = None
        self._sorted_by: Errors | None = None  # the errors that the order follows
        self._sort_due = 0.0
        self._order: list[int] = list(range(len(scene.views)))
        self._shown: list[int] = []
        self._sort = gui.add_dropdown(
            "Order",
            ORDERS,
            hint="By PSNR: of test photos in the last evaluation, of the others when last trained on.",
        )
        # The list's pictures are labels of these buttons, which themselves are not to be seen: a click on a
        # label presses its button, without any script in the page.
        self._buttons = [gui.add_button(f"Photo {i + 1}") for i in range(PER_PAGE)]
        self._sheet = gui.add_html("")
        self._pager = gui.add_button_group("Page", ("« First", "‹ Back", "More ›"))
        self._sort.on_update(self._reorder)
        self._pager.on_click(self._turn_page)
        for place, button in enumerate(self._buttons):
            self._connect(button, place, on_pick)

    def neighbour(self, index: int | None, step: int) -> int:
        """Return the photograph `step` places after `index` in the order of the list, round its end."""
        order = self._order or list(range(len(self._scene.views)))
        if index not in order:
            return order[0 if step > 0 else -1]
        return order[(order.index(index) + step) % len(order)]

    def show(self, current: int | None, *, turn: bool) -> None:
        """Mark the photograph whose camera the browser stands in, and with `turn` turn to its page."""
        if current != self._current:
            self._current = current
            self._keep_order()
        if turn and current in self._order:
            self._page = self._order.index(current) // PER_PAGE

    def sort_again(self) -> None:
        """Sort by the errors as they are now, at the next `refresh`."""
        self._resort = True

    def refresh(self, errors: Errors) -> None:
        """Draw the list; sort it anew where that is due."""
        now = time.monotonic()
        if self._resort or (errors is not self._sorted_by and now >= self._sort_due):
            self._resort = False
            self._order = self._sorted(errors)
            self._sorted_by, self._sort_due = errors, now + SORT_SECONDS
            # Who looks at a photograph keeps it in the list.
            if self._current in self._order and self._page > 0:
                self._page = self._order.index(self._current) // PER_PAGE
        self._draw(errors)

    def _keep_order(self) -> None:
        self._sort_due = time.monotonic() + REST_SECONDS

    def _connect(self, button: viser.GuiButtonHandle, place: int, on_pick: Callable[[int], None]) -> None:
        @button.on_click
        async def _(_: viser.GuiEvent) -> None:
            if place < len(self._shown):
                on_pick(self._shown[place])

    async def _reorder(self, _: viser.GuiEvent) -> None:
        self._page, self._resort = 0, True
        self._changed()

    async def _turn_page(self, event: viser.GuiEvent) -> None:
        pages = -(-len(self._order) // PER_PAGE)
        step = {"« First": -self._page, "‹ Back": -1, "More ›": 1}[event.target.value]
        self._page = min(max(self._page + step, 0), max(pages - 1, 0))
        self._keep_order()
        self._changed()

    def _sorted(self, errors: Errors) -> list[int]:
        everything = range(len(self._scene.views))
        if self._sort.value == BY_NAME:
            return list(everything)
        chosen: dict[str, Sequence[int]] = {
            WORST: everything,
            WORST_TEST: self._scene.test_indices,
            WORST_TRAINING: self._scene.train_indices,
        }
        return errors.worst_first(chosen[self._sort.value])

    def _draw(self, errors: Errors) -> None:
        start = self._page * PER_PAGE
        self._shown = self._order[start : start + PER_PAGE]
        colors, bad = errors.colors(), errors.bad
        tiles = []
        for button, index in zip(self._buttons, self._shown, strict=False):
            picture = self._photos.thumbnail(index, self._changed)
            tiles.append(
                tile_html(
                    element_id(button),
                    self._scene.views[index].name,
                    picture.uri if picture else "",
                    figure=decibels(errors, index),
                    color=css(colors[index]),
                    test=index in self._test,
                    bad=bool(bad[index]),
                    current=index == self._current,
                )
            )
        ids = ", ".join(f'div:has(> [id="{element_id(button)}"])' for button in self._buttons)
        last = start + len(self._shown)
        total = f"{start + 1}–{last} of {len(self._order):,}" if self._shown else "No photographs"
        num_bad = int(bad[self._order].sum()) if self._order else 0
        warning = f' · <span class="ss-bad">{num_bad} much worse than the others</span>' if num_bad else ""
        self._sheet.content = (
            f"<style>{ids} {{ display: none }}</style>"
            f'<div class="ss-photos" data-splatstudio="photos">{"".join(tiles)}</div>'
            f'<div class="ss-note">{total}{warning}</div>'
        )


def decibels(errors: Errors, index: int) -> str:
    """Return a photograph's PSNR as text."""
    return f"{errors.psnr[index]:.1f} dB" if errors.known[index] else "–"


def tile_html(
    button_id: str, name: str, uri: str, *, figure: str, color: str, test: bool, bad: bool, current: bool
) -> str:
    """Return a photograph of the list: a label whose click presses the button `button_id`.

    The page's own script lets Enter and Space click on the one that has the keyboard.
    """
    notes = [*(["test photo"] if test else []), *(["bad"] if bad else [])]
    said, name = html.escape(", ".join([name, figure, *notes])), html.escape(name)
    picture = f'<img src="{uri}" alt="{said}">' if uri else ""
    badge = '<span class="badge">bad</span>' if bad else ""
    mark = '<span class="ss-muted">test</span>' if test else ""
    return (
        f'<label class="ss-photo" for="{html.escape(button_id)}" title="{name}" data-photo="{name}"'
        f' role="button" tabindex="0" aria-label="{said}" aria-pressed="{str(current).lower()}">'
        f'<div class="picture">{picture}{badge}</div><div class="color" style="background:{color}"></div>'
        f'<div class="text"><div>{name}</div><div><span>{figure}</span>{mark}</div></div></label>'
    )

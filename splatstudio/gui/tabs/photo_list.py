"""A browser's list of photographs: thumbnails with their error, the worst first; a click flies there."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Sequence

import viser

from splatstudio.gui.server.viser_private import element_id
from splatstudio.gui.state.photo_cache import PhotoCache
from splatstudio.gui.state.photo_psnr import Errors
from splatstudio.gui.theme import ACCENT, MUTED, css
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
BAD = "#eb4046"


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
    ):
        self._scene = scene
        self._photos = photos
        self._test = set(scene.test_indices)
        self._page = 0
        self._stale = True  # whether something is to be drawn anew
        self._resort = True
        self._current: int | None = None
        self._sorted_by: Errors | None = None  # the errors that the order follows
        self._sort_due = 0.0
        self._order: list[int] = list(range(len(scene.views)))
        self._shown: list[int] = []
        self._text = ""
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
            self._current, self._stale = current, True
            self._keep_order()
        if turn and current in self._order:
            self._page = self._order.index(current) // PER_PAGE

    def sort_again(self) -> None:
        """Sort by the errors as they are now, at the next `refresh`."""
        self._resort = True

    def refresh(self, errors: Errors) -> None:
        """Draw the list anew if anything in it has changed."""
        now = time.monotonic()
        if errors is not self._sorted_by and now >= self._sort_due:
            self._resort = True
        if self._resort:
            self._resort, self._stale = False, True
            self._order = self._sorted(errors)
            self._sorted_by, self._sort_due = errors, now + SORT_SECONDS
            # Who looks at a photograph keeps it in the list.
            if self._current in self._order and self._page > 0:
                self._page = self._order.index(self._current) // PER_PAGE
        if self._stale:
            self._stale = False
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

    async def _turn_page(self, event: viser.GuiEvent) -> None:
        pages = -(-len(self._order) // PER_PAGE)
        step = {"« First": -self._page, "‹ Back": -1, "More ›": 1}[event.target.value]
        self._page = min(max(self._page + step, 0), max(pages - 1, 0))
        self._stale = True
        self._keep_order()

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

    def _picture_ready(self) -> None:
        self._stale = True

    def _draw(self, errors: Errors) -> None:
        start = self._page * PER_PAGE
        self._shown = self._order[start : start + PER_PAGE]
        colors, bad = errors.colors(), errors.bad
        tiles = []
        for button, index in zip(self._buttons, self._shown, strict=False):
            picture = self._photos.thumbnail(index, self._picture_ready)
            tiles.append(
                tile_html(
                    element_id(button),
                    self._scene.views[index].name,
                    picture.uri if picture else "",
                    figure=decibels(errors, index),
                    color=css(tuple(int(c) for c in colors[index])),  # type: ignore[arg-type]
                    test=index in self._test,
                    bad=bool(bad[index]),
                    current=index == self._current,
                )
            )
        ids = ", ".join(f'div:has(> [id="{element_id(button)}"])' for button in self._buttons)
        last = start + len(self._shown)
        total = f"{start + 1}–{last} of {len(self._order):,}" if self._shown else "No photographs"
        num_bad = int(bad[self._order].sum()) if self._order else 0
        warning = (
            f' · <span style="color:{BAD}">{num_bad} much worse than the others</span>' if num_bad else ""
        )
        text = (
            f"<style>{ids} {{ display: none }}</style>"
            '<div data-splatstudio="photos" style="display:grid; grid-template-columns:repeat(3, 1fr);'
            f' gap:6px; margin:0 0.6em 0.4em">{"".join(tiles)}</div>'
            f'<div style="margin:0 0.7em 0.5em; font-size:12px; color:{MUTED}">{total}{warning}</div>'
        )
        # The pictures are in the text: it is sent only when something in it is new.
        if text != self._text:
            self._text = text
            self._sheet.content = text


def decibels(errors: Errors, index: int) -> str:
    """Return a photograph's PSNR as text."""
    return f"{errors.psnr[index]:.1f} dB" if errors.known[index] else "–"


def tile_html(
    button_id: str, name: str, uri: str, *, figure: str, color: str, test: bool, bad: bool, current: bool
) -> str:
    """Return a photograph of the list: a label whose click presses the button `button_id`.

    The page's own script lets Enter and Space click on the one that has the keyboard.
    """
    edge = css(ACCENT) if current else "rgba(255,255,255,0.10)"
    said = html.escape(
        ", ".join([name, figure, *(["test photo"] if test else []), *(["bad"] if bad else [])])
    )
    picture = (
        f'<img src="{uri}" alt="{said}" style="width:100%; height:100%; object-fit:cover; display:block">'
        if uri
        else ""
    )
    badge = (
        f'<span style="position:absolute; top:3px; left:3px; background:{BAD}; color:#fff; font-size:10px;'
        ' font-weight:600; line-height:14px; padding:0 4px; border-radius:3px">bad</span>'
        if bad
        else ""
    )
    mark = f'<span style="color:{MUTED}">test</span>' if test else ""
    return (
        f'<label for="{html.escape(button_id)}" title="{html.escape(name)}" data-photo="{html.escape(name)}"'
        f' role="button" tabindex="0" aria-label="{said}" aria-pressed="{str(current).lower()}"'
        f' style="cursor:pointer; min-width:0; border-radius:5px; overflow:hidden;'
        f' border:2px solid {edge}; background:rgba(0,0,0,0.25)">'
        f'<div style="position:relative; aspect-ratio:4/3; background:rgba(255,255,255,0.04)">'
        f"{picture}{badge}</div>"
        f'<div style="height:3px; background:{color}"></div>'
        '<div style="padding:2px 5px 3px; font-size:11px; line-height:14px">'
        f'<div style="overflow:hidden; text-overflow:ellipsis; white-space:nowrap">{html.escape(name)}</div>'
        f'<div style="display:flex; justify-content:space-between"><span>{figure}</span>{mark}</div>'
        "</div></label>"
    )

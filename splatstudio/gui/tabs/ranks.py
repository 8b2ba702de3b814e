"""The Devices tab of a training elsewhere: a row a rank, as each says of itself."""

from __future__ import annotations

import html

from splatstudio.gui.panel_context import Page, Panel
from splatstudio.gui.tabs.devices import balance_html, milliseconds
from splatstudio.gui.theme import MUTED
from splatstudio.runtime.messages import Event, RankFigures, figures_after


class RanksPanel(Panel):
    """What each rank has to do, and where it runs."""

    def __init__(self, page: Page):
        self._told: tuple[RankFigures, ...] = ()
        self._shown: object = None
        self._rows = page.server.gui.add_html("", order=0.0)
        self.refresh()

    def follow(self, event: Event) -> None:
        """Take in what each rank has to do."""
        self._told = figures_after(event, self._told)

    def refresh(self) -> None:
        """Show figures that are new."""
        told = self._told
        if told is not self._shown:
            self._shown = told
            self._rows.content = ranks_html(told) + balance_html(told)


def ranks_html(told: tuple[RankFigures, ...]) -> str:
    """Return a row a rank."""
    if not told:
        text = "The ranks have not told of themselves yet; they do while they train."
        return f'<div style="padding:6px 10px;font-size:12px;color:{MUTED}">{text}</div>'
    return "".join(
        '<div data-splatstudio="rank" style="padding:3px 10px;font-size:12px;'
        'font-variant-numeric:tabular-nums">'
        f'<b style="font-weight:600">Rank {rank.rank}</b> '
        f'<span style="color:{MUTED}">{html.escape(rank.host)}</span><br>'
        f"{rank.num_gaussians:,} splats · {milliseconds(rank.step_seconds, 3)} ms a step, "
        f"{milliseconds(rank.wait_seconds, 2)} ms of it waiting</div>"
        for rank in told
    )

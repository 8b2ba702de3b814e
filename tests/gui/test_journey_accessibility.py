"""For who sees little, or has no mouse: what axe-core finds, the keyboard, light colors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from start_visitor import ANY_PORT
from studio_page import OPENED, PAGE_TEST, TIMEOUT, Screen

from splatstudio.cli.start import start_content
from splatstudio.files.recent import remember
from splatstudio.gui.server.start_page import StartPage

pytestmark = PAGE_TEST
Open = Callable[..., Screen]
THEMES = ("dark", "light")
TABS = ("Train", "View", "Evaluate", "Render", "Export", "Log")

# What viser draws, and a page around it cannot mend: a rule of axe, a part of the markup, and why.
VISERS = [("region", 'role="tooltip"', "a hint stands at the end of the page, and its control names it")]

FOUND = """async rules => (await axe.run({resultTypes: ["violations"], ...(rules ? {runOnly: rules} : {})}))
  .violations.flatMap(({id, nodes}) => nodes.map(node => [id, node.html, node.failureSummary]))"""
# What another theme may break: names and roles are the same in all.
OF_COLORS = ["color-contrast", "link-in-text-block"]

# The least contrast of the letters of tabs, which axe does not measure: their color fades.
CONTRAST_OF_TABS = """() => {
  const parts = color => color.match(/[\\d.]+/g).map(Number);
  const light = ([red, green, blue]) => [red, green, blue].map(each => each / 255)
    .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
    .reduce((sum, each, channel) => sum + [0.2126, 0.7152, 0.0722][channel] * each, 0);
  const ground = element => {
    for (let each = element; each; each = each.parentElement) {
      const color = parts(getComputedStyle(each).backgroundColor);
      if ((color[3] ?? 1) > 0) return color;
    }
    return [255, 255, 255];
  };
  const tabs = [...document.querySelectorAll("[role=tab]")].filter(each => each.checkVisibility());
  return Math.min(...tabs.map(tab => {
    const both = [parts(getComputedStyle(tab).color), ground(tab)].map(light);
    return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
  }));
}"""

# Every button and field that can be used, without those of a group, of which the keyboard reaches one.
USABLE = """() => [...document.querySelectorAll("button, input, select, [role=slider], [role=button]")]
  .filter(each => each.checkVisibility({visibilityProperty: true}) && !each.disabled && each.type !== "hidden"
    && !each.matches("[role=tab], [type=radio]") && each.tabIndex >= 0)"""

# Where the camera of a page stands, and whether it stands at a place.
PLACE = "(() => window.__viserMutable?.cameraControl && window.__viserMutable.camera.position.toArray())()"
STANDS = f"""([x, y, z]) => {{
  const now = {PLACE};
  return now && Math.hypot(now[0] - x, now[1] - y, now[2] - z) < 1e-3;
}}"""


def violations(page: Any, rules: list[str] | None = None) -> list[str]:
    """Return what axe finds on a page by these rules, None: all, without what is viser's."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    found = [
        (rule, markup, told)
        for rule, markup, told in page.evaluate(FOUND, rules)
        if not any(rule == each and part in markup for each, part, _ in VISERS)
    ]
    return [f"{rule}: {markup[:200]}: {told}" for rule, markup, told in found]


@pytest.fixture
def start_page(saved_run: Path, tmp_path: Path, own_list: Path, monkeypatch: Any) -> Iterator[StartPage]:
    monkeypatch.chdir(tmp_path)
    assert remember(tmp_path) == ""
    page = StartPage(ANY_PORT, start_content)
    yield page
    page.close()


def test_the_start_page_can_be_read_and_used_without_a_mouse(
    browser: Any, start_page: StartPage, saved_run: Path
) -> None:
    tab = browser.new_page()
    tab.set_default_timeout(1000 * TIMEOUT)
    for theme in THEMES:
        tab.goto(start_page.url)
        tab.get_by_label("Colors").select_option(theme)
        tab.locator(f"html[data-ss-theme={theme}]").wait_for(state="attached")
        for path in ("/", "/browse", f"/run?folder={saved_run}", f"/compare?folder={saved_run}", "/nowhere"):
            tab.goto(start_page.url.partition("/?")[0] + path)
            assert tab.evaluate("document.documentElement.dataset.ssTheme") == theme, "it is remembered"
            assert violations(tab, None if theme == THEMES[0] else OF_COLORS) == [], (theme, path)
    tab.evaluate("document.querySelector('main').append(document.createElement('button'))")
    assert len(violations(tab)) == 1, "it would be found"
    tab.close()


def opened(screen: Screen) -> None:
    """Wait until a page that was loaded anew is there."""
    screen.page.get_by_role("tab", name="Log").wait_for()
    screen.page.wait_for_function(OPENED)


def open_folders(screen: Screen) -> None:
    """Open all folders of a tab that are closed, with the keyboard alone."""
    closed = screen.page.locator(".ss-title[aria-expanded=false]").locator("visible=true")
    screen.page.wait_for_function("!document.querySelector('.tabler-icon-chevron-down:not([role] > *)')")
    while (num := closed.count()) > 0:
        closed.first.press("Enter")
        screen.wait(lambda num=num: closed.count() != num, "a folder opens")


def test_the_studio_can_be_read_and_used_without_a_mouse_in_light_and_dark_colors(
    open_page: Open, saved_run: Path
) -> None:
    screen = open_page(saved_run, width=1160, height=700)
    is_now(screen.page, "dark")
    every_tab_can_be_read_and_its_fields_have_names(screen)
    the_keyboard_reaches_every_control_of_a_tab(screen)
    a_list_that_the_keyboard_comes_to_opens_when_it_is_asked_to(screen)
    colors(screen).select_option("light")
    is_now(screen.page, "light")
    first = a_page_that_is_loaded_again_stands_where_it_stood(screen)
    is_now(screen.page, "light")
    every_tab_can_be_read_and_its_fields_have_names(screen, OF_COLORS)
    a_theme_is_that_of_the_system_or_of_the_browser(screen)
    who_comes_later_stands_where_all_begin(screen, first)
    is_now(screen.page, "dark")
    assert screen.errors == []


def is_now(page: Any, theme: str) -> None:
    """See that a page has the colors of a theme."""
    page.wait_for_function(
        "wanted => document.documentElement.dataset.mantineColorScheme === wanted", arg=theme
    )
    ground = page.evaluate("getComputedStyle(document.querySelector('.mantine-Paper-root')).backgroundColor")
    red = int(ground.partition("(")[2].partition(",")[0])
    assert (red > 200) == (theme == "light"), ground


def colors(screen: Screen) -> Any:
    """Return the list of themes, which is to be seen."""
    screen.tab("View")
    found = screen.page.get_by_label("Colors").and_(screen.page.locator("select"))  # not "Mesh colors"
    if not found.is_visible():
        screen.page.get_by_role("button", name="This browser").click()
    return found


def every_tab_can_be_read_and_its_fields_have_names(screen: Screen, rules: list[str] | None = None) -> None:
    """Look at all tabs, with their folders open, by these rules of axe-core, None: all."""
    for name in TABS:
        screen.tab(name)
        screen.page.get_by_role("tab", name=name, selected=True).wait_for()
        open_folders(screen)
        screen.wait(lambda: screen.page.evaluate(CONTRAST_OF_TABS) >= 4.5, "the tabs can be read")
        # What is drawn anew meanwhile gets its names a moment later.
        found: list[str] = []

        def is_fine(found: list[str] = found) -> bool:
            found[:] = violations(screen.page, rules)
            return not found

        screen.wait(is_fine, lambda name=name, found=found: f"{name} without: {found}")


def the_keyboard_reaches_every_control_of_a_tab(screen: Screen) -> None:
    """Go through the Export tab with the tabulator alone."""
    page = screen.page
    screen.tab("Export")
    open_folders(screen)
    num = page.evaluate(f"window.usable = ({USABLE})(), window.usable.length")
    assert num > 8
    page.evaluate("window.reached = new Set(); document.activeElement?.blur()")
    for _ in range(3 * num):
        page.keyboard.press("Tab")
        page.evaluate("window.reached.add(document.activeElement)")
    missed = page.evaluate(
        "window.usable.filter(each => !window.reached.has(each)).map(each => each.outerHTML)"
    )
    assert missed == []


def a_list_that_the_keyboard_comes_to_opens_when_it_is_asked_to(screen: Screen) -> None:
    """Come to a list by the tabulator, which stays closed, and open it by an arrow key."""
    page = screen.page
    screen.tab("Render")
    open_folders(screen)
    field = page.get_by_label("Format", exact=True).locator("visible=true").first
    field.scroll_into_view_if_needed()

    def is_open() -> bool:
        return field.get_attribute("aria-expanded") == "true"

    page.get_by_role("tab", name="Render").focus()
    screen.wait(
        lambda: page.keyboard.press("Tab") or field.evaluate("e => e === document.activeElement"), "there"
    )
    screen.wait(lambda: not is_open(), "nothing lies over what comes next")
    page.keyboard.press("ArrowDown")
    screen.wait(is_open, "the list opens")
    page.keyboard.press("Escape")


def a_page_that_is_loaded_again_stands_where_it_stood(screen: Screen) -> list[float]:
    """Load a page again after its camera was moved and tabs were chosen; return where it stood at first."""
    page = screen.page
    first = page.evaluate(PLACE)
    moved = [1.5 * value for value in first]
    page.evaluate("to => window.__viserMutable.cameraControl.setLookAt(...to, 0, 0.1, 0, false)", moved)
    screen.tab("Export")
    screen.tab("Log")
    page.reload()
    page.wait_for_function(STANDS, arg=moved)
    for name in ("Export", "Log"):
        page.get_by_role("tab", name=name, selected=True).wait_for()
    opened(screen)
    return first


def a_theme_is_that_of_the_system_or_of_the_browser(screen: Screen) -> None:
    """Change the system's theme, which counts where it was chosen, and look from another browser."""
    page, choice = screen.page, colors(screen)
    page.emulate_media(color_scheme="dark")
    is_now(page, "light")
    screen.wait(lambda: choice.input_value() == "light", "the list shows it")
    choice.select_option("system")
    is_now(page, "dark")
    page.emulate_media(color_scheme="light")
    is_now(page, "light")
    other = page.context.browser.new_page()
    other.goto(screen.studio.url)
    other.wait_for_function("document.documentElement.dataset.mantineColorScheme === 'dark'")
    other.close()
    choice.select_option("dark")
    is_now(page, "dark")


def who_comes_later_stands_where_all_begin(screen: Screen, first: list[float]) -> None:
    """Open the studio's address in a page that stood elsewhere."""
    screen.page.goto(screen.studio.url)
    opened(screen)
    screen.page.wait_for_function(STANDS, arg=first)
    screen.page.get_by_role("tab", name="Train", selected=True).wait_for()

"""What the viewport takes from viser beyond its public interface; a test fails when viser changes it.

The gate's own dealings with viser are in `gate/`, which tests itself at each start.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import viser
from viser import _messages

from splatstudio.gui.server.connection import STILL_HERE


def on_failed_callback(server: viser.ViserServer, tell: Callable[[BaseException], None]) -> None:
    """Call `tell` with what ends a callback of the page, in its thread; viser itself prints it and no more.

    That is every callback of the page and of its browsers that is no coroutine.
    """
    pool = server._thread_executor
    submit = pool.submit

    def submit_and_tell(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = submit(function, *args, **kwargs)
        future.add_done_callback(tell_of)
        return future

    def tell_of(future: Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            tell(error)

    pool.submit = submit_and_tell


def push_background_jpeg(client: viser.ClientHandle, jpeg: bytes) -> None:
    """Show encoded JPEG bytes behind the scene in one browser.

    The public call encodes by itself, at 4-6 ms a frame instead of 1.
    """
    message = _messages.BackgroundImageMessage(format="jpeg", rgb_data=jpeg, depth_data=None)
    client.scene._websock_interface.queue_message(message)
    client.flush()


def element_id(handle: viser.GuiButtonHandle) -> str:
    """Return the id that a button's element has in the page, by which a label can name it."""
    return handle._impl.uuid


def show_node(client: viser.ClientHandle, name: str, visible: bool) -> None:
    """Show or hide a node of the shared scene in one browser only."""
    message = _messages.SetSceneNodeVisibilityMessage(name, visible)
    client.scene._websock_interface.queue_message(message)


# A page that connects again gets both once more, and keeps what it has: each looks whether it is there.
# A box that was ticked and a list that was chosen from keep the keyboard, and viser gives no commands then.
# Only after a click (detail > 0): who works with the keyboard stays where he is.
_RELEASE_KEYS = """
if (!window.splatstudioReleasesKeys) document.addEventListener("click", event => {
  const target = event.target;
  const chosen = target.closest?.("[role=option]") || target.matches?.("input[type=checkbox]");
  // At once, and again after a list that closes has taken the focus back.
  if (event.detail > 0 && chosen)
    for (const wait of [0, 150]) setTimeout(() => document.activeElement?.blur(), wait);
}, true);
window.splatstudioReleasesKeys = true;
"""


# What the page says of itself in the browser's tab, and what viser draws twice: a second handle of a dock.
# A dock's scroll bar lies over the right edge of its buttons unless it is thin.
# Two buttons of viser's are pictures alone, without a name for who hears the page.
# A notice ends with a path, which has no spaces to break it at: its end would be cut off.
_DRESS_PAGE = """
if (!window.splatstudioDressed) {
  window.splatstudioDressed = true;
  const style = document.createElement("style");
  style.textContent = "[data-dock-griphandle] { display: none !important }"
    + " .mantine-Notification-description { overflow-wrap: anywhere }"
    + " .mantine-ScrollArea-scrollbar[data-orientation=vertical] { width: 6px !important;"
    + " padding: 0 !important }"
    + " [data-photo]:focus-visible { outline: 2px solid white; outline-offset: 1px }";
  document.head.append(style);
  setInterval(() => {
    const text = name => document.querySelector(`[data-splatstudio="${name}"]`)?.textContent ?? "";
    const title = [text("name"), text("state")].filter(Boolean).join(" · ");
    document.title = title ? `${title} – splatstudio` : "splatstudio";
    for (const [icon, name] of [["list-search", "All commands"], ["adjustments", "Options of the viewer"]])
      for (const button of document.querySelectorAll(`button:not([aria-label]):has(.tabler-icon-${icon})`))
        button.setAttribute("aria-label", name);
  }, 1000);
}
"""


# viser's camera moves with the arrow keys wherever the keyboard is, but for fields of text: also while a
# slider is moved, or a tab or an option is chosen with them.
_KEEP_ARROWS = """
if (!window.splatstudioKeepsArrows) for (const kind of ["keydown", "keyup"])
  document.body.addEventListener(kind, event => {
    const control = event.target.closest?.("[role=slider], [role=tab], [role=option], input");
    if (control && event.key.startsWith("Arrow")) event.stopPropagation();
  });
window.splatstudioKeepsArrows = true;
"""

# viser greys its controls out when the studio is gone, without a word. A studio that was started anew has
# another address, and lets this page in no more. A line that is cut may let a question wait for minutes.
_SAY_LOST = """
if (!window.splatstudioWatches) {
  window.splatstudioWatches = true;
  let missed = 0, told = null;
  const say = text => {
    if (text && !told) {
      told = document.createElement("div");
      told.setAttribute("role", "alert");
      told.style.cssText = "position:fixed;z-index:9999;top:12px;left:50%;transform:translateX(-50%);"
        + "max-width:min(520px,90vw);padding:10px 14px;border-radius:6px;background:#4a2026;color:#ffd9d9;"
        + "font:13px/1.45 system-ui,sans-serif";
      document.body.append(told);
    }
    if (told && !text) { told.remove(); told = null; }
    if (told && told.textContent !== text) told.textContent = text;
  };
  setInterval(async () => {
    if (document.hidden) return;
    const patience = AbortSignal.timeout(20000);
    const answer = await fetch("PLACE", {cache: "no-store", signal: patience}).catch(() => null);
    await answer?.text?.().catch(() => null);  // or the browser counts the request as one that failed
    missed = answer?.ok ? 0 : missed + 1;
    say(missed < 2 ? "" : answer?.status === 403
      ? "The studio was started anew: open the address that it has printed, and close this page."
      : "No connection to the studio. What was saved is safe. If the studio was closed, start it again and "
        + "open the address that it prints; if only the line is cut, this page goes on by itself.");
  }, 2500);
}
""".replace("PLACE", STILL_HERE)


# The photographs of the list are labels, which have no keys of their own. The list is drawn anew when one is
# chosen or a score has changed, and the keyboard stays at the photograph where it was.
_PRESS_PHOTOS = """
if (!window.splatstudioPressesPhotos) {
  window.splatstudioPressesPhotos = true;
  let last = null;
  const photo = event => event.target.closest?.("[data-photo]") ?? null;
  document.addEventListener("keydown", event => {
    if (!photo(event) || !["Enter", " "].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    if (!event.repeat) photo(event).click();
  }, true);
  document.addEventListener("focusin", event => { last = photo(event); }, true);
  document.addEventListener("pointerdown", () => { last = null; }, true);
  setInterval(() => {
    if (!last || last.isConnected || document.activeElement !== document.body) return;
    const same = each => each.dataset.photo === last.dataset.photo;
    last = [...document.querySelectorAll("[data-photo]")].find(same) ?? null;
    last?.focus({focusVisible: true});
  }, 100);
}
"""

# Both docks leave little of a narrow window: there they are folded at first, the one at the left before that
# with the buttons. In a window as narrow as a phone viser lays the dock over the picture, at its right half.
_FIT_NARROW = """
if (!window.splatstudioFits) {
  window.splatstudioFits = true;
  const style = document.createElement("style");
  const sheet = '.mantine-Paper-root[style*="position: fixed"][style*="max-height: 60%"]';
  style.textContent = `@media (max-width: 36em) { ${sheet} { width: 100% !important;`
    + ` max-height: 48% !important } ${sheet} .mantine-ScrollArea-content > div { width: 100% !important } }`;
  document.head.append(style);
  let width = Infinity, looked = 0;
  const fit = () => {
    for (const [side, least] of [["left", 1100], ["right", 720]])
      if (innerWidth < least && width >= least)
        document.querySelector(`[data-dock-region-collapse=${side}][aria-expanded=true]`)?.click();
    width = innerWidth;
    document.activeElement?.blur();  // a folded dock takes the keyboard
  };
  const docked = setInterval(() => {
    if (!document.querySelector("[data-dock-region-collapse=left]") && ++looked < 100) return;
    clearInterval(docked);
    fit();
    addEventListener("resize", fit);
  }, 100);
}
"""


# A chart that is made, or gets other ranges, before it is laid out or in a tab not shown finds no room
# for the numbers of its x axis, and now and then does not look again when it has some.
_NUMBER_AXES = """
if (!window.splatstudioNumbersAxes) {
  window.splatstudioNumbersAxes = true;
  setInterval(() => {
    for (const {chart} of Object.values(window.__viserTestpoints?.uplots ?? {}))
      if (chart.width > 0 && !(chart.axes[0]._found?.[1] > 0)) chart.redraw(false, true);
  }, 250);
}
"""


PAGE_SCRIPTS = (
    _DRESS_PAGE,
    _RELEASE_KEYS,
    _KEEP_ARROWS,
    _SAY_LOST,
    _PRESS_PHOTOS,
    _FIT_NARROW,
    _NUMBER_AXES,
)


def dress_page(client: viser.ClientHandle) -> None:
    """Give a browser's page what viser's own lacks.

    Its tab tells what is open and how it stands, a dock has one handle, hotkeys work again once a box has
    been ticked or an option chosen with the mouse, the arrow keys of a control do not move the camera, and
    the page says so when the studio is gone, photographs of the list are pressed by keys, docks leave room
    for the picture in a narrow window, and the axes of all charts have numbers.
    """
    for source in PAGE_SCRIPTS:
        client.gui._websock_interface.queue_message(_messages.RunJavascriptMessage(source=source))

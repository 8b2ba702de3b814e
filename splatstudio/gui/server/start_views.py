"""What the start page looks like: its front, and the folders of this machine. Only a drop needs a script."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import urlencode

from splatstudio.error_text import as_sentence
from splatstudio.files.run_folder import LONGEST_NAME, RunContent
from splatstudio.gui.amounts import counted, size
from splatstudio.gui.server.dropped_files import FOLDER as DROPS
from splatstudio.gui.server.dropped_files import MOST_BYTES, MOST_FILES
from splatstudio.gui.server.folder_listing import MOST_NAMES, MOST_SHOWN, Bounds, FolderEntry, FolderListing
from splatstudio.gui.server.page_files import THEME, page_of

BROWSE = "/browse"
THUMBNAIL = "/thumbnail"
RUN = "/run"
COMPARE = "/compare"
DROP = "/drop"
SCRIPT = "/start.js"
CANCEL = "cancel"  # what a form of the page on which something is opened asks for
_PICTURED = ("Run", "Scene", "Photos", "Video")


@dataclass(frozen=True)
class Entry:
    """What can be opened with one click."""

    path: Path
    detail: str = ""
    is_run: bool = False  # can be renamed and deleted


@dataclass(frozen=True)
class StartContent:
    """What the page offers: lists of entries under their titles, the demo, and where relative paths begin.

    `named`: further folders that may be browsed, as the command or earlier ones were given them.
    """

    lists: Sequence[tuple[str, Sequence[Entry]]]
    demo: Path
    folder: Path
    named: Sequence[Path] = ()

    @property
    def bounds(self) -> Bounds:
        """Return what may be browsed: from the folder where the command was started, and what was named."""
        return Bounds.around((self.folder, *self.named))


@dataclass(frozen=True)
class Told:
    """What the page says first: a sentence, what may have been meant, what can be installed for it."""

    sentence: str = ""
    instead: Sequence[Entry] = ()
    installs_for: Path | None = None
    good: bool = False  # it tells of what was done, not of what failed
    typed: str = ""  # what could not be opened


def shown_by(name: str, key: str, paths: Iterable[Path]) -> Path | None:
    """Return which of the paths on a page has the picture of this name, None where none has."""
    names = [(path, hmac.compare_digest(_thumbnail(path, key), name)) for path in paths]
    return next((path for path, is_it in names if is_it), None)


def in_folder(name: str, path: str, key: str) -> Path | None:
    """Return a path that this page has listed in a folder under this name of its picture; else None."""
    place = Path(path)
    return place if hmac.compare_digest(_thumbnail(place, key), name) else None


def front_page(content: StartContent, key: str, told: Told, comparable: Callable[[Path], bool]) -> str:
    """Return the start page; `key` goes into its forms, `comparable` says of which runs there are others."""
    offered = [("The scenes there", told.instead), *content.lists]
    lists = "".join(_list(title, entries, key, comparable) for title, entries in offered if entries)
    front = page_of(
        "start_front.html",
        told=_sentence(told) + _install_button(told.installs_for, key),
        key=key,
        typed=escape(told.typed),
        lists=lists,
        demo=escape(str(content.demo)),
        folder=escape(str(content.folder)),
        drops=escape(str(content.folder / DROPS)),
        most=f"{MOST_BYTES // 10**9} GB",
        endpoint=DROP,
        files=MOST_FILES,
    )
    return _page("splatstudio", front)


def run_page(
    content: RunContent, key: str, reason: str | None, typed: str | None = None, refused: str = ""
) -> str:
    """Return the page on which a run is renamed or deleted; with a `reason` it cannot be deleted.

    `refused` says why it did not get the name that was `typed`.
    """
    name = content.path.name
    facts = [
        ("Folder", str(content.path)),
        ("Scene", "not known" if content.scene is None else str(content.scene)),
    ]
    facts.append(("Last saved step", "none" if content.step is None else f"{content.step:,}"))
    held = size(content.num_bytes) if content.whole else f"more than {size(content.num_bytes)}"
    facts.append(("Size", held))
    for part, num, total in content.parts:
        facts.append((f"{part}/", f"{counted(num, 'file')}, {size(total)}"))
    rows = "".join(f"<div><dt>{escape(what)}</dt><dd>{escape(text)}</dd></div>" for what, text in facts)
    given = f'{_key(key)}<input type="hidden" name="folder" value="{escape(str(content.path))}">'
    told = f'<p class="told" role="alert" id="refused">{escape(refused)}</p>' if refused else ""
    wrong = ' autofocus aria-invalid="true" aria-describedby="refused"' if refused else ""
    shown = escape(name if typed is None else typed)
    rename = (
        f'<h2><label for="name">Rename</label></h2>{told}<form action="{RUN}" class="field">{given}'
        f'<input type="text" id="name" name="name" required maxlength="{LONGEST_NAME}" value="{shown}"{wrong}'
        ' autocomplete="off" spellcheck="false"><button name="do" value="rename">Rename</button></form>'
    )
    if reason is not None:
        delete = f'<p class="told">{escape(as_sentence(reason))}</p>'
    else:
        delete = (
            "<p>All of the above goes, and cannot be brought back: models, scores, exports and renders in"
            " this folder. The photos stay, and so does all that lies elsewhere.</p>"
            f'<form action="{RUN}" class="deeds">{given}<button name="do" value="delete" class="danger">'
            "Delete this run</button></form>"
        )
    start = '<nav><a href="/">Start page</a></nav>'
    told = f'{start}<h1>{escape(name)}</h1><p class="hint">A run</p><dl class="rows">{rows}</dl>'
    return _page(f"{name} – splatstudio", f"{told}{rename}<h2>Delete</h2>{delete}")


def compare_page(run_dir: Path, others: Sequence[Entry], key: str) -> str:
    """Return the page on which a second run is chosen, to be opened beside a first one."""
    name = escape(run_dir.name)
    start = '<nav><a href="/">Start page</a></nav>'
    hint = "The first stays at the right of the line in the view; scores and curves are in the tab Evaluate."
    head = f'{start}<h1>Compare {name}</h1><p class="hint">{hint}</p><h2>With</h2>'
    if not others:
        sentence = "No other run with a saved model is on the start page or beside this one."
        return _page("Compare – splatstudio", f'{head}<p class="hint">{sentence}</p>')
    given = f'{_key(key)}<input type="hidden" name="open" value="{escape(str(run_dir))}">'
    rows = "".join(
        f'<li class="row">{_picture(entry, key)}<button name="beside" value="{escape(str(entry.path))}"'
        f' class="entry">{escape(entry.path.name)}<span class="detail">{escape(entry.detail)}</span></button>'
        "</li>"
        for entry in others
    )
    return _page(
        "Compare – splatstudio", f'{head}<form action="/">{given}<ul class="rows">{rows}</ul></form>'
    )


def folder_page(listing: FolderListing, bounds: Bounds, key: str, comparable: Callable[[Path], bool]) -> str:
    """Return the page of one folder, with the way up and down, and buttons for what can be opened there.

    `comparable` says which runs have others that they can be compared with.
    """
    folder = listing.here.path
    way = [f'<a href="{_browse(parent)}">{escape(_short(parent))}</a>' for parent in bounds.above(folder)]
    way.append(escape(_short(folder)))
    start = '<nav><a href="/">Start page</a></nav>'
    head = f"<h1>{escape(folder.name or str(folder))}</h1>"
    here = _here(listing, key, comparable)
    entries = [_folder_row(entry, key, comparable) for entry in listing.entries]
    rows = f'<ul class="rows">{"".join(entries)}</ul>' if entries else ""
    where = f'<nav aria-label="Where this folder is">{" / ".join(way)}</nav>' if way[1:] else ""
    return _page(f"{folder.name} – splatstudio", start + head + where + here + rows + _notes(listing))


def _sentence(told: Told) -> str:
    if not told.sentence:
        return ""
    kind = "told done" if told.good else "told"
    return f'<p class="{kind}" role="alert">{escape(told.sentence)}</p>'


def _page(title: str, content: str) -> str:
    return page_of("start.html", title=escape(title), content=content, theme=THEME)


def _list(title: str, entries: Sequence[Entry], key: str, comparable: Callable[[Path], bool]) -> str:
    rows = "".join(_row(entry, key, comparable) for entry in entries)
    return f'<h2>{escape(title)}</h2><form action="/">{_key(key)}<ul class="rows">{rows}</ul></form>'


def _row(entry: Entry, key: str, comparable: Callable[[Path], bool]) -> str:
    path = escape(str(entry.path))
    detail = f'<span class="detail">{escape(entry.detail)}</span>'
    button = f'<button name="open" value="{path}" class="entry">{path} {detail}</button>'
    more = f'<div class="more">{_more(entry.path, comparable)}</div>' if entry.is_run else ""
    return f'<li class="row">{_picture(entry, key)}{button}{more}</li>'


def _picture(entry: Entry, key: str) -> str:
    return f'<img src="{THUMBNAIL}?of={_thumbnail(entry.path, key)}" alt="" loading="lazy">'


def _picture_in_folder(entry: FolderEntry, key: str) -> str:
    """Return the picture of what lies in a folder: its address has the path, which is kept nowhere else."""
    if entry.kind not in _PICTURED:
        return '<span class="no-picture"></span>'
    asked = {"of": _thumbnail(entry.path, key), "path": str(entry.path)}
    address = escape(f"{THUMBNAIL}?{urlencode(asked, errors='surrogateescape')}")
    return f'<img src="{address}" alt="" loading="lazy">'


def _thumbnail(path: Path, key: str) -> str:
    """Return the name of the picture of a path, which does not tell it; other pages cannot guess it."""
    return hmac.new(key.encode(), os.fsencode(path), hashlib.sha256).hexdigest()[:32]


def _install_button(path: Path | None, key: str) -> str:
    if path is None:
        return ""
    return (
        f'<form action="/">{_key(key)}<input type="hidden" name="install" value="1">'
        f'<button name="open" value="{escape(str(path))}">Install it and go on</button></form>'
    )


def _here(listing: FolderListing, key: str, comparable: Callable[[Path], bool]) -> str:
    """Return what the folder itself is, with its buttons, where it can be opened."""
    here = listing.here
    if not here.can_open:
        return ""
    words = (
        f'<div class="what">This folder: {here.kind} <span class="detail">{escape(here.detail)}</span></div>'
    )
    row = f'<div class="rows"><div class="row">{words}{_deeds(here, key, comparable)}</div></div>'
    return row + ("<h2>In it</h2>" if listing.entries else "")


def _folder_row(entry: FolderEntry, key: str, comparable: Callable[[Path], bool]) -> str:
    name = escape(entry.path.name)
    if entry.is_folder:
        name = f'<a href="{_browse(entry.path)}">{name}</a>'
    kind = f'<span class="kind">{entry.kind}</span>'
    what = f'<div class="what">{name}<span class="detail">{escape(entry.detail)}</span></div>'
    deeds = _deeds(entry, key, comparable)
    return f'<li class="row">{_picture_in_folder(entry, key)}{kind}{what}{deeds}</li>'


def _deeds(entry: FolderEntry, key: str, comparable: Callable[[Path], bool]) -> str:
    if not entry.can_open:
        return ""
    named = f'aria-label="{{}} {escape(entry.path.name)}"'
    buttons = f"<button {named.format('Open')}>Open</button>"
    if entry.can_train:
        train = f'name="train" value="1" {named.format("Start training of")}'
        buttons += f'<button class="first" {train}>Start training</button>'
    path = f'<input type="hidden" name="open" value="{escape(str(entry.path))}">'
    more = _more(entry.path, comparable) if entry.kind == "Run" else ""
    return f'<form action="/" class="deeds">{_key(key)}{path}{buttons}{more}</form>'


def run_address(run_dir: Path) -> str:
    """Return the address of the page on which a run is renamed or deleted."""
    return f"{RUN}?{_asked(run_dir)}"


def _asked(run_dir: Path) -> str:
    return urlencode({"folder": str(run_dir)}, errors="surrogateescape")


def _more(run_dir: Path, comparable: Callable[[Path], bool]) -> str:
    """Return the ways to the pages on which a run is compared, where there is another, and changed."""
    asked, name = _asked(run_dir), escape(run_dir.name)
    return " ".join(
        f'<a class="more" href="{escape(page + "?" + asked)}" aria-label="{deed} {name}">{deed}</a>'
        for page, deed in ((COMPARE, "Compare"), (RUN, "Rename or delete"))
        if page != COMPARE or comparable(run_dir)
    )


def _notes(listing: FolderListing) -> str:
    notes = list[str]()
    shown, folder = len(listing.entries), listing.here.path
    if not shown:
        notes.append(
            "Nothing else here can be opened." if listing.here.can_open else "Nothing can be opened here."
        )
    if listing.num_pictures > 1:
        notes.append(
            f"{listing.num_pictures:,} pictures lie here too; the folder is opened, not one of them."
        )
    if listing.num_unnamed == 1:
        notes.append("One entry has a name that is no text, and is left out.")
    elif listing.num_unnamed:
        notes.append(f"{listing.num_unnamed:,} entries have names that are no text, and are left out.")
    if listing.cut:
        notes.append(f"The folder has more than {MOST_NAMES:,} entries: the others are not looked at.")
    ways = list[str]()
    if shown < listing.total:
        last = listing.first + shown
        notes.append(f"These are {listing.first + 1:,} to {last:,} of {listing.total:,} entries.")
        if listing.first:
            ways.append(f'<a href="{_browse(folder, listing.first - MOST_SHOWN)}">Those before</a>')
        if last < listing.total:
            ways.append(f'<a href="{_browse(folder, last)}">Those after</a>')
    paragraphs = "".join(f'<p class="hint">{note}</p>' for note in notes)
    return paragraphs + (f"<nav>{' · '.join(ways)}</nav>" if ways else "")


def _browse(folder: Path, first: int = 0) -> str:
    asked = {"folder": str(folder)} | ({"from": str(first)} if first > 0 else {})
    return escape(f"{BROWSE}?{urlencode(asked, errors='surrogateescape')}")


def _short(folder: Path) -> str:
    return folder.name or str(folder)


def cancel_form(key: str) -> str:
    """Return the button that ends what is being opened, for the page with the `key`."""
    button = f'<button name="do" value="{CANCEL}">Cancel</button>'
    return f'<form action="/">{_key(key)}{button}</form><p>Finished work is kept.</p>'


def _key(key: str) -> str:
    return f'<input type="hidden" name="key" value="{key}">'

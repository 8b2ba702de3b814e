"""The page that `splatstudio open` shows without a path: what was opened last, the demo, the folders here.

It stands behind the same checks of sender and secret as the studio's page, and knows neither viser nor
torch, so that it is there at once. What is chosen opens in the same process and at the same address: the
studio takes over the socket, and a browser that comes meanwhile waits in its queue.
"""

from __future__ import annotations

import hmac
import html
import json
import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from queue import SimpleQueue
from urllib.parse import parse_qsl

from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from splatstudio.error_text import as_sentence, in_words
from splatstudio.files.leftovers import clear_unused
from splatstudio.files.recent import rename_recent
from splatstudio.files.run import figures_of_run, newest_step, scene_of
from splatstudio.files.run_folder import delete_run, rename_run, run_content, why_to_keep
from splatstudio.gui.server.access import (
    STILL_HERE,
    Listen,
    PassedOn,
    Refusal,
    data_response,
    html_response,
    is_websocket,
    make_access,
    page_response,
    url_of,
)
from splatstudio.gui.server.dropped_files import FOLDER as DROPS
from splatstudio.gui.server.dropped_files import PARTIAL, checked, receive
from splatstudio.gui.server.folder_listing import list_folder
from splatstudio.gui.server.page_files import page_text
from splatstudio.gui.server.start_views import (
    BROWSE,
    CANCEL,
    COMPARE,
    DROP,
    RUN,
    SCRIPT,
    THUMBNAIL,
    Entry,
    StartContent,
    Told,
    cancel_form,
    compare_page,
    folder_page,
    front_page,
    in_folder,
    run_address,
    run_page,
    shown_by,
)
from splatstudio.gui.server.thumbnails import PLACEHOLDER, thumbnail_of

_RELOAD_SECONDS = 1
_ACCEPT_SECONDS = 0.1  # after a connection that failed
_DOOR_SECONDS = 5.0  # for a request to come
_LIST_BYTES = 16 << 20  # of the list of files that are dropped; their blocks are smaller
_TOLD_SECONDS = 30.0  # for which what failed is told again
_FRESH_SECONDS = 1.0  # for which what is offered is not looked for again
_SILENT_SECONDS = 60.0  # of a browser that copies files
_LOOK_SECONDS = 0.5  # whether the page has ended meanwhile
_BACK = '<p><a href="/">Back to the start page</a>'
_NO_FOLDER = "There is no such folder in those that are shown here." + _BACK
MOST_COMPARED = 50  # runs that are offered
MAX_VISITORS = 64  # whose requests are waited for at a time


@dataclass(frozen=True)
class OpenRequest:
    """What was chosen on the page: a path as it was typed, and what to do with it."""

    path: str
    train: bool  # at once
    install: bool = False  # what is missing for it, before
    beside: str | None = None  # another run, to be compared with


@dataclass(frozen=True)
class _Refused:
    """A name that a run did not get: told on the run's page for a while."""

    run_dir: Path
    name: str
    sentence: str
    at: float


class StartPage(PassedOn):
    """A start page that is being served until `close` or until its address is handed over.

    Raises ValueError, as `Listen.take_port` does, where it cannot be served.
    """

    def __init__(self, listen: Listen, offer: Callable[[], StartContent]):
        """Serve what `offer` gives now, and again whenever the page is loaded."""
        self.listen, self._offer = listen, offer
        self._content, self._found_at = offer(), time.monotonic()
        clear_unused(self._content.folder / DROPS, PARTIAL)  # what killed programs left half copied
        self.token = listen.new_token()
        self._access = make_access(listen, self.token)
        context = listen.context()
        self._listener = listen.take_port()
        self.port: int = self._listener.getsockname()[1]
        self.url = url_of(listen, self.port, self.token)
        # In the page alone: another page of this machine, whose requests carry the cookie, does not know it.
        self._key = secrets.token_urlsafe(16)
        self._requests: SimpleQueue[OpenRequest] = SimpleQueue()
        self._opening = ""
        self._progress = ""  # of what is being opened
        self._cancel: Callable[[], object] | None = None  # what ends that
        self._told = Told()
        self._refused: _Refused | None = None
        # What was on the front, or could be compared: pages show its picture.
        self._pictured: set[Path] = set()
        self._shown, self._shown_at = self._told, 0.0  # what was told last, and since when
        self._lock, self._looking = threading.Lock(), threading.Lock()
        # It serves on a copy of the socket: when it ends, the other one still listens.
        self._server = serve(
            self._take_files,
            sock=self._listener.dup(),
            ssl=context,
            process_request=self._answer,
            open_timeout=_DOOR_SECONDS,
            max_size=_LIST_BYTES,
            compression=None,
            logger=_quiet_logger(),
            server_header=None,
        )
        self._handle, self._server.handler = self._server.handler, self._meet
        self._places = threading.BoundedSemaphore(MAX_VISITORS)
        self._ended = threading.Event()
        self._copying = threading.Lock()  # files of a browser, one drop at a time
        self._thread = threading.Thread(target=self._serve, daemon=True, name="start page")
        self._thread.start()

    def next_request(self) -> OpenRequest:
        """Wait for what is chosen; until `tell` the page says that it is being opened."""
        return self._requests.get()

    def choose(self, path: Path) -> bool:
        """Ask for a path to be opened, unless something else is; return whether it will be."""
        with self._lock:
            if self._opening:
                return False
            self._opening = str(path)
            self._requests.put(OpenRequest(str(path), train=False))
            return True

    def show_progress(self, text: str) -> None:
        """Say how far the opening of what was chosen is."""
        with self._lock:
            self._progress = text

    def offer_cancel(self, cancel: Callable[[], object]) -> None:
        """Have a button that calls `cancel`, in a thread of its own, until the opening has ended."""
        with self._lock:
            self._cancel = cancel

    def tell(self, sentence: str, instead: Sequence[Entry] = (), installs_for: Path | None = None) -> None:
        """Offer everything again, below a sentence on why the last choice could not be opened.

        The choice stays in the field, to be mended.
        `instead`: what may have been meant, first of all. `installs_for`: what can be opened after an
        installation, for which there is a button.
        """
        with self._lock:
            typed, self._opening, self._progress, self._cancel = self._opening, "", "", None
            self._told = Told(sentence, instead, installs_for, typed=typed)

    def _serve(self) -> None:
        """Serve until the end; the library's own loop ends as soon as somebody cannot be accepted."""
        while not self._ended.is_set():
            with suppress(OSError, RuntimeError):  # no descriptors or threads are left, or who came has gone
                self._server.serve_forever()
            self._ended.wait(_ACCEPT_SECONDS)

    def _meet(self, line: socket.socket, address: object) -> None:
        """Answer one of a few at a time: a crowd would use up the descriptors, with which torch is loaded."""
        if not self._places.acquire(blocking=False):
            line.close()
            return
        try:
            self._handle(line, address)
        finally:
            self._places.release()

    def _stop_serving(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._thread.join()
        with self._copying:  # nothing half copied is left behind
            pass

    def _take_files(self, line: ServerConnection) -> None:
        """Copy the files that a browser brings, and open them; tell it why where that is not done."""

        def tell(**said: object) -> None:
            with suppress(ConnectionClosed):
                line.send(json.dumps(said))

        if not self._copying.acquire(blocking=False):
            tell(error="Other files are being copied already.")
            return
        try:
            asked = json.loads(self._next_message(line))
            self._check_key(asked if isinstance(asked, dict) else {})
            with self._lock:
                if self._opening:
                    raise ValueError("Something is being opened: come back when it is there.")
            files = checked(asked.get("files"))
            tell(taken=True)
            folder = self._content.folder / DROPS
            place = receive(files, folder, lambda: _data(self._next_message(line)))
            tell(place=str(place), opens=self.choose(place))
        except Refusal as refusal:
            tell(error=refusal.sentence)
        except (ValueError, OSError, RecursionError) as error:
            tell(error=as_sentence(in_words(error)))
        except ConnectionClosed:
            return  # what came is removed
        finally:
            self._copying.release()

    def _next_message(self, line: ServerConnection) -> str | bytes:
        deadline = time.monotonic() + _SILENT_SECONDS
        while not self._ended.is_set():
            with suppress(TimeoutError):
                return line.recv(timeout=_LOOK_SECONDS)
            if time.monotonic() > deadline:
                raise ValueError("The browser stopped sending: drop it again.")
        raise ValueError("The start page has ended: something else was opened.")

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        try:
            response = self._access.answer(request)
            if response is None and is_websocket(request) and request.path == DROP:
                return None  # `_take_files` goes on
            response = response or self._answer_visitor(request)
        except Refusal as refusal:
            response = page_response(refusal.status, refusal.sentence)
        response = self._access.harden(response)
        policy = "default-src 'none'; img-src 'self' data:; style-src 'unsafe-inline'; form-action 'self'; "
        policy += "script-src 'self'; connect-src 'self'; "
        policy += "base-uri 'none'; "
        # Another page of this machine, whose requests carry the cookie, may not show a thumbnail either.
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        del response.headers["Content-Security-Policy"]
        response.headers["Content-Security-Policy"] = policy + self._access.frame_ancestors()
        return response

    def _answer_visitor(self, request: Request) -> Response:
        """Answer whoever has the secret."""
        path, _, query = request.path.partition("?")
        fields = dict(parse_qsl(query, errors="surrogateescape"))  # names need be no text
        if path == STILL_HERE:  # a page of the studio that was here: it loads this one in its place
            return data_response(HTTPStatus.RESET_CONTENT, "text/plain", b"")
        if path == SCRIPT:
            script = page_text("start.js").encode()
            return data_response(HTTPStatus.OK, "text/javascript; charset=utf-8", script)
        if path == THUMBNAIL:
            return self._thumbnail(fields.get("of", ""), fields.get("path"))
        if path not in ("/", BROWSE, RUN, COMPARE):
            raise Refusal(HTTPStatus.NOT_FOUND, "path", "There is no such page.")
        with self._lock:
            if path == "/" and "open" in fields:
                return self._choose(fields)
            if self._opening:
                return self._still_opening(fields)
            told = self._told
            if path == "/":
                # What was done is told once; what failed also to who comes a little later, as after a reload.
                if told is not self._shown:
                    self._shown, self._shown_at = told, time.monotonic()
                late = time.monotonic() - self._shown_at > _TOLD_SECONDS
                told = Told() if late else told
                self._told = Told() if told.good or late else self._told
        if path == "/":
            content = self._found()
            with self._lock:
                self._pictured.update(entry.path for _, entries in content.lists for entry in entries)
            page = front_page(content, self._key, told, partial(_has_others, content=content))
            return html_response(HTTPStatus.OK, page)
        if path == RUN:
            return (
                self._change_run(fields)
                if "do" in fields
                else html_response(HTTPStatus.OK, self._run(fields))
            )
        return html_response(HTTPStatus.OK, (self._compare if path == COMPARE else self._folder)(fields))

    def _found(self) -> StartContent:
        """Return what is offered now: runs come and go, and get on, while the page is there."""
        with self._looking:
            if time.monotonic() - self._found_at > _FRESH_SECONDS:
                with suppress(OSError):  # a run went meanwhile: what was found before is offered
                    self._content = self._offer()
                self._found_at = time.monotonic()
            return self._content

    def _choose(self, fields: Mapping[str, str]) -> Response:
        """Note what shall be opened, where nothing is being opened, and lead to the page that says so."""
        if not self._opening:
            self._check_key(fields)
            self._opening = fields["open"]
            beside = fields.get("beside")
            self._requests.put(OpenRequest(fields["open"], "train" in fields, "install" in fields, beside))
        return _to_the_front("Opening.")  # a reload of the page shall not open it again

    def _still_opening(self, fields: Mapping[str, str]) -> Response:
        """Return the page that says what is being opened; end that first, where its form asks for it."""
        if fields.get("do") == CANCEL:
            self._check_key(fields)
            cancel, self._cancel = self._cancel, None
            if cancel is not None:
                # It may wait for who tells how far it is, and that one for this lock.
                threading.Thread(target=cancel, name="cancel", daemon=True).start()
            return _to_the_front("Ending.")
        sentence = f"Opening {html.escape(self._opening)} ..."
        if self._progress:
            sentence += f"<p>{html.escape(self._progress)}</p>"
        if self._cancel is not None:
            sentence += cancel_form(self._key)
        return page_response(HTTPStatus.OK, sentence, reload_after=_RELOAD_SECONDS)

    def _check_key(self, fields: Mapping[str, str]) -> None:
        if not hmac.compare_digest(os.fsencode(str(fields.get("key", ""))), self._key.encode()):
            sentence = "This form is of an earlier start page. Please reload the page, and choose again."
            raise Refusal(HTTPStatus.FORBIDDEN, "key", sentence)

    def _run(self, fields: Mapping[str, str]) -> str:
        """Return the page of a run; Refusal where it is none, or outside of what is shown."""
        run_dir = self._run_dir(fields)
        try:
            refused = self._refused
            if refused is None or refused.run_dir != run_dir or time.monotonic() - refused.at > _TOLD_SECONDS:
                return run_page(run_content(run_dir), self._key, why_to_keep(run_dir))
            typed, sentence = refused.name, refused.sentence
            return run_page(run_content(run_dir), self._key, why_to_keep(run_dir), typed, sentence)
        except (ValueError, OSError) as error:
            raise Refusal(HTTPStatus.NOT_FOUND, "path", html.escape(in_words(error)) + _BACK) from error

    def _compare(self, fields: Mapping[str, str]) -> str:
        """Return the page on which a run is chosen to be compared with another one."""
        run_dir = self._run_dir(fields)
        if not (run_dir / "run.json").is_file():
            raise Refusal(HTTPStatus.NOT_FOUND, "path", "This is no run." + _BACK)
        with self._lock:
            content = self._content
        beside = _runs_beside(run_dir, content)
        with self._lock:
            self._pictured.update(entry.path for entry in beside)
        return compare_page(run_dir, beside, self._key)

    def _run_dir(self, fields: Mapping[str, str]) -> Path:
        """Return the folder of a run that may be renamed and deleted: within bounds, and itself no link."""
        asked = Path(os.path.abspath(self._content.folder / fields.get("folder", "")))
        place = self._content.bounds.inside(asked)
        if place is None or asked.is_symlink():
            raise Refusal(HTTPStatus.NOT_FOUND, "path", _NO_FOLDER)
        return place

    def _change_run(self, fields: Mapping[str, str]) -> Response:
        """Rename or delete a run, and tell so on the front; a name that is refused stays on the run's page.

        The server reads GET requests alone, so these are such, too. The key, which only this page's forms
        have, keeps others from asking, and the way to the front keeps a reload from asking again.
        """
        self._check_key(fields)
        run_dir = self._run_dir(fields)
        try:
            if fields["do"] == "delete":
                delete_run(run_dir)
                told = f"The run {run_dir.name} is deleted."
            else:
                new = rename_run(run_dir, fields.get("name", ""))
                rename_recent(run_dir, new)
                told = f"The run {run_dir.name} is called {new.name} now."
        except ValueError as error:
            sentence = as_sentence(in_words(error))
            if fields["do"] != "delete":
                self._refused = _Refused(run_dir, fields.get("name", ""), sentence, time.monotonic())
                return _lead_to(run_address(run_dir), "It was not done.")
            with self._lock:
                self._told = Told(sentence)
            return _to_the_front("It was not done.")
        with self._looking:
            self._found_at = -math.inf
        self._found()  # what may be browsed has another name, too
        with self._lock:
            self._told, self._refused = Told(told, good=True), None
        return _to_the_front("It is done.")

    def _thumbnail(self, name: str, listed: str | None) -> Response:
        """Answer with the picture of that name, or a plain one: the page never has a hole.

        `listed`: the path of what was listed in a folder; others are those of the front, and compared runs.
        """
        with self._lock:
            told, pictured = self._told, tuple(self._pictured)
        path = None
        if name.isascii() and listed is not None:
            path = in_folder(name, listed, self._key)
            path = None if path is None or self._content.bounds.inside(path) is None else path
        elif name.isascii():
            path = shown_by(name, self._key, (*(entry.path for entry in told.instead), *pictured))
        if path is None:
            raise Refusal(HTTPStatus.NOT_FOUND, "path", "There is no such picture.")
        made = thumbnail_of(path)
        if made is None:
            return data_response(HTTPStatus.OK, "image/svg+xml", PLACEHOLDER)
        return data_response(HTTPStatus.OK, "image/jpeg", made)

    def _folder(self, fields: Mapping[str, str]) -> str:
        """Return the page of a folder; Refusal, whether it is not there or outside of what is shown."""
        bounds = self._content.bounds
        folder = bounds.inside(Path(fields["folder"]) if "folder" in fields else self._content.folder)
        if folder is None or not folder.is_dir():
            raise Refusal(HTTPStatus.NOT_FOUND, "path", _NO_FOLDER)
        first = fields.get("from", "0")
        try:
            listing = list_folder(
                folder, bounds, int(first[:9]) if first.isascii() and first.isdecimal() else 0
            )
        except OSError as error:
            sentence = f"{html.escape(str(folder))} cannot be read: {error.strerror}." + _BACK
            raise Refusal(HTTPStatus.FORBIDDEN, "path", sentence) from error
        return folder_page(listing, bounds, self._key, partial(_has_others, content=self._content))


def _others(run_dir: Path, content: StartContent) -> Iterator[Path]:
    """Return other runs with a saved model, each once: those of the lists, then those of the same folder."""
    siblings = sorted(file.parent for file in run_dir.parent.glob("*/run.json"))
    listed = [entry.path for _, entries in content.lists for entry in entries if entry.is_run]
    places = {path.resolve(): path for path in (*reversed(siblings), *reversed(listed))}
    places.pop(run_dir.resolve(), None)
    return (path for path in reversed(places.values()) if newest_step(path) is not None)


def _has_others(run_dir: Path, content: StartContent) -> bool:
    return next(_others(run_dir, content), None) is not None


def _runs_beside(run_dir: Path, content: StartContent) -> list[Entry]:
    """Return `_others`, those of the same scene first: they can be compared by their scores."""
    own = scene_of(run_dir)
    alike = {path: own is not None and scene_of(path) == own for path in _others(run_dir, content)}
    ordered = sorted(alike, key=lambda path: not alike[path])[:MOST_COMPARED]
    return [Entry(path, _beside_detail(path, alike[path]), is_run=True) for path in ordered]


def _beside_detail(run_dir: Path, alike: bool) -> str:
    scene = scene_of(run_dir)
    other = "" if alike else f" · another scene, {'not known' if scene is None else scene.name}"
    return f"{figures_of_run(run_dir)}{other} · {run_dir.parent}"


def _data(message: str | bytes) -> bytes:
    if isinstance(message, str):
        raise ValueError("Text came in the place of a file: reload the page, and drop it again.")
    return message


def _to_the_front(sentence: str) -> Response:
    return _lead_to("/", sentence)


def _lead_to(address: str, sentence: str) -> Response:
    response = page_response(HTTPStatus.SEE_OTHER, sentence)
    response.headers["Location"] = address
    return response


def _quiet_logger() -> logging.Logger:
    """Return a logger that tells of faults of this program, but not of browsers that break off."""

    def is_ours(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        # The last: websockets on a page that is left before it is answered, as by a quick reload.
        broken_off = isinstance(error, (WebSocketException, OSError, EOFError))
        return not broken_off and record.getMessage() != "unexpected internal error"

    logger = logging.Logger("splatstudio.start_page", logging.WARNING)
    logger.parent = logging.getLogger()
    logger.addFilter(is_ours)
    return logger

"""What a disk may hold after its power was cut, at each moment of what a program wrote.

A file has what was in it when it was synced last; of what was written since, all, half or nothing may be
there. A folder has the names that were in it when it was synced last; of the changes since, made in their
order, the disk may have only the first few. POSIX promises no more, and file systems make use of that.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CHANGES = ("rename", "replace", "unlink", "remove", "rmdir", "mkdir", "link", "symlink")
Names = dict[tuple[int, str], int]  # folder and name: what has it
State = tuple[tuple[str, bytes | None], ...]  # of a disk: paths and contents, None for a folder


@dataclass(frozen=True)
class Moment:
    """What the folder held at a moment, by inodes, and what was synced then, 0: nothing."""

    names: Names
    contents: dict[int, bytes]
    synced: int = 0


class Disk:
    """Notes what becomes of a folder while it is `watched`."""

    def __init__(self, root: Path):
        self.root = root
        self.moments: list[Moment] = []
        self._begun = 0  # of the moments, those before are of what was there
        self._held: dict[int, int] = {}  # while a file is open no other gets its number

    def watch(self, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
        """Do some work, and note each change of names and each sync of it."""
        self._note()
        whole = self.moments[0]  # all of this is on the disk
        self.moments += [Moment(whole.names, whole.contents, inode) for inode in self._held]
        self._begun = len(self.moments)
        with monkeypatch.context() as patch:
            for name in CHANGES:
                patch.setattr(os, name, self._noting(getattr(os, name)))
            sync = os.fsync

            def fsync(descriptor: int) -> None:
                sync(descriptor)
                self._note(os.fstat(descriptor).st_ino)

            patch.setattr(os, "fsync", fsync)
            work()
        self._note()
        for descriptor in self._held.values():
            os.close(descriptor)

    def _noting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **settings: Any) -> Any:
            self._note()
            try:
                return call(*arguments, **settings)
            finally:
                self._note()

        return noted

    def _note(self, synced: int = 0) -> None:
        names: Names = {}
        contents: dict[int, bytes] = {}
        for folder, folders, files in os.walk(self.root):
            parent = os.stat(folder).st_ino
            self._hold(folder, parent)
            for name in (*folders, *files):
                path = os.path.join(folder, name)
                inode = os.stat(path).st_ino
                self._hold(path, inode)
                names[parent, name] = inode
                if name in files:
                    contents[inode] = Path(path).read_bytes()
        self.moments.append(Moment(names, contents, synced))

    def _hold(self, path: str, inode: int) -> None:
        if inode not in self._held:
            self._held[inode] = os.open(path, os.O_RDONLY)

    def states(self) -> Iterator[tuple[State, bool]]:
        """Yield what the disk may hold, each once for the moment it is found at, and whether all is done."""
        root = self.root.stat().st_ino
        changes: list[tuple[int, int, Names, Names]] = []  # moment, folder, names before and after
        synced: dict[int, bytes] = {}
        folder_synced: dict[int, int] = {}
        seen: set[State] = set()
        for number, moment in enumerate(self.moments):
            before = self.moments[number - 1].names if number else {}
            changes += [(number, *change) for change in _changes(before, moment.names)]
            if moment.synced in moment.contents:
                synced[moment.synced] = moment.contents[moment.synced]
            elif moment.synced:
                folder_synced[moment.synced] = number
            done = number == len(self.moments) - 1
            if number + 1 < self._begun:
                continue
            for names in _possible_names(changes, folder_synced):
                for portion in (0.0, 0.5, 1.0):
                    contents = {
                        inode: synced.get(inode, b"") if data == synced.get(inode) else _torn(data, portion)
                        for inode, data in moment.contents.items()
                    }
                    state = _state(root, names, {**synced, **contents})
                    if state not in seen or done:
                        seen.add(state)
                        yield state, done


def _torn(data: bytes, portion: float) -> bytes:
    return data[: int(portion * len(data))]


def _changes(before: Names, after: Names) -> list[tuple[int, Names, Names]]:
    """Return what changed in each folder, by its inode: the names before and after."""
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    found = []
    for folder in sorted({key[0] for key in keys}):
        old = {key: before[key] for key in keys if key[0] == folder and key in before}
        new = {key: after[key] for key in keys if key[0] == folder and key in after}
        found.append((folder, old, new))
    return found


def _possible_names(
    changes: list[tuple[int, int, Names, Names]], folder_synced: dict[int, int]
) -> Iterator[Names]:
    """Yield the names that may be on the disk: those that were synced, and the first few of the others."""
    sure = [folder_synced.get(folder, -1) >= number for number, folder, _, _ in changes]
    for last in range(len(changes) + 1):
        if last < len(changes) and sure[last]:
            continue  # the same as with one more
        names: Names = {}
        for place, (_, _, old, new) in enumerate(changes):
            if place < last or sure[place]:
                for key in old:
                    names.pop(key, None)
                names.update(new)
        yield names


def _state(root: int, names: Names, contents: dict[int, bytes]) -> State:
    """Return the paths below the root; what has lost its name is lost, and so is all below."""
    found: list[tuple[str, bytes | None]] = []
    folders = {key[0] for key in names}

    def add(folder: int, path: str) -> None:
        for (parent, name), inode in names.items():
            if parent != folder:
                continue
            is_folder = inode not in contents
            found.append((path + name, None if is_folder else contents[inode]))
            if is_folder and inode in folders:
                add(inode, f"{path}{name}/")

    add(root, "")
    return tuple(sorted(found))


def lay_out(state: State, folder: Path) -> Path:
    """Make a folder that holds what a disk may hold, in place of what is there, and return it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in state:
        place = folder / name
        if data is None:
            place.mkdir()
        else:
            place.write_bytes(data)
    return folder

"""Files that a user or another file names: opened only where they are files, whose size is known before."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import BinaryIO

from splatstudio.operating_system import free_memory, open_descriptor

_BLOCK = 1 << 20  # bytes that are hashed at a time
ALWAYS_READ = 1 << 26  # bytes, for which nobody asks how much memory is free

_KINDS = {
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}


def can_be_path(text: str) -> bool:
    """Return whether a file may be called so: not with a NUL or half a letter, which JSON may hold."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def refuse_irregular(path: Path) -> None:
    """Raise OSError, naming the file, for what is there but no regular file; what is behind a link counts.

    Nothing is opened: to open a pipe waits for its writer, and to open a device may set it to work.
    """
    _check(os.stat(path).st_mode, path)


def open_input(path: Path) -> BinaryIO:
    """Open a regular file to read its bytes; who opens it closes it.

    Raises OSError, naming the file, for a folder, a device, a pipe or a socket, and for what cannot be read.
    """
    refuse_irregular(path)
    # Should another file have taken its place, it is neither waited for nor made this process's terminal.
    descriptor = open_descriptor(path, os.O_RDONLY)
    try:
        _check(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_input(path: Path) -> bytes:
    """Return the content of a regular file, as long as it is when it is opened.

    Raises OSError as `open_input` does, and for one that is larger than the memory that is free.
    """
    with open_input(path) as file:
        size = os.fstat(file.fileno()).st_size
        _check_size(size, path)
        return file.read(size)


def refuse_larger_than_memory(path: Path) -> None:
    """Raise OSError for what is no regular file, and for one that is larger than the memory that is free."""
    refuse_irregular(path)
    _check_size(os.stat(path).st_size, path)


def _check_size(size: int, path: Path) -> None:
    if size > ALWAYS_READ and size > (free := free_memory()):
        sentence = f"it has {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free"
        raise OSError(errno.ENOMEM, sentence, str(path))


def _check(mode: int, path: Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a regular file's content, in hexadecimal digits; OSError as `open_input`."""
    digest = hashlib.sha256()
    with open_input(path) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()

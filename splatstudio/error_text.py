"""What an exception, or another program, says, and names in a sentence: in one line."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

# What a shell's limits are called, where the system names no file.
_LIMITS = {
    errno.EFBIG: ": `ulimit -f` limits the size of files here; raise it, or start elsewhere",
    errno.EMFILE: ": raise the limit of this shell with `ulimit -n 4096`",
}


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text, or its class where it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def reason(error: BaseException) -> str:
    """Return why something failed; what the system says comes without its number, behind the file's name."""
    if not isinstance(error, OSError) or not error.strerror:
        return first_line(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def unreadable(file: object, error: OSError) -> str:
    """Return a sentence on a file that the system does not let be read, and what to do."""
    limit = _LIMITS.get(error.errno or 0, "; check it and its permissions")
    return f"{file} cannot be read: {error.strerror or error}{limit}"


def remedy(error: OSError) -> str:
    """Return what to do, as a clause, before what could not be written is written again."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return "change the permissions there"
    if error.errno == errno.EROFS:
        return "make the disk writable"
    if error.errno in (None, errno.ENOSPC, errno.EDQUOT, errno.EFBIG):  # a rank's disk tells no number
        return "make room on the disk"
    return "mend that"


def essence(error: BaseException) -> str:
    """Return the first line of an exception's text, with the last where that has the cause, as NCCL's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if type(error).__name__ != "DistBackendError" or len(lines) < 2:
        return first_line(error)
    return f"{lines[0]}: {lines[-1]}"


def in_words(error: BaseException) -> str:
    """Return what an exception says; of a file that the system refuses, its name and why."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename} cannot be read or written: {error.strerror}"
    if isinstance(error, OSError) and (error.strerror or "").startswith("No usable temporary directory"):
        return f"{error.strerror}: make room in one of them, or name another folder in the variable TMPDIR"
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        return f"{error.strerror}{_LIMITS.get(error.errno or 0, '')}"
    if isinstance(error, MemoryError):
        return (
            f"there is not enough memory: {first_line(error)}; close other programs, or use a larger machine"
        )
    return str(error)


def shown(value: object) -> str:
    """Return a value of a file as it is written there, 40 characters at most; of others their kind."""
    if isinstance(value, int) and value.bit_length() > 64:
        return "an integer of many digits"
    plain = value is None or isinstance(value, (int, float, str, list, dict))
    text = repr(value).splitlines()[0] if plain else type(value).__name__
    return text if len(text) <= 40 else text[:37] + "..."


def first_of(names: Sequence[str], most: int) -> str:
    """Return `most` names at most, the first, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def as_utf8(text: str) -> str:
    """Return `text` with what UTF-8 cannot hold written out, as \\xe9: names of files need be no text."""
    try:
        return os.fsencode(text).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half a letter of JSON
        return text.encode("utf-8", "backslashreplace").decode()


def printable(text: str) -> str:
    """Return what another program says without what would steer a terminal, 2000 characters at most."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:2000])


def for_terminal(text: str) -> str:
    """Return `text` with what has no letter written out, as \\x1b: it steers a terminal, or cannot be shown.

    Ends of lines and tabs stay. Names of files and texts of JSON hold any of it, and half a letter, too.
    """
    if text.isprintable():
        return text
    shown = (c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
    return "".join(shown)


def as_sentence(text: str) -> str:
    """Return `text` with a capital letter and a full stop; a path that it begins with stays as it is."""
    first = text.split(maxsplit=1)[0] if text.strip() else ""
    if first.rstrip(",;:").isalpha():
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."

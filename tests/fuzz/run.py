"""Tries every reader with damaged files and messages.

    make fuzz [FUZZ_MINUTES=10]
    PYTHONPATH=tests:tests/support python -m fuzz.run --minutes 10 [--only NAME] [--seed N] [--all]

A reader gives a value, or an error of the product in one line. Another exception, more than five seconds, or
memory of more than four times what the file is, declares or gives (and 64 MB) is a defect. What was tried
last is in build/fuzz; a crash of native code leaves it there, with native.txt. Rounds with other seeds follow
until the time is over or there is a defect, with --all also then. Cases are counted.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import json
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from file_damage import CHANGES, VALUE_CHANGES, changed_values, damaged
from fuzz.readers import Read, Target, bytes_of, targets, values_of
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

HANG_SECONDS = 5.0
MEMORY_FACTOR = 4
MEMORY_FREE = 64 << 20  # bytes that nobody counts: libraries that are loaded, and what they keep
LONGEST = 1500  # characters of an error: the names of long paths among them
ROUND = 60  # cases of a reader before the next one's turn
LAST = Path("build/fuzz")
ROUNDS = settings(
    database=None,
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),  # type: ignore[arg-type]
)


class TookTooLong(AssertionError):
    """A reader that was interrupted."""


def main() -> None:
    """Try until the time is over; exit code 1 with what is wrong, and 0 with the number of cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", default="", help="readers whose names hold this")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--all", action="store_true", help="go on after a defect, and list each kind once")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    defects: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder, native_words_in(LAST / "native.txt"):
        chosen = [target for target in targets(Path(folder)) if asked.only in target.name]
        until, number = time.monotonic() + 60.0 * asked.minutes, asked.seed
        while time.monotonic() < until and (asked.all or not defects):
            for target in chosen:
                if time.monotonic() < until:
                    counts[target.name] += try_round(target, number, defects)
            number += 1
    for kind, where in defects.items():
        print(f"{kind}\n  {where}")
    num = sum(counts.values())
    if asked.json:
        print(json.dumps({"seed": asked.seed, "defects": len(defects), "cases": num, "readers": counts}))
    else:
        print(f"{len(defects)} kinds of defects in {num:,} cases of {len(counts)} readers")
    sys.exit(bool(defects))


@contextmanager
def native_words_in(file: Path) -> Iterator[None]:
    """Send what libraries print of damaged pictures, and the trace of a crash, to a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    kept = os.dup(2)
    with open(file, "wb") as stream:
        os.dup2(stream.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)


def try_round(target: Target, number: int, defects: dict[str, str], cases: int = ROUND) -> int:
    """Try a reader, and return with how many files; `defects` gets where the first of each kind was kept."""
    tried = 0
    strategy: st.SearchStrategy[Any] = st.tuples(st.just(None), st.lists(CHANGES, min_size=1, max_size=4))
    if target.values:
        strategy |= st.tuples(VALUE_CHANGES, st.just([]))

    @seed(number)
    @settings(max_examples=cases, parent=ROUNDS)
    @given(strategy)
    def check(changes: Any) -> None:
        nonlocal tried
        data = changed(target, *changes)
        if data is None:
            return
        tried += 1
        (LAST / "last").write_bytes(data)
        (LAST / "last.txt").write_text(f"{target.name}, seed {number}\n")
        try:
            check_reader(target.read, data, target.declared)
        except Exception as error:
            cause = error.__cause__ or error
            at = traceback.extract_tb(cause.__traceback__)[-1]
            kind = f"{target.name}: {type(cause).__name__} in {Path(at.filename).name}:{at.lineno}"
            kept = LAST / f"{hashlib.sha256(data).hexdigest()[:12]}.bin"
            if kind not in defects:
                kept.write_bytes(data)
                defects[kind] = f"{kept}, seed {number}: {error}"

    check()
    return tried


def changed(target: Target, values: Any, changes: Any) -> bytes | None:
    """Return an example with changes to its values or to its bytes."""
    if values is not None:
        return bytes_of(target, changed_values(values_of(target), values))
    data = target.whole
    for change in changes:
        if not data:
            break
        data = damaged(data, change)
    return data


def check_reader(read: Read, data: bytes, declared: Callable[[], int] = int) -> object:
    """Let a reader read, and return its value or its error; AssertionError where that is a defect."""
    start, before = time.monotonic(), _memory("VmRSS", forget=True)
    faulthandler.dump_traceback_later(4 * HANG_SECONDS, exit=True)
    signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
    try:
        found: object = read(data)
    except (ValueError, OSError) as error:
        found = error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        faulthandler.cancel_dump_traceback_later()
    if isinstance(found, Exception):
        check_error(found)
    used = _memory("VmHWM") - before
    allowed = MEMORY_FREE + MEMORY_FACTOR * max(len(data), _size(found), declared())
    assert used < allowed, f"{used / 1e6:.0f} MB for a file of {len(data)} bytes"
    assert time.monotonic() - start < HANG_SECONDS
    return found


def check_error(error: Exception) -> None:
    """Raise AssertionError, with the error as its cause, unless it is one of the product's for a user."""
    told, kind = str(error), type(error)
    own = kind is ValueError or kind.__module__.startswith("splatstudio.")
    if not own or "\n" in told or len(told) > LONGEST or not told:
        raise AssertionError(f"{kind.__name__} is no error for a user: {told[:300]!r}") from error


def _too_long(*_: object) -> None:
    raise TookTooLong(f"more than {HANG_SECONDS:.0f} s")


def _size(found: object) -> int:
    """Return how many bytes a model has that was read, 0 for what else there may be."""
    tensors = getattr(found, "tensors", None)
    return 0 if tensors is None else sum(tensor.nbytes for tensor in tensors().values())


def _memory(field: str, *, forget: bool = False) -> int:
    """Return the memory of this process, bytes, now (VmRSS) or the most since it was forgotten (VmHWM)."""
    if forget:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()

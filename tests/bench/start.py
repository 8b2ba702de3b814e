"""How long a user waits for splatstudio to start: for --help, for `info`, and for a page that can be used.

    python tests/bench/start.py [--program splatstudio] [--repeat 5] [--json]

The page can be used when the gate has tried itself, all tabs are built, and a browser is given the page at
the printed address. The median of all repeats counts, without the first, which fills the disk cache. Beside
the time on the clock stands that of the processors, which other programs of the machine hardly change.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from splatstudio.scene.demo import demo_scene

LIMITS = {"--help": 0.3, "info": 0.6, "open": 4.0, "open without a path": 4.0}  # s
TIMEOUT = 120.0


@dataclass(frozen=True)
class Start:
    """How long something took: the medians, in s on the clock and of the processors."""

    what: str
    seconds: float
    processor_seconds: float
    limit: float


def main() -> None:
    """Measure all and print a table, or a line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", default=str(Path(sys.executable).with_name("splatstudio")))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    demo = str(demo_scene())
    ways: dict[str, Callable[[], None]] = {
        "--help": lambda: run(asked.program, "--help"),
        "info": lambda: run(asked.program, "info", demo),
        "open": lambda: open_page(asked.program, demo),
        "open without a path": lambda: open_page(asked.program),
    }
    starts = [measured(what, way, asked.repeat) for what, way in ways.items()]
    if asked.json:
        print(json.dumps([asdict(start) for start in starts]))
        return
    for start in starts:
        held = "" if start.seconds <= start.limit else "  MORE THAN THAT"
        used = f"{start.seconds:6.2f} s, of the processors {start.processor_seconds:5.2f} s"
        print(f"{start.what:20} {used}, at most {start.limit:.1f} s{held}")


def measured(what: str, way: Callable[[], None], repeat: int) -> Start:
    """Return how long `way` takes."""
    rows: list[tuple[float, float]] = []
    for _ in range(repeat + 1):
        started, used = time.perf_counter(), processor_seconds()
        way()
        rows.append((time.perf_counter() - started, processor_seconds() - used))
    seconds, of_processors = zip(*rows[1:], strict=True)
    return Start(what, statistics.median(seconds), statistics.median(of_processors), LIMITS[what])


def processor_seconds() -> float:
    """Return how long the processors have worked for processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(*command: str) -> None:
    """Run a command to its end."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT)


def open_page(program: str, *path: str) -> None:
    """Open the studio and its page, as a browser does, and kill it then."""
    command = [program, "open", *path, "--no-browser", "--port", "0"]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_STATE_HOME": folder}
        with subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as studio:
            assert studio.stdout is not None
            try:
                told = next(line for line in studio.stdout if "http://" in line)
                visit(re.findall(r"http://\S+", told)[0])
            finally:
                os.killpg(studio.pid, signal.SIGKILL)


def visit(url: str) -> None:
    """Get the page of an address with its token."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT)
    connection.request("GET", f"/?{parts.query}")
    answer = connection.getresponse()
    cookie = (answer.getheader("set-cookie") or "").split(";")[0]
    connection.close()
    connection.request("GET", "/", headers={"Cookie": cookie})
    answer = connection.getresponse()
    if answer.status != 200 or b"<html" not in answer.read():
        raise RuntimeError(f"the page was answered with {answer.status}")


if __name__ == "__main__":
    main()

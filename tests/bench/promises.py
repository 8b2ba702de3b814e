"""Counts what was tried against what docs/guide/promises.md promises, and says whether it held.

    python tests/bench/promises.py [--minutes 10] [--scale 1.0]

Strangers at the page and at the ranks (attack.py), damaged files and messages (make fuzz), and a power cut at
every moment of what is written (tests/files/test_power_loss.py). Takes a few minutes more than `--minutes`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Run all, and print the rows; exit code 1 where something did not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="for damaged files and messages")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of strangers")
    asked = parser.parse_args()
    rows = [*power_cuts(), *damaged(asked.minutes), *strangers(asked.scale)]
    for fault, cases, held in rows:
        print(f"| {fault} | {cases:,} | {'held' if held else 'DID NOT HOLD'} |")
    print(f"| in all | {sum(cases for _, cases, _ in rows):,} | |")
    sys.exit(not all(held for _, _, held in rows))


def power_cuts() -> list[tuple[str, int, bool]]:
    """Return how often the power was cut."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        tests = "tests/files/test_power_loss.py"
        command = [sys.executable, "-m", "pytest", "-q", tests, f"--junitxml={report}"]
        held = subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0
        found = ElementTree.parse(report).iterfind(".//property[@name='cases']")
        return [("power cuts", sum(int(each.attrib["value"]) for each in found), held)]


def damaged(minutes: float) -> list[tuple[str, int, bool]]:
    """Return how many damaged files and messages were read."""
    paths = os.pathsep.join(str(ROOT / path) for path in ("tests", "tests/support"))
    command = [sys.executable, "-m", "fuzz.run", "--json", "--minutes", str(minutes)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    return [
        (
            f"damaged files and messages, {len(found['readers'])} readers",
            found["cases"],
            found["defects"] == 0,
        )
    ]


def strangers(scale: float) -> list[tuple[str, int, bool]]:
    """Return how often strangers tried."""
    command = [sys.executable, "tests/bench/attack.py", "--json", "--scale", str(scale)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return [(row["fault"], row["cases"], row["good"]) for row in json.loads(done.stdout.splitlines()[-1])]


if __name__ == "__main__":
    main()

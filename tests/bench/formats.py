"""How long each format takes to write and to read a model, how large its file is, and what memory it needs.

    python tests/bench/formats.py [--gaussians 1000000] [--degree 3] [--formats .ply .spz] [--json]

Each format is measured in processes of its own: seconds (the best of three runs for fast ones, files in the
page cache), MB a second of the file's size, and the peak of memory beyond what the process held before and,
for reading, what the model itself needs, over the file's size.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from splatstudio.formats import FORMATS, format_of, read_splats, write_gaussians
from splatstudio.gaussians.gaussians import Gaussians

FAST = 2.0  # seconds: what is done sooner is done three times


def random_model(num: int, degree: int) -> Gaussians:
    """Return Gaussians spread like those of a scene, harmonics small; not from a training."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return Gaussians(
        means=normal(num, 3),
        quats=normal(num, 4),
        scales=normal(num, 3) - 4,
        opacities=normal(num) * 2,
        sh0=normal(num, 1, 3),
        shN=normal(num, (degree + 1) ** 2 - 1, 3) * 0.1,
    )


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def measured(action: str, path: Path, num: int, degree: int) -> dict[str, float]:
    """Return seconds and peak memory of writing or reading `path`, in this process."""
    model = random_model(num if action == "write" else 1, degree)
    # The first call loads libraries and starts threads.
    small = path.with_name(f"small-{path.name}")
    write_gaussians(small, random_model(300, degree))
    if action == "read":
        read_splats(small)
    Path("/proc/self/clear_refs").write_text("5")
    before, seconds = status("VmRSS"), []
    while not seconds or (len(seconds) < 3 and sum(seconds) < FAST):
        started = time.perf_counter()
        if action == "write":
            write_gaussians(path, model)
        else:
            model = None
            model = read_splats(path).gaussians
        seconds.append(time.perf_counter() - started)
    assert model is not None
    size = sum(tensor.nbytes for tensor in model.tensors().values()) if action == "read" else 0
    return {"seconds": min(seconds), "extra_bytes": status("VmHWM") - before, "model_bytes": size}


def in_process(action: str, path: Path, num: int, degree: int) -> dict[str, float]:
    """Return what `measured` finds in a fresh process."""
    command = [sys.executable, __file__, "--measure", action, str(path)]
    command += ["--gaussians", str(num), "--degree", str(degree)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(result.stdout)


def row(ending: str, folder: Path, num: int, degree: int) -> dict[str, object]:
    """Return a line of the table."""
    path = folder / f"model{ending}"
    form = format_of(path)
    assert form is not None
    wrote = in_process("write", path, num, degree)
    size = path.stat().st_size
    found: dict[str, object] = {
        "format": form.name,
        "gaussians": num,
        "degree": degree,
        "file_bytes": size,
        "write_s": round(wrote["seconds"], 3),
        "write_mb_s": round(size / 1e6 / wrote["seconds"], 1),
        "write_extra_over_file": round(wrote["extra_bytes"] / size, 2),
    }
    if form.read is not None:
        read = in_process("read", path, num, degree)
        found |= {
            "read_s": round(read["seconds"], 3),
            "read_mb_s": round(size / 1e6 / read["seconds"], 1),
            "read_peak_over_file": round(read["extra_bytes"] / size, 2),
            "read_peak_over_model": round(read["extra_bytes"] / read["model_bytes"], 2),
        }
    path.unlink()
    return found


def main() -> None:
    endings = [form.endings[0] for form in FORMATS if form.write]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--gaussians", type=int, default=1_000_000)
    parser.add_argument("--degree", type=int, default=3)
    parser.add_argument("--formats", nargs="+", choices=endings, default=endings)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    num, degree = arguments.gaussians, arguments.degree
    if arguments.measure:
        action, path = arguments.measure
        print(json.dumps(measured(action, Path(path), num, degree)))
        return
    with tempfile.TemporaryDirectory() as folder:
        for ending in arguments.formats:
            found = row(ending, Path(folder), num, degree)
            if arguments.json:
                print(json.dumps(found), flush=True)
            else:
                print("  ".join(f"{name} {value}" for name, value in found.items()), flush=True)


if __name__ == "__main__":
    main()

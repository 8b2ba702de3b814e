"""A file that needs more memory than is free is told by its header, with the numbers, and not decoded."""

from __future__ import annotations

import struct
import time
import tracemalloc
import zlib
from pathlib import Path

import pytest
from blob_models import blobs
from example_checkpoints import example
from started_programs import run_program

from splatstudio.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from splatstudio.files import inputs
from splatstudio.formats import FORMATS, model_arrays, read_splats, write_gaussians

ENDINGS = [form.endings[0] for form in FORMATS if form.read and form.write]


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are 100 MB of free memory."""
    for module in (inputs, model_arrays):
        monkeypatch.setattr(module, "free_memory", lambda: 100_000_000)


@pytest.mark.usefixtures("little_memory")
def test_a_small_file_of_many_splats_is_not_unpacked(tmp_path: Path) -> None:
    num = 4_000_000
    packed = zlib.compressobj(wbits=31)
    header = struct.pack("<IIIBBBB", 0x5053474E, 2, num, 0, 12, 0, 0)
    (tmp_path / "a.spz").write_bytes(packed.compress(header + bytes(19 * num)) + packed.flush())
    assert (tmp_path / "a.spz").stat().st_size < 100_000
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(
        ValueError, match=r"holds 4,000,000 splats, which need 0\.5 GB .*0\.1 GB are free: close"
    ):
        read_splats(tmp_path / "a.spz")
    assert time.process_time() - started < 1.0 and tracemalloc.get_traced_memory()[1] < 5e6
    tracemalloc.stop()


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("ending", [".splat", ".spz", ".compressed.ply"])
def test_a_sparse_file_is_not_read(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    write_gaussians(path, blobs())
    with open(path, "rb+") as file:
        file.truncate(64_000_000_000)
    with pytest.raises(ValueError, match=r" GB.* 0\.1 GB (of memory )?are free"):
        read_splats(path)


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_each_format_needs_is_compared(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"a{ending}"
    write_gaussians(path, blobs())
    for module in (inputs, model_arrays):
        monkeypatch.setattr(module, "ALWAYS_READ", 0)
        monkeypatch.setattr(module, "free_memory", lambda: 500_000_000)
    read_splats(path)
    for module in (inputs, model_arrays):
        monkeypatch.setattr(module, "free_memory", lambda: 1000)
    with pytest.raises(ValueError, match=r"GB (of memory )?are free"):
        read_splats(path)


def test_a_checkpoint_is_compared_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_checkpoint(tmp_path, example())
    size = max(path.stat().st_size for path in folder.iterdir())
    monkeypatch.setattr(inputs, "ALWAYS_READ", 0)
    monkeypatch.setattr(inputs, "free_memory", lambda: size - 1)
    with pytest.raises(ValueError, match=r"cannot be read: it has 0\.0 GB, and 0\.0 GB of memory are free"):
        load_checkpoint(folder)


def test_memory_that_is_gone_nevertheless_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(path: Path) -> None:
        raise MemoryError

    path = tmp_path / "a.splat"
    write_gaussians(path, blobs())
    monkeypatch.setattr("splatstudio.formats.splat.read_file", gone)
    with pytest.raises(ValueError, match=r"a\.splat \(0\.00 GB\) needs more memory .* GB that are free"):
        read_splats(path)


def test_no_command_ends_by_a_traceback_for_want_of_memory() -> None:
    program = """
import sys
from splatstudio.cli import main

def gone(*given, **options):
    raise MemoryError("Unable to allocate 5.6 GiB")

main.tyro.cli = gone
sys.argv[1:] = ["doctor"]
main.main()
"""
    ended = run_program("-c", program)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    assert "error: there is not enough memory: Unable to allocate 5.6 GiB" in ended.stderr

"""The product on two devices that no machine has, in processes of their own: torch believes in them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parent
CHECKS = sorted(HERE.glob("check_*.py"))
EMULATED = os.environ.get("SPLATSTUDIO_EXTENSION", "").endswith("emulated.so")


@pytest.mark.skipif(not EMULATED, reason="needs the emulated CUDA kernels: make cuda-on-cpu")
@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="torch itself is not sanitized")
@pytest.mark.parametrize("file", CHECKS, ids=lambda file: file.stem)
def test_the_product_works_on_devices_that_no_machine_has(file: Path) -> None:
    folders = [HERE, TESTS / "support", TESTS / "kernels", TESTS.parent]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # where ninja is
    environment = {
        **os.environ,
        "PYTHONPATH": ":".join(map(str, folders)),
        "OMP_NUM_THREADS": "1",
        "PATH": path,
    }
    names = ("no:cacheprovider", "blob_scenes", "made_up_device", "worker_watcher")
    plugins = [f"-p{name}" for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", *plugins, str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-1000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 0

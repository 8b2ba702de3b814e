"""Which devices the ranks of a training get."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from splatstudio.distributed.rank_devices import RankDevices, choose_devices
from splatstudio.kernels import ops


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "has_cuda_kernels", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


@pytest.mark.usefixtures("four_gpus")
def test_all_visible_gpus_train_unless_some_are_named() -> None:
    assert choose_devices().gpus == (0, 1, 2, 3)
    assert choose_devices(gpus=(2, 0)).gpus == (2, 0)
    assert choose_devices(ranks=3).gpus == (None, None, None)
    assert choose_devices(gpus=(2, 0)).alone().gpus == (2,)


@pytest.mark.usefixtures("four_gpus")
def test_gpus_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    with pytest.raises(ValueError, match=r"no GPU 4: 0 to 3 can be used with CUDA_VISIBLE_DEVICES=4,5,6,7"):
        choose_devices(gpus=(0, 4))
    with pytest.raises(ValueError, match="each GPU once"):
        choose_devices(gpus=(1, 1))
    with pytest.raises(ValueError, match="one of them"):
        choose_devices(gpus=(1,), ranks=2)
    with pytest.raises(ValueError, match="at least 1"):
        choose_devices(ranks=0)


def test_without_gpus_one_process_trains_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "has_cuda_kernels", lambda: False)
    assert choose_devices() == RankDevices((None,))
    with pytest.raises(ValueError, match="none can be used"):
        choose_devices(gpus=(0,))


def test_ranks_on_the_cpu_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert RankDevices((None,)).num_threads is None
    assert RankDevices((None,) * 3).num_threads == 2
    assert RankDevices((None,) * 16).num_threads == 1


def test_a_rank_sees_its_share_of_the_machine_alone() -> None:
    script = (
        "from splatstudio.distributed.rank_devices import settle_device; settle_device(None, 1);"
        "import os, torch;"
        "print(torch.get_num_threads(), repr(os.environ['CUDA_VISIBLE_DEVICES']), torch.cuda.device_count(),"
        "os.environ['PYTORCH_CUDA_ALLOC_CONF'])"
    )
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "3"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["1", "''", "0", "expandable_segments:True"], done.stderr

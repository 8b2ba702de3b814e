"""The device rows: eight GPUs, drivers that refuse, die and come back, and machines without any."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import types
from collections.abc import Iterator

import numpy as np
import psutil
import pynvml
import pytest
from fake_nvml import RECORD, FakeNvml

from splatstudio.devices.monitor import DeviceMonitor, DeviceReading, Driver, read_driver

GIB = 2**30


class Clock:
    """A clock that moves when it is told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def ranks() -> list[int]:
    return RECORD["our_pids"]


def test_every_call_of_the_fake_exists_in_the_real_library() -> None:
    for name in vars(FakeNvml):
        assert not name.startswith(("nvml", "NVML")) or hasattr(pynvml, name)
    with pytest.raises(AttributeError):  # as the real library, the fake has nothing else
        FakeNvml().nvmlDeviceGetSomething  # noqa: B018


def test_eight_gpus_give_eight_rows(nvml: FakeNvml) -> None:
    monitor = DeviceMonitor(ranks)
    assert nvml.opened == 0 and monitor.latest == ()  # nothing is opened before it is needed
    rows = monitor.sample()
    assert monitor.latest == rows and [row.index for row in rows] == list(range(8))
    for row, gpu in zip(rows, RECORD["gpus"], strict=True):
        ours = sum(p["usedGpuMemory"] for p in gpu["processes"] if p["pid"] in ranks())
        assert row == DeviceReading(
            index=row.index,
            name=gpu["name"],
            memory_used_by_us=ours,
            memory_used_by_others=gpu["memory"]["used"] - ours,
            memory_total=gpu["memory"]["total"],
            utilization=float(gpu["utilization"]["gpu"]),
            temperature_c=float(gpu["temperature"]),
            power_w=gpu["power_mw"] / 1000,
        )
    # As the record says in words: GPU 3 is shared, GPU 7 belongs to somebody else.
    assert rows[3].memory_used_by_us == 20 * GIB and rows[3].memory_used_by_others == 31 * GIB
    assert rows[7].memory_used_by_us == 0 and rows[7].memory_used_by_others == 61 * GIB
    assert rows[0].power_w == 412.3


@pytest.mark.parametrize(
    ("call", "cells"),
    [
        ("memory", {"memory_used_by_others"}),
        ("processes", {"memory_used_by_us"}),
        ("utilization", {"utilization"}),
        ("temperature", {"temperature_c"}),
        ("power", {"power_w"}),
    ],
)
def test_a_refused_field_leaves_its_cell_empty(nvml: FakeNvml, call: str, cells: set[str]) -> None:
    whole = DeviceMonitor(ranks).sample()
    nvml.refused = {(call, 2)}
    monitor = DeviceMonitor(ranks)
    rows = monitor.sample()
    empty = {name for name, value in vars(rows[2]).items() if value is None}
    assert empty - {"memory_total"} == cells
    assert rows[:2] + rows[3:] == whole[:2] + whole[3:]
    nvml.refused = set()
    assert monitor.sample() == whole


def test_unknown_memory_of_our_processes_is_not_called_zero(nvml: FakeNvml) -> None:
    nvml.gpus[0]["processes"][0]["usedGpuMemory"] = None  # as on Windows
    nvml.gpus[1]["processes"] = [{"pid": 999_999, "usedGpuMemory": 5 * GIB}]  # of a world outside this one
    nvml.gpus[2]["processes"] = []
    rows = DeviceMonitor(ranks).sample()
    assert [row.memory_used_by_us for row in rows[:3]] == [None, None, 0]
    assert rows[0].memory_used_by_others == nvml.gpus[0]["memory"]["used"]


def test_a_driver_that_dies_leaves_empty_rows_and_comes_back(nvml: FakeNvml) -> None:
    clock = Clock()
    monitor = DeviceMonitor(ranks, clock=clock)
    whole = monitor.sample()
    nvml.dead = True
    for _ in range(20):
        clock.now += 1
        rows = monitor.sample()
        assert [row.name for row in rows] == [row.name for row in whole]
        assert [row.memory_total for row in rows] == [row.memory_total for row in whole]
        for row in rows:
            assert row.memory_used_by_us is row.memory_used_by_others is row.utilization is None
            assert row.temperature_c is row.power_w is None
    nvml.dead = False
    clock.now += 6
    assert monitor.sample() == whole
    assert nvml.opened == 1  # each opening was closed
    history = monitor.history("power_w")
    assert history.values.shape == (22, 8)
    np.testing.assert_array_equal(np.isnan(history.values[:, 0]), [False, *[True] * 20, False])


def test_a_driver_that_dies_and_returns_within_a_sample_is_reopened(nvml: FakeNvml) -> None:
    clock = Clock()
    monitor = DeviceMonitor(ranks, clock=clock)
    whole = monitor.sample()
    nvml.opened = 0  # the driver was reloaded: it knows nothing of us
    clock.now += 1
    assert monitor.sample()[0].power_w is None
    clock.now += 6
    assert monitor.sample() == whole


def test_gpus_that_appear_later_take_the_place_of_the_cpu(nvml: FakeNvml) -> None:
    nvml.dead = True
    clock = Clock()
    monitor = DeviceMonitor(lambda: [os.getpid()], clock=clock)
    assert [row.name for row in monitor.sample()] == ["CPU rank 0"]
    nvml.dead = False
    clock.now += 1
    assert [row.name for row in monitor.sample()] == ["CPU rank 0"]  # not asked again so soon
    clock.now += 5
    assert len(monitor.sample()) == 8
    # The plot of GPU 0 does not begin with the numbers of the CPU.
    values = monitor.history("utilization").values
    assert values.shape == (3, 8) and np.isnan(values[:2]).all() and not np.isnan(values[2]).any()


def test_history_keeps_the_last_samples(nvml: FakeNvml) -> None:
    clock = Clock()
    monitor = DeviceMonitor(ranks, history_length=5, clock=clock)
    assert monitor.history("power_w").values.shape == (0, 0)
    for step in range(12):
        clock.now = 1000.0 + 0.5 * step
        nvml.gpus[4]["power_mw"] = 1000 * step
        monitor.sample()
    history = monitor.history("power_w")
    np.testing.assert_array_equal(history.seconds, [3.5, 4.0, 4.5, 5.0, 5.5])
    np.testing.assert_array_equal(history.values[:, 4], [7, 8, 9, 10, 11])
    assert history.names == tuple(gpu["name"] for gpu in RECORD["gpus"])
    memory = monitor.history("memory_used_by_us")
    assert memory.values[-1, 3] == 20 * GIB


def test_history_may_be_read_while_samples_are_taken(nvml: FakeNvml) -> None:
    monitor = DeviceMonitor(ranks, history_length=50)
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        while not stop.is_set():
            history = monitor.history("utilization")
            if history.values.shape[0] != history.seconds.shape[0]:
                failures.append(AssertionError(history.values.shape))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(300):
        monitor.sample()
    stop.set()
    reader.join()
    assert not failures


def test_close_lets_go_of_the_driver(nvml: FakeNvml) -> None:
    monitor = DeviceMonitor(ranks)
    monitor.sample()
    assert nvml.opened == 1
    monitor.close()
    monitor.close()
    assert nvml.opened == 0


@pytest.fixture
def no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real pynvml on a machine without its driver."""
    monkeypatch.setattr(pynvml, "nvmlInit", _library_not_found)


def _library_not_found() -> None:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


@pytest.fixture
def busy() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two ranks: one that computes and holds 80 MB, one that sleeps."""
    computes = "x = bytearray(80_000_000)\nprint(flush=True)\nwhile True: pass"
    sleeps = "print(flush=True)\ninput()"
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for program in (computes, sleeps)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.usefixtures("no_nvml")
def test_without_gpus_each_rank_has_a_row(busy: list[subprocess.Popen[bytes]]) -> None:
    monitor = DeviceMonitor(lambda: [process.pid for process in busy])
    first = monitor.sample()
    assert [row.name for row in first] == ["CPU rank 0", "CPU rank 1"]
    assert [row.utilization for row in first] == [None, None]  # there is no time to speak of yet
    for _ in range(100):  # a machine with other work may let it compute but little at first
        threading.Event().wait(0.5)
        computing, sleeping = monitor.sample()
        if computing.utilization is not None and computing.utilization > 2.0:
            break
    total = psutil.virtual_memory().total
    for row in (computing, sleeping):
        assert row.memory_total == total and row.temperature_c is None and row.power_w is None
        assert row.memory_used_by_others is not None and 0 <= row.memory_used_by_others < total
    assert computing.memory_used_by_us is not None and computing.memory_used_by_us > 80_000_000
    assert sleeping.memory_used_by_us is not None and sleeping.memory_used_by_us < 60_000_000
    assert computing.utilization is not None and sleeping.utilization is not None
    assert 100.0 / (psutil.cpu_count() or 1) * 1.2 > computing.utilization > 2.0 > sleeping.utilization

    busy[0].kill()
    busy[0].wait()
    gone, there = monitor.sample()
    assert (gone.name, gone.memory_used_by_us, gone.utilization) == ("CPU rank 0", None, None)
    assert there.memory_used_by_us is not None
    assert np.isnan(monitor.history("memory_used_by_us").values[-1, 0])


@pytest.mark.usefixtures("no_nvml")
def test_without_gpus_and_ranks_the_machine_is_shown() -> None:
    (row,) = DeviceMonitor(lambda: []).sample()
    assert row.name == "CPU" and row.memory_used_by_us == 0 and row.utilization is not None
    assert row.memory_used_by_others is not None and row.memory_used_by_others > 0


def test_the_real_library_gives_rows_on_this_machine() -> None:
    monitor = DeviceMonitor(lambda: [os.getpid()])
    rows = monitor.sample()
    assert rows and all(row.name for row in rows)
    monitor.close()


@pytest.mark.usefixtures("no_nvml")
def test_memory_of_the_ranks_is_not_counted_among_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = types.SimpleNamespace(total=100 * GIB, available=60 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    (row,) = DeviceMonitor(lambda: [os.getpid()]).sample()
    assert row.memory_used_by_us is not None and row.memory_used_by_us > 10_000_000
    assert row.memory_used_by_others == 40 * GIB - row.memory_used_by_us
    assert row.memory_total == 100 * GIB


def test_the_driver_alone_is_asked_for_what_it_serves(nvml: FakeNvml) -> None:
    assert read_driver() == Driver("580.65.06", (13, 0), 8) and nvml.opened == 0
    nvml.dead = True
    with pytest.raises(ValueError, match="none seen"):
        read_driver()

"""What `splatstudio doctor` says of GPUs, of the ways between them, and of two ranks."""

from __future__ import annotations

import io
import resource
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pynvml
import pytest
import torch

from splatstudio.cli import doctor, report, terminal
from splatstudio.cli.doctor import Finding, findings
from splatstudio.devices import monitor as gpu_links
from splatstudio.devices.monitor import read_gpus
from splatstudio.runtime import self_test
from splatstudio.runtime.self_test import try_two_ranks


class FakeDriver:
    """Four GPUs: 0 and 1 joined by NVLink, 2 and 3 by one switch, the pairs through two processors."""

    def __init__(self, *, nvlink: bool = True):
        self.nvlink = nvlink

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)  # the constants and the error class

    def nvmlInit(self) -> None:
        pass

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 4

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.1"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"RTX"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return types.SimpleNamespace(free=20 << 30, total=24 << 30)

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if handle > 1 or link > 3:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return int(self.nvlink and link != 2)  # one of the four is down

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, which: int) -> int:
        assert which == pynvml.NVML_P2P_CAPS_INDEX_NVLINK
        return pynvml.NVML_P2P_STATUS_OK if self.nvlink and (one, other) == (0, 1) else 5

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:
        if one // 2 != other // 2:
            return pynvml.NVML_TOPOLOGY_SYSTEM
        return pynvml.NVML_TOPOLOGY_SINGLE


def test_the_ways_between_gpus_are_named_by_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_links, "pynvml", FakeDriver())
    found = read_gpus()
    assert found.driver == "570.1" and [gpu.num_nvlinks for gpu in found.gpus] == [3, 3, 0, 0]
    assert found.describe_links() == [
        "0-1: NVLink",
        "0-2, 0-3, 1-2, 1-3: the link between two processors",
        "2-3: one PCIe switch",
    ]


def test_slow_ways_between_gpus_are_marked_with_what_they_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_links, "pynvml", FakeDriver(nvlink=False))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    rows = {row.subject: row for row in doctor._gpus()}
    assert "CUDA_VISIBLE_DEVICES=0,3 hides the others" in rows["driver"].text
    assert not rows["GPU links"].good and "less than their number" in rows["GPU links"].text
    assert rows["GPU 2"].text == "RTX, 20.0 of 24.0 GiB free"


def test_a_low_limit_of_open_files_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    found = doctor._files()
    assert not found.good and "ulimit -n 1024" in found.text and "4,096" in found.text


def test_kernels_without_avx2_serve_and_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.ops, "native_version", lambda: "portable")
    found = doctor._native()
    assert found.good and found.text.startswith(
        "portable, which run on any processor, because this one has no AVX2"
    )


def test_a_processor_that_never_has_avx2_is_not_said_to_lack_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.ops, "native_version", lambda: "portable")
    monkeypatch.setattr(doctor.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(report, "open_input", lambda path: io.BytesIO(b"processor : 0\nFeatures : fp asimd"))
    assert doctor._native().text == "portable" and report._processor() == "aarch64"


def test_two_processes_of_this_machine_agree() -> None:
    measured = try_two_ranks()
    assert 0 < measured.broadcast_seconds < 1.0 and measured.bytes_per_second > 1e6


ENDED_ONE_AFTER_THE_OTHER = """
import multiprocessing.process as process, time
from splatstudio.runtime.self_test import try_two_ranks
join = process.BaseProcess.join
if __name__ == "__main__":
    process.BaseProcess.join = lambda ended: (join(ended), time.sleep(1.0))
    print(try_two_ranks().bytes_per_second)
"""


def test_a_rank_that_is_ended_before_the_other_fails_nothing_of_its(tmp_path: Path) -> None:
    script = tmp_path / "ended.py"
    script.write_text(ENDED_ONE_AFTER_THE_OTHER)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert float(done.stdout) > 1e6


def test_ranks_that_cannot_work_together_are_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        # The backend of GPUs fails at once, in the process of the rank.
        with pytest.raises(RuntimeError, match="rank 0"):
            try_two_ranks("nccl")
    monkeypatch.setattr(self_test, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(RuntimeError, match="did not answer within 0 s"):
        try_two_ranks()
    row = doctor._two_ranks("gloo")
    assert not row.good and "cannot work together" in row.text


def test_the_report_names_every_subject_once() -> None:
    rows: list[Finding] = list(findings())
    subjects = [row.subject for row in rows]
    assert len(set(subjects)) == len(subjects)
    assert {"torch", "GPUs", "open files", "shared memory", "collectives", "ranks, gloo"} <= set(subjects)
    assert all(row.good for row in rows if row.subject in ("collectives", "ranks, gloo", "self test"))


def test_the_words_of_an_error_are_printed_as_they_are_and_what_to_do_below(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "cannot work together: [/third_party/gloo/pair.cc:538] Connection closed by peer [::1]:4711"
    rows = [Finding("memory", "[much] is free"), Finding("ranks, gloo", words, good=False)]
    monkeypatch.setattr(doctor, "findings", lambda: iter(rows))
    monkeypatch.setattr(terminal.console, "width", 1000)
    assert terminal.print_findings() == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ok", "memory", *rows[0].text.split()]
    assert lines[1].split() == ["!!", "ranks,", "gloo", *words.split()]
    advice = " ".join(lines[2:])
    for word in (
        "CUDA_LAUNCH_BLOCKING=1",
        "--max-splats auto",
        "NVLink",
        "waiting time",
        "GLOO_SOCKET_IFNAME",
    ):
        assert word in advice

"""The benchmark of the GPU runs to its end: rehearsed on the CPU, with stand-ins for the peers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels import ops
from splatstudio.rendering.render import RenderOptions, render

BENCH = Path(__file__).parents[1] / "bench"
sys.path.insert(0, str(BENCH))

import gpu  # noqa: E402  # pyright: ignore[reportMissingImports]
import gpu_kernels  # noqa: E402  # pyright: ignore[reportMissingImports]
import gpu_peers  # noqa: E402  # pyright: ignore[reportMissingImports]
import gpu_report  # noqa: E402  # pyright: ignore[reportMissingImports]
import gpu_workloads  # noqa: E402  # pyright: ignore[reportMissingImports]


def rasterization(  # noqa: PLR0913 - as gsplat's
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    colors: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    *,
    sh_degree: int,
    packed: bool,
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Render as gsplat's function of that name does, by our own kernels."""
    assert viewmats.shape == (1, 4, 4) and Ks.shape == (1, 3, 3) and not packed
    assert colors.shape == (len(means), (sh_degree + 1) ** 2, 3)
    camera = Camera(viewmats[0].double().numpy(), Ks[0].double().numpy(), width, height)
    rows = Gaussians(means, quats, scales.log(), torch.logit(opacities), colors[:, :1], colors[:, 1:])
    rendering = render(rows, camera, RenderOptions())
    return rendering.rgb[None], rendering.alpha[None, ..., None], {}


def fused_ssim(ours: Tensor, other: Tensor, padding: str = "same", train: bool = True) -> Tensor:
    """Compare pictures [1, C, H, W] as fused-ssim does, by our own kernels."""
    assert ours.shape == other.shape and ours.shape[:2] == (1, 3) and ours.is_contiguous()
    images = (image[0].permute(1, 2, 0) for image in (ours, other))
    return ops.ssim(*images, padding="same" if padding == "same" else "valid")


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stand-ins for gsplat and fused-ssim be imported."""
    for function in (rasterization, fused_ssim):
        name = "gsplat" if function is rasterization else "fused_ssim"
        module = ModuleType(name)
        setattr(module, function.__name__, function)
        module.__spec__ = __spec__
        monkeypatch.setitem(sys.modules, name, module)
    # One repeat is as good as fifteen where nobody reads the figures.
    for name in ("WARM_UPS", "REPEATS", "FEWEST_REPEATS"):
        monkeypatch.setattr(gpu_report, name, 1)


def test_a_rehearsal_measures_all_rows_beside_the_peers(
    peers: None, blob_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu.main(["--device", "cpu", "--tiny", "--seconds", "1000", "--train", str(blob_folder)])
    table = capsys.readouterr().out.split("\n\n")[1]
    compared = [
        "forward, cloud 0.001 M, 0.003 M entries",
        "forward",
        "way back",
        "training step",
        "SSIM with gradient",
        "Adam",
    ]
    for name in [
        *compared,
        "viewer, paused",
        "viewer, while",
        "viewer, training is slower",
        "blobs, 3 steps",
    ]:
        lines = [line for line in table.splitlines() if line.startswith(name)]
        assert lines and all("left out" not in line for line in lines)
        assert all((" x" in line) == (name in compared) for line in lines)
    assert "met" not in table and "MISSED" not in table  # a rehearsal judges nothing


def test_a_peer_that_cannot_do_it_ends_no_benchmark(
    peers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise TypeError("rasterization() got an unexpected keyword argument")

    monkeypatch.setattr(sys.modules["gsplat"], "rasterization", broken)
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    gpu.main(["--device", "cpu", "--tiny", "--seconds", "1000"])
    printed, table = capsys.readouterr().out.split("\n\n")
    assert "gsplat did not work: TypeError" in printed
    assert [" x" in line for line in table.splitlines() if "cloud" in line][:3] == [False] * 3
    assert " x" in next(line for line in table.splitlines() if line.startswith("SSIM"))


def test_the_peers_are_tried_alone(peers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in gpu_peers.PEERS:
        monkeypatch.setattr(sys, "argv", ["gpu_peers.py", name, "--device", "cpu"])
        gpu_peers.main()
    monkeypatch.delitem(sys.modules, "gsplat")
    monkeypatch.setattr(sys, "argv", ["gpu_peers.py", "gsplat", "--device", "cpu"])
    with pytest.raises(SystemExit, match="gsplat is not installed"):
        gpu_peers.main()


def test_what_there_is_no_time_or_no_file_for_is_left_out_with_the_reason(
    blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    gpu.main(["--device", "cpu", "--tiny", "--seconds", "0", "--train", str(blob_folder)])
    table = capsys.readouterr().out.split("\n\n")[1]
    assert "left out: there is no shared/oracle with its file" in table
    assert table.count("left out: no time was left") == 8  # cloud, steps, presets, loads, viewer, training
    assert "SSIM with gradient" in table


def test_the_garden_is_laid_out_around_the_camera(tmp_path: Path) -> None:
    num, random = 50, np.random.default_rng(0)
    file = tmp_path / "shared" / "oracle" / gpu_workloads.GARDEN
    file.parent.mkdir(parents=True)
    viewmats = np.tile(np.eye(4, dtype=np.float32), (2, 1, 1))
    np.savez(
        file,
        means=random.uniform(-1, 1, (num, 3)).astype(np.float32),
        quats=random.normal(size=(num, 4)).astype(np.float32),
        scales=np.full((num, 3), 0.1, np.float32),
        opacities=np.linspace(0, 1, num, dtype=np.float32),
        sh=random.normal(size=(num, 16, 3)).astype(np.float32),
        viewmats=viewmats,
        Ks=np.tile(np.diag([100.0, 100.0, 1.0]).astype(np.float32), (2, 1, 1)),
        width=200,
        height=100,
    )
    assert gpu_workloads.find_garden(tmp_path) == gpu_workloads.find_garden(tmp_path / "repository") == file
    workload = gpu_workloads.garden(file, 420, (400, 220), torch.device("cpu"))
    gaussians, camera = workload.gaussians, workload.camera
    assert len(gaussians) == 420 and camera.K[0, 0] == 200 and (camera.width, camera.height) == (400, 220)
    means = gaussians.means.detach()
    assert torch.isfinite(gaussians.opacities).all()
    assert torch.equal(gaussians.quats[50:100], gaussians.quats[:50])
    # The first copy is where it was, the others lie beside it on the ground, not one on the other.
    assert means[:50].abs().max() <= 1 and torch.equal(means[50:100, 2], means[:50, 2])
    centers = {tuple(copy[:, :2].mean(dim=0).round().int().tolist()) for copy in means[:400].split(50)}
    assert len(centers) == 8


def test_an_aim_is_met_or_missed_or_has_no_peer() -> None:
    report = gpu_report.Report(10.0)
    report.add("fast", 2.0, "ms", peer=4.0, aim=gpu_report.Aim(ratio=2.0))
    report.add("slow", 2.0, "ms", peer=3.9, aim=gpu_report.Aim(ratio=2.0))
    report.add("alone", 2.0, "ms", aim=gpu_report.Aim(ratio=2.0))
    report.add("large", float("nan"), "GB", aim=gpu_report.Aim(most=1.0))
    assert [line.split(": ")[1] for line in report.lines] == ["met", "MISSED", "no peer", "MISSED"]


def test_the_cpu_is_not_taken_for_a_gpu() -> None:
    with pytest.raises(SystemExit, match="only a rehearsal"):
        gpu.main(["--device", "cpu"])


def test_a_row_that_fails_is_told_and_the_others_are_measured(
    peers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nand more")

    monkeypatch.setattr(gpu, "rasterizer_rows", broken)
    rows = tmp_path / "rows.txt"
    parts = ["--part", "pictures", "kernels", "--rows", str(rows)]
    with pytest.raises(SystemExit) as ended:
        gpu.main(["--device", "cpu", "--tiny", "--seconds", "1000", *parts])
    assert ended.value.code == 1
    lines = rows.read_text().splitlines()
    told = "FAILED: RuntimeError: CUDA error: an illegal memory access was encountered"
    assert lines[-3].startswith("cloud 0.001 M") and lines[-3].endswith(told)
    assert lines[-2].startswith("SSIM") and lines[-1].startswith("Adam")
    assert not any("FAILED" in line for line in lines[-2:])


def test_tests_and_benchmark_of_the_gpu_need_neither_a_page_nor_paths_nor_videos() -> None:
    # The viewer is measured where msgspec is there: `on_gpu.sh` says so at its start where it is not.
    code = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("av", "splines", "viser", "playwright", "websockets", "msgspec"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import gpu, gpu_peers, blob_scenes
import test_cuda, test_cuda_lookahead, test_cuda_modes, test_cuda_options, test_cuda_oracle
import test_cuda_steps, test_cuda_training
"""
    tests = BENCH.parent
    folders = ":".join(map(str, (tests / "support", tests / "kernels", BENCH, tests.parent)))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": folders},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_longest_kernels_are_told_with_their_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu_kernels.main(["--device", "cpu", "--millions", "0.001", "--json", str(tmp_path / "kernels.json")])
    table = capsys.readouterr().out
    told = json.loads((tmp_path / "kernels.json").read_text())
    assert len(told["kernels"]) > 5 and sum(kernel["share"] for kernel in told["kernels"]) == pytest.approx(1)
    back = next(kernel for kernel in told["kernels"] if kernel["name"] == "raster_bwd")
    assert back["launches"] == 1 and back["gigabytes"] > 0 and back["memory"] > 0 and "raster_bwd" in table
    adam = next(kernel for kernel in told["kernels"] if kernel["name"] == "project_adam")
    assert adam["gigabytes"] > 1e-9 * 4 * 59 * 1000, "tensors in lists count"


NCU = """==PROF== Connected to process 12
"ID","Process ID","Kernel Name","dram__bytes.sum","gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",\
"gpu__time_duration.sum","sm__throughput.avg.pct_of_peak_sustained_elapsed"
"","","","byte","%","ns","%"
"0","12","void <unnamed>::raster<(bool)1, (splat::Model)4>(const float *, int)","3,000,000","50","1000","20"
"1","12","void <unnamed>::raster<(bool)1, (splat::Model)4>(const float *, int)","1,000,000","10","3000","40"
"2","12","at::native::fill(int)","8","1","10","2"
""".replace("\\\n", "")


def test_what_ncu_counts_is_summed_over_the_launches_of_a_kernel(tmp_path: Path) -> None:
    (tmp_path / "ncu.csv").write_text(NCU)
    found = gpu_kernels.counted(tmp_path / "ncu.csv")
    named = "raster<true, (splat::Model)4>"  # as the profiler calls it
    kernels = [gpu_kernels.Kernel(named, "", 2, 1.0, 0.9), gpu_kernels.Kernel("sort", "", 1, 1.0, 0.1)]
    raster, sort = gpu_kernels.with_counts(kernels, found)
    assert raster.gigabytes == pytest.approx(0.004)
    assert (raster.memory, raster.arithmetic) == (pytest.approx(0.2), pytest.approx(0.35))
    assert sort.gigabytes is None and "fill" in found
    (tmp_path / "ncu.csv").write_text("==ERROR== ERR_NVGPUCTRPERM: no permission\n")
    with pytest.raises(ValueError, match="no permission"):
        gpu_kernels.counted(tmp_path / "ncu.csv")


def test_a_kernel_is_called_by_its_own_name() -> None:
    for signature, name in {
        "void (anonymous namespace)::project<true>(float const*, int)": "project<true>",
        "void at::native::elementwise<4, at::native::Fill<float>, std::array<char*, 1>>(int, Fill<float>)": (
            "elementwise<4, at::native::Fill<float>, std::array<char*, 1>>"
        ),
        "splat::raster_bwd(Picture)": "raster_bwd",
        "Memset (Device)": "Memset",
    }.items():
        assert gpu_kernels.short_name(signature) == name

"""Half precision between ranks: fewer bytes, and what it does to a step and to a training."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from precision_tasks import STEPS, descend_in, rows_of, swap, train_in
from rank_pool import RankPool
from sharded_tasks import Case
from torch import Tensor
from worker_watcher import Launch

from splatstudio.distributed.exchange import MOST_RADIUS, Packing, pack, unpack
from splatstudio.distributed.rank_devices import RankDevices, choose_devices
from splatstudio.gui.state.project import open_project
from splatstudio.gui.state.status import Status
from splatstudio.gui.tabs.train import PRECISIONS, settings_html
from splatstudio.runtime.messages import Finished, TrainJob, Warned
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig, changed, resumed, settings_named
from splatstudio.training import memory_plan
from splatstudio.training.memory_plan import PACKED_BYTES, SEEN_SHARE, plan_memory
from splatstudio.training.precision import HALVES, machine, note_on_precision, row_bytes
from splatstudio.training.trainer import Trainer

COLORS = slice(7, 10)
COUNTS = {2: [[40, 7], [0, 31]], 3: [[5, 0, 60], [0, 0, 0], [9, 1, 20]]}  # counts[from][to]
CASES = [Case((120, 200), (((0,), (1,)),), absgrad=True), Case((0, 150, 90), (((2,), (0, 1), (100,)),))]


def through(values: Tensor, packing: Packing) -> Tensor:
    """Return what comes of `values` on the other side."""
    words = torch.empty(len(values), packing.num_words(values.shape[1]))
    pack(values, packing, words)
    back = torch.empty_like(values)
    unpack(words, packing, back)
    return back


@pytest.mark.parametrize("exact", [(0, 2), (), (0, 1, 2, 3), (1, 2, 3)])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float16, 2.0**-11), (torch.bfloat16, 2.0**-8)])
def test_the_exact_columns_lose_nothing_and_the_others_digits(
    exact: tuple[int, ...], dtype: torch.dtype, error: float
) -> None:
    values = torch.randn(50, 4, generator=torch.Generator().manual_seed(3))
    back = through(values, Packing(exact, dtype))
    others = [column for column in range(4) if column not in exact]
    assert torch.equal(back[:, exact], values[:, exact])
    torch.testing.assert_close(back, values, rtol=error, atol=0)
    assert all(not torch.equal(back[:, each], values[:, each]) for each in others)
    assert through(values[:0], Packing(exact, dtype)).shape == (0, 4)
    assert Packing(exact, dtype).num_words(4) == len(exact) + math.ceil(len(others) / 2)


def test_numbers_out_of_range_stay_what_they_are() -> None:
    """Small gradients do not vanish, large colors do not become infinite, and no NaN is hidden."""
    gradients = torch.tensor([[1e-30, -3e30, 0.0, math.inf, -math.inf, math.nan]])
    back = through(gradients, Packing((), torch.bfloat16))
    torch.testing.assert_close(back, gradients, rtol=2.0**-8, atol=0, equal_nan=True)
    colors = torch.tensor([[1e6, -1e6, 3e-5, math.inf, -math.inf, math.nan]])
    expected = torch.tensor([[65504.0, -65504.0, 3e-5, math.inf, -math.inf, math.nan]])
    back = through(colors, Packing((), torch.float16))
    torch.testing.assert_close(back, expected, rtol=1e-3, atol=0, equal_nan=True)


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("probe", [False, True])
def test_places_and_shapes_arrive_exactly_and_colors_nearly(
    pool: RankPool, num_ranks: int, probe: bool
) -> None:
    counts, num_back = COUNTS[num_ranks], 12 if probe else 10
    exact, mixed = (pool.run(num_ranks, swap, counts, num_back, halves) for halves in (None, HALVES))
    for rank, (ours, theirs) in enumerate(zip(mixed, exact, strict=True)):
        # In 32 bits: what was sent, bit for bit, a rank's own rows too.
        parts = [rows_of(each, counts[each], 10).split(counts[each])[rank] for each in range(num_ranks)]
        assert torch.equal(theirs["rows"].view(torch.int32), torch.cat(parts).view(torch.int32))
        assert torch.equal(ours["rows"][:, :7], theirs["rows"][:, :7])
        assert torch.equal(ours["radii"], theirs["radii"]) and ours["radii"].dtype == torch.int32
        pairs = (ours["rows"][:, COLORS], theirs["rows"][:, COLORS])
        torch.testing.assert_close(*pairs, rtol=2.0**-11, atol=2.0**-25, equal_nan=True)
        assert torch.equal(ours["back"][:, 2:5], theirs["back"][:, 2:5])
        torch.testing.assert_close(ours["back"], theirs["back"], rtol=2.0**-8, atol=0, equal_nan=True)
        assert sum(counts[rank]) == 0 or not torch.equal(ours["back"][:, :2], theirs["back"][:, :2])
        rows = zip(row_bytes(None, probe=probe), row_bytes(HALVES, probe=probe), strict=True)
        saved = [one - other for one, other in rows]
        less = (theirs["bytes"] - ours["bytes"]).tolist()
        assert less == [sum(counts[rank]) * saved[0], len(theirs["rows"]) * saved[1]]
    assert (row_bytes(None), row_bytes(HALVES)) == ((48, 40), (40, 28)), "77 % of the bytes"


def test_a_huge_rectangle_is_cut_down_but_no_further(pool: RankPool) -> None:
    num = MOST_RADIUS // 80 + 2  # of `swap`, the last of which are wider
    exact, mixed = (pool.run(2, swap, [[num, 0], [0, 0]], 10, halves)[0] for halves in (None, HALVES))
    assert int(exact["radii"].max()) > MOST_RADIUS
    assert torch.equal(mixed["radii"], exact["radii"].clamp_max(MOST_RADIUS))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.sizes}")
def test_a_step_finds_nearly_the_same(pool: RankPool, case: Case) -> None:
    exact, mixed = (pool.run(len(case.sizes), descend_in, case, halves) for halves in (None, HALVES))
    for ours, theirs in zip(mixed, exact, strict=True):
        assert float((ours[0] - theirs[0]).abs().max()) < 1e-3
        for name, expected in theirs[1].items():
            gradient = ours[1][name]
            assert expected is not None and gradient is not None
            # Half of 2^-8 is the most that rounding takes off a number; colors have moved a little, too.
            error, size = float((gradient - expected).norm()), float(expected.norm())
            assert error < 2.0**-8 * size or size == error == 0.0, name
    assert any(not torch.equal(ours[0], theirs[0]) for ours, theirs in zip(mixed, exact, strict=True))


def test_mixed_learns_as_well_and_is_evaluated_in_32_bits(pool: RankPool, blob_folder: Path) -> None:
    def trained(precision: str) -> dict[str, Any]:
        return pool.run(2, train_in, blob_folder, precision, ("one", "one"), STEPS, None)[0]

    exact, mixed = trained("fp32"), trained("mixed")
    assert mixed["losses"][-1] < 0.7 * mixed["losses"][0]
    assert mixed["psnr"] == pytest.approx(exact["psnr"], abs=0.1) and mixed["psnr"] != exact["psnr"]
    assert 0.7 < mixed["bytes"] / exact["bytes"] < 0.85
    assert mixed["psnr"] == pytest.approx(mixed["psnr of the whole"], abs=1e-9)


def test_auto_is_mixed_between_machines_alone(pool: RankPool, blob_folder: Path) -> None:
    def trained(precision: str, *machines: str) -> tuple[list[float], int]:
        parts = pool.run(2, train_in, blob_folder, precision, machines, 4, None)
        return parts[0]["losses"], parts[0]["bytes"]

    exact, mixed = trained("fp32", "one", "other"), trained("mixed", "one", "one")
    assert mixed[1] < exact[1] and mixed[0] != exact[0]
    assert trained("auto", "one", "one") == exact
    assert trained("auto", "one", "other") == mixed
    assert machine() == machine() != ""


def test_one_rank_is_told_that_it_has_no_effect(
    launch: Launch, pool: RankPool, blob_folder: Path, blob_scene: Scene, tmp_path: Path
) -> None:
    assert note_on_precision("auto", 1) is note_on_precision("mixed", 2) is None
    # Of two ranks that were mixed a training goes on alone, and is told.
    saved = pool.run(2, train_in, blob_folder, "mixed", ("one", "one"), 4, tmp_path / "run")[0]["saved"]
    trainer = Trainer.resume(blob_scene, saved)
    assert trainer.config.precision == "mixed" and trainer.halves is None
    assert trainer.train_step().step == 5
    with pytest.raises(ValueError, match="precision cannot be changed while training"):
        trainer.update_setting("precision", "fp32")
    trainer.close()
    worker = launch(TrainJob(blob_folder, tmp_path / "new", TrainConfig(steps=2, precision="mixed"))).start()
    worker.wait(Finished)
    assert note_on_precision("mixed", 1) in [event.sentence for event in worker.of(Warned)]


def test_it_is_a_setting_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_named(["--precision", "mixed"]) == {"precision"}
    with pytest.raises(ValueError, match="must be one of auto, fp32, mixed"):
        changed(TrainConfig(), "precision", "half")
    mixed = TrainConfig(precision="mixed")
    assert resumed(mixed, TrainConfig(), ()).precision == "mixed"
    with pytest.raises(ValueError, match="precision would change"):
        resumed(mixed, TrainConfig(precision="fp32"), ("precision",))
    monkeypatch.setattr(memory_plan, "free_bytes", lambda _: 1 << 34)
    for num_ranks, more in ((1, 0.0), (2, 2 * SEEN_SHARE * PACKED_BYTES)):
        devices = RankDevices(tuple(range(num_ranks)))
        plans = [plan_memory(config, [(100, 80)], devices) for config in (TrainConfig(), mixed)]
        assert plans[1].per_splat - plans[0].per_splat == more


def test_the_page_shows_it_where_it_matters(blob_folder: Path, tmp_path: Path) -> None:
    for precision, num_ranks, shown in (("auto", 1, False), ("auto", 2, True), ("mixed", 1, True)):
        config = changed(TrainConfig(), "precision", precision)
        devices = choose_devices(ranks=num_ranks)
        project = replace(open_project(blob_folder, config, tmp_path / "run"), devices=devices)
        text = settings_html(SimpleNamespace(project=project, status=Status()))  # type: ignore[arg-type]
        assert ("Sent between ranks" in text and PRECISIONS[precision] in text) == shown

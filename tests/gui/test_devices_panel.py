"""What the Devices tab says of GPUs, of processes on the CPU, and of several ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from splatstudio.devices.monitor import DeviceReading
from splatstudio.distributed.rank_devices import DeviceUse
from splatstudio.gui.dock import idle_gpu_html
from splatstudio.gui.state.project import Project
from splatstudio.gui.state.status import Status
from splatstudio.gui.tabs.devices import (
    DevicesPanel,
    RankRow,
    RanksPanel,
    balance_html,
    devices_html,
    imbalance,
    rank_rows,
    ranks_html,
)
from splatstudio.runtime.messages import RankFigures
from splatstudio.settings.config import TrainConfig

GPUS = tuple(DeviceReading(i, "GPU", 10**9, 0, 8 * 10**9, 55.0, 61.0, 250.0) for i in range(2))


def test_imbalance_is_the_largest_over_the_mean() -> None:
    assert imbalance((2.0, 2.0, 2.0)) == pytest.approx(1.0)
    assert imbalance((1.0, 3.0)) == pytest.approx(1.5)
    assert imbalance((0.0, 0.0)) is None and imbalance(()) is None


def test_each_ranks_share_stands_beside_its_device() -> None:
    loads = (RankFigures(0, 1000, 0.050, 0.020), RankFigures(1, 3000, 0.050, 0.0))
    page = devices_html(GPUS, rank_rows(Status(), 2, loads))
    first, second = page.split('data-splatstudio="device"')[1:]
    assert "1,000 · 50 ms, 20 ms" in first and "3,000 · 50 ms, 0 ms" in second
    assert "splats · step, waiting" in page
    balance = balance_html(loads)
    # Of splats 3000 over 2000; of work of its own 50 ms over 40 ms; of 100 ms the ranks waited 20.
    assert "1.50" in balance and "1.25" in balance and "waiting 20 %" in balance
    assert balance.count("ss-warning") == 2, "what is uneven stands out"
    even = balance_html((RankFigures(0, 1000, 0.05, 0.0), RankFigures(1, 1010, 0.05, 0.001)))
    assert "ss-warning" not in even


def test_one_rank_has_nothing_to_be_even_with() -> None:
    loads = (RankFigures(0, 1000, 0.050, 0.0),)
    assert balance_html(loads) == "" and balance_html(()) == ""


def test_long_times_are_not_powers_of_ten() -> None:
    loads = (RankFigures(0, 1000, 0.2514, 0.1586), RankFigures(1, 3000, 1.2044, 0.0996))
    page = devices_html(GPUS, rank_rows(Status(), 2, loads))
    assert "251 ms, 159 ms" in page and "1,204 ms, 100 ms" in page
    assert "1,204 ms a step, 100 ms of it" in ranks_html(loads)


def test_device_rows_never_claim_what_the_driver_did_not_tell() -> None:
    known = DeviceReading(0, "GPU <1>", 10**9, 2 * 10**9, 8 * 10**9, 55.0, 61.0, 250.0)
    page = devices_html((known,), (RankRow(1234, 0.02),))
    assert "GPU &lt;1&gt;" in page and "<1>" not in page
    memory = "1.0 GB this app, 2.0 GB others, 8.0 GB total"
    for text in ("55 %", "61 °C", "250 W", memory, "1,234 splats, 20 ms a step"):
        assert text in page
    dead = devices_html((DeviceReading(0, "GPU"), DeviceReading(1, "GPU")), ())
    assert dead.count("not available") == 8 and "0 %" not in dead
    # In a container the driver does not tell which processes are ours.
    hidden = devices_html((DeviceReading(0, "GPU", None, 2 * 10**9, 8 * 10**9),), (RankRow(7, None),))
    assert "2.0 of 8.0 GB, this app not available" in hidden and "Rank 0: 7 splats" in hidden
    cpu = devices_html((DeviceReading(0, "CPU rank 0", 10**9, 0, 10**10, 50.0),), ())
    assert "°C" not in cpu and "CPU rank 0" in cpu and "not available" not in cpu


def test_ranks_that_are_not_reached_are_not_said_to_be_silent(page: Any) -> None:
    panel = RanksPanel(page)
    panel.refresh()
    assert "No data from the ranks yet" in panel._rows.content
    page.controller.status = Status(state="disconnected")
    panel.refresh()
    assert "Not connected to the ranks" in panel._rows.content


def test_only_what_a_device_tells_can_be_plotted(page: Any) -> None:
    page.controller.pids = ()
    tab = page.server.gui.add_tab_group().add_tab("Devices")
    panel = DevicesPanel(page, tab)
    panel.close()
    cpu = DeviceReading(0, "CPU rank 0", 10**9, 0, 10**10, 50.0)
    panel._offer((cpu,))
    assert panel._choice.options == ("Utilization", "Memory of this app")
    panel._offer((DeviceReading(0, "GPU", 10**9, 0, 8 * 10**9, 55.0, 61.0, None),))
    assert panel._choice.options == ("Utilization", "Memory of this app", "Temperature")
    panel._offer((cpu,))
    assert "Temperature" in panel._choice.options, "what was told once is offered on"


def test_a_gpu_that_goes_unused_is_told_on_the_page(page: Any) -> None:
    use = DeviceUse("CPU: driver 550.54 is too old for CUDA 13; install 580 or newer", idle_gpu=True)
    told = idle_gpu_html(use)
    assert use.text in told and "ss-warning" in told
    assert idle_gpu_html(DeviceUse("CPU: no NVIDIA GPU is here")) == ""


def test_what_trains_stands_below_the_devices(page: Any) -> None:
    tab = page.server.gui.add_tab_group().add_tab("Devices")
    for use, shown in (
        (DeviceUse("GPU: H100 (sm_90)"), True),
        (DeviceUse("CPU: no nvcc", idle_gpu=True), False),
    ):
        page.controller.project = replace(page.controller.project, device_use=use)
        panel = DevicesPanel(page, tab)
        panel.close()
        assert panel._use.visible == shown and use.text in panel._use.content
    file = Path("model.ply")
    page.controller.project = Project(
        file, None, file, None, TrainConfig(), device_use=DeviceUse("CPU: no GPU")
    )
    assert not page.controller.project.can_train
    panel = DevicesPanel(page, tab)
    panel.close()
    assert not panel._use.visible, "nothing trains"

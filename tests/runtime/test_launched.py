"""Which rank torchrun or Slurm has started this process as, and what that needs."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from started_programs import StartedProgram, run_program, start_program
from worker_watcher import wait_until

from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.cli import train as train_command
from splatstudio.cli.train import launched_job
from splatstudio.files.run import Run
from splatstudio.runtime import headless_controller, launched, supervisor
from splatstudio.runtime.channel.codec import decode_order, encode
from splatstudio.runtime.channel.frame_slots import FrameSlots
from splatstudio.runtime.kept_orders import KeptOrders, going_on_sentence, kept_orders, launch_of, restarted
from splatstudio.runtime.launched import (
    LaunchedRank,
    cores_for_rank,
    first_node,
    launched_rank,
    restart_problem,
    tasks_per_node,
)
from splatstudio.runtime.messages import (
    Close,
    Event,
    Finished,
    Pause,
    PausesAt,
    SettingChanged,
    Start,
    StateChanged,
    Stop,
    TrainJob,
    UpdateSettings,
    Warned,
)
from splatstudio.runtime.remote_run import dial
from splatstudio.runtime.root_cause import ErrorReport
from splatstudio.settings.config import TrainConfig
from splatstudio.training.device_options import AS_FOUND, DeviceOptions

TORCHRUN = {"TORCHELASTIC_RUN_ID": "a", "RANK": "3", "WORLD_SIZE": "4"}
TORCHRUN |= {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
# As Slurm 22.05 sets them; the job is sbatch --nodes 2 --ntasks-per-node 2.
BATCH_SCRIPT = {"SLURM_JOB_ID": "6", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}
BATCH_SCRIPT |= {"SLURM_NODEID": "0", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_NODELIST": "node[1-2]"}
IN_STEP = {"SLURM_STEPID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node[1-2]"}
IN_STEP |= {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
SLURM = {"SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "12", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}
SLURM |= {"SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "8,4", "SLURM_JOB_ID": "120345"}


@pytest.fixture
def environment() -> Iterator[None]:
    """Put the variables of this process back after the test."""
    before = dict(os.environ)
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.usefixtures("environment")
def test_a_rank_knows_its_place_from_the_launchers_variables() -> None:
    assert launched_rank({}) is None
    assert launched_rank(BATCH_SCRIPT) is None, "the script itself, not what it starts with srun"
    assert launched_rank({**SLURM, "SLURM_STEP_NUM_TASKS": "1"}) is None, "a shell inside of a job"
    assert launched_rank(TORCHRUN) == LaunchedRank(3, 4, 1, 2)
    with pytest.raises(ValueError, match="MASTER_ADDR"):
        launched_rank(SLURM)
    assert launched_rank({**SLURM, "SLURM_STEP_NODELIST": "node[07-08]"}) == LaunchedRank(9, 12, 1, 4)
    meeting = {name: os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")}
    assert meeting == {"MASTER_ADDR": "node07", "MASTER_PORT": "29845", "RANK": "9", "WORLD_SIZE": "12"}


@pytest.mark.usefixtures("environment")
def test_two_tasks_on_each_of_slurms_two_machines_are_four_ranks() -> None:
    places = ((0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1))
    for rank, node, local in places:
        task = {"SLURM_PROCID": str(rank), "SLURM_NODEID": str(node), "SLURM_LOCALID": str(local)}
        assert launched_rank({**BATCH_SCRIPT, **IN_STEP, **task}) == LaunchedRank(rank, 4, local, 2)
        assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("node1", "29506")
    third = {"SLURM_PROCID": "2", "SLURM_NODEID": "1", "SLURM_LOCALID": "0"}
    uneven = {"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "2,1", **third}
    assert launched_rank({**BATCH_SCRIPT, **IN_STEP, **uneven}) == LaunchedRank(2, 3, 0, 1)


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"SLURM_PROCID": "5"}, "rank 5 of 4"),
        ({"SLURM_PROCID": "-1"}, "rank -1 of 4"),
        ({"SLURM_STEP_TASKS_PER_NODE": "0"}, "one of 0 on this machine"),
    ],
)
def test_variables_that_cannot_be_are_refused(changed: dict[str, str], sentence: str) -> None:
    task = {"SLURM_PROCID": "1", "SLURM_NODEID": "0", "SLURM_LOCALID": "1"}
    with pytest.raises(ValueError, match=f"make no sense: .*{sentence}"):
        launched_rank({**BATCH_SCRIPT, **IN_STEP, **task, **changed})
    with pytest.raises(ValueError, match="rank 4 of 4"):
        launched_rank({**TORCHRUN, "RANK": "4"})
    for port, told in (("abc", "should be a number"), ("80000", "between 1 and 65535")):
        os.environ["MASTER_PORT"] = port
        with pytest.raises(ValueError, match=f"MASTER_PORT.* {told}"):
            launched_rank(TORCHRUN)


def test_a_rank_keeps_no_more_cores_busy_than_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    rank = LaunchedRank(0, 4, 0, 2)
    assert cores_for_rank(rank, {}) == 4
    assert cores_for_rank(rank, {**IN_STEP, "SLURM_CPUS_PER_TASK": "6"}) == 6
    assert cores_for_rank(LaunchedRank(0, 32, 0, 16), {}) == 1


@pytest.mark.usefixtures("environment")
def test_a_chosen_meeting_place_wins_over_the_first_node() -> None:
    launched_rank({**SLURM, "SLURM_STEP_NODELIST": "a,b", "MASTER_ADDR": "other", "SLURM_STEP_ID": "1"})
    assert os.environ["MASTER_ADDR"] == "other"
    assert os.environ["MASTER_PORT"] == "29882", "two steps of one job do not meet"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node7", "node7"),
        ("node[01-04,07],login", "node01"),
        ("rack[2-3]n[10,12-14]", "rack2n10"),
        ("gpu-3,gpu-9", "gpu-3"),
        ("n[5]", "n5"),
        ("", ""),
    ],
)
def test_the_first_of_slurms_nodes(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


def test_slurms_ranks_of_each_node() -> None:
    assert tasks_per_node("8(x2),4") == [8, 8, 4]
    assert tasks_per_node("3") == [3]


@pytest.mark.parametrize(
    ("name", "text"),
    [("SLURM_STEP_TASKS_PER_NODE", "abc"), ("SLURM_STEP_NUM_TASKS", ""), ("SLURM_NODEID", "one")],
)
@pytest.mark.usefixtures("environment")
def test_a_variable_of_the_launcher_that_is_no_number_is_named(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"{name}.*{text!r}"):
        launched_rank({**BATCH_SCRIPT, **IN_STEP, name: text})


def test_a_torchrun_whose_restarts_fail_is_told_of() -> None:
    shared = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_MAX_RESTARTS": "3"}
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in (restart_problem(shared) or "")
    assert restart_problem({**shared, "TORCHELASTIC_USE_AGENT_STORE": "False"}) is None
    assert restart_problem({**shared, "TORCHELASTIC_MAX_RESTARTS": "0"}) is None
    assert restart_problem({}) is None


def test_the_ranks_of_a_launcher_need_a_common_folder(blob_folder: Path) -> None:
    done = run_program("-m", "splatstudio", "train", blob_folder, env={**os.environ, **TORCHRUN})
    assert done.returncode == 2 and "need --run" in done.stderr


LIMIT = "densify.max_gaussians"


def asked(
    scene: Path,
    run: Path | None,
    config: TrainConfig = TrainConfig(),
    *given: str,
    devices: DeviceOptions = AS_FOUND,
    resume: bool = False,
) -> TrainJob:
    return launched_job(scene, config, run, resume=resume, given=given, devices=devices)[0]


def test_what_a_launcher_decides_is_refused_and_a_number_is_followed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for devices in (DeviceOptions(gpus="0"), DeviceOptions(ranks=2)):
        with pytest.raises(ValueError, match="omit --gpus and --ranks"):
            asked(tmp_path, run, devices=devices)
    for devices in (DeviceOptions(max_splats="auto"), DeviceOptions(fit_batch=True)):
        with pytest.raises(ValueError, match="as numbers"):
            asked(tmp_path, run, devices=devices)
    job = asked(tmp_path, run, devices=DeviceOptions(max_splats=777))
    assert job.config.densify.max_gaussians == 777 and job.attempt == 0
    with pytest.raises(ValueError, match="must be at least"):
        asked(tmp_path, run, devices=DeviceOptions(max_splats=0))
    with pytest.raises(ValueError, match="is no run folder"):
        asked(tmp_path, run, resume=True)
    run.mkdir()
    (run / "thesis.txt").touch()
    with pytest.raises(ValueError, match="not empty"):
        asked(tmp_path, run)


def test_a_run_goes_on_as_it_was_changed_and_with_what_is_asked_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = TrainConfig(steps=100, ssim_weight=0.3)
    run = Run.create(tmp_path / "run", tmp_path / "scene", started)
    latest = replace(started, ssim_weight=0.5, keep=3)  # changed while it trained
    checkpoint = run.path / "ckpts" / "step_00000020"
    monkeypatch.setattr(train_command, "newest_or_why", lambda _: (checkpoint, ""))
    monkeypatch.setattr(train_command, "config_of_checkpoint", lambda _: latest)
    scene = tmp_path / "scene"
    # A restart gives the same command again: what was changed meanwhile stays.
    job, notes = launched_job(
        scene, started, run.path, resume=False, given={"steps", "ssim_weight"}, devices=AS_FOUND
    )
    assert job == TrainJob(scene, run.path, latest, checkpoint, attempt=1)
    assert notes == ("As changed while it trained: ssim_weight 0.5",)
    longer = asked(scene, run.path, replace(started, steps=200), "steps", "ssim_weight")
    assert longer.config == replace(latest, steps=200)
    with pytest.raises(ValueError, match="sh_degree, strategy would change"):
        asked(scene, run.path, replace(started, sh_degree=1, strategy="mcmc"), "sh_degree", "strategy")
    assert asked(scene, run.path, TrainConfig()).config == latest, "not given: not asked for"
    limited = asked(scene, run.path, started, devices=DeviceOptions(max_splats=900))
    assert limited.settings == ((LIMIT, 900),) and limited.config == latest
    same = asked(scene, run.path, started, devices=DeviceOptions(max_splats=started.densify.max_gaussians))
    assert same.settings == ()
    with pytest.raises(ValueError, match="belongs to"):
        asked(tmp_path / "other", run.path, started)


def test_a_run_without_a_checkpoint_is_begun_again_in_its_folder(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", tmp_path / "scene", TrainConfig(steps=100))
    job = asked(tmp_path / "scene", run.path, TrainConfig(steps=100), "steps")
    assert (job.checkpoint, job.attempt) == (None, 1)
    with pytest.raises(ValueError, match="no checkpoint to resume"):
        asked(tmp_path / "scene", run.path, resume=True)


def slurm_rank(rank: int, port: int, *arguments: object) -> StartedProgram:
    step = {"SLURM_PROCID": rank, "SLURM_STEP_NUM_TASKS": 2, "SLURM_LOCALID": 0, "SLURM_NODEID": rank}
    step |= {"SLURM_STEP_ID": 0, "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_NODELIST": "localhost"}
    environment = {**os.environ, **{name: str(value) for name, value in step.items()}}
    environment |= {"MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    script = (
        "from splatstudio.runtime import agreement; agreement.SEEN_SECONDS = 1.0\n"
        "from splatstudio.cli.main import main; main()"
    )
    return start_program("-c", script, "train", *arguments, env=environment, stderr=subprocess.STDOUT)


def test_a_machine_that_does_not_see_the_run_says_so(blob_folder: Path, tmp_path: Path) -> None:
    port = free_port()
    ranks = [
        slurm_rank(rank, port, blob_folder, "--run", tmp_path / f"run{rank}", "--steps", "100000")
        for rank in (0, 1)
    ]
    try:
        told = ranks[1].communicate(timeout=150)[0]
        assert ranks[1].returncode == 2, told
        assert "does not see" in told and "on a disk that all machines share" in told.replace("\n", " "), told
        assert f"waiting for 2 ranks at localhost:{port}" in told
        first = ranks[0].communicate(timeout=100)[0]
        assert ranks[0].returncode != 0 and f"waiting for 2 ranks at localhost:{port}" in first
    finally:
        for rank in ranks:
            rank.kill()


def test_ranks_that_were_started_otherwise_say_so_and_train_nothing(
    blob_folder: Path, tmp_path: Path
) -> None:
    port, run = free_port(), tmp_path / "run"
    same = (blob_folder, "--run", run, "--steps", "100000")
    ranks = [slurm_rank(0, port, *same), slurm_rank(1, port, *same, "--strategy", "mcmc")]
    try:
        for rank in ranks:
            told = " ".join(rank.communicate(timeout=150)[0].split())
            assert rank.returncode == 2, told
            assert 'strategy is "mcmc", not "default"' in told and "the same command" in told, told
        assert not run.exists()
    finally:
        for rank in ranks:
            rank.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_rank_that_waits_for_the_others_ends_at_a_signal(
    number: signal.Signals, blob_folder: Path, tmp_path: Path
) -> None:
    port, run = free_port(), tmp_path / "run"
    rank = slurm_rank(0, port, blob_folder, "--run", run, "--steps", "100000")
    try:
        there = False
        while not there:  # rank 0 has the store at which the others are to come
            assert rank.poll() is None
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                there = True
        rank.send_signal(number)
        told = rank.communicate(timeout=100)[0]
        assert rank.returncode == 128 + number, told
        assert f"{number.name} came. The other ranks had not come yet; nothing was trained." in told
        assert not run.exists()
    finally:
        rank.kill()


def test_a_rank_says_once_what_its_user_is_to_know(tmp_path: Path) -> None:
    port, run = free_port(), tmp_path / "run"
    ranks = [slurm_rank(rank, port, tmp_path / "nowhere", "--run", run, "--steps", "9") for rank in (0, 1)]
    try:
        for rank in ranks:
            told = rank.communicate(timeout=150)[0]
            assert rank.returncode == 2 and "Traceback" not in told, told
            assert told.count("nowhere does not exist") == 1, told
    finally:
        for rank in ranks:
            rank.kill()


def test_a_taken_port_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FrameSlots] = []

    def create(*arguments: int, **more: int) -> FrameSlots:
        made.append(real(*arguments, **more))
        return made[-1]

    real = FrameSlots.create
    monkeypatch.setattr(launched.FrameSlots, "create", create)
    monkeypatch.setattr(launched, "settle_device", lambda *_: None)
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(OSError, match="give --attach another"),
    ):
        at = ("127.0.0.1", taken.getsockname()[1])
        launched.train_launched(LaunchedRank(0, 2, 0, 2), TrainJob(tmp_path, tmp_path), lambda _: None, at)
    assert len(made) == 1 and made[0].file.opened.closed


@pytest.mark.parametrize(
    ("host", "found_at"),
    [("127.0.0.1", "127.0.0.1"), ("this", "this"), ("0.0.0.0", "this"), ("192.0.2.1", ""), ("who", "")],
)
def test_rank_0_listens_where_others_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, found_at: str
) -> None:
    def looked_up(name: str, port: int, **_: object) -> list[tuple[object, ...]]:
        if name == "who":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        # The name that a machine of Debian's has for itself is one of loopback.
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ({"this": "127.0.1.1"}.get(name, name), port))]

    monkeypatch.setattr(socket, "gethostname", lambda: "this")
    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    told: list[Event] = []
    nothing: Any = _FullDisk()
    wire = headless_controller.HeadlessController(nothing, nothing, TrainJob(tmp_path, tmp_path), told.append)
    if not found_at:
        with pytest.raises(OSError, match=rf"^rank 0 runs on this and cannot listen at {host} there \("):
            wire.listen((host, 0), None, 2)
        return
    wire.listen((host, 0), None, 2)
    monkeypatch.undo()
    assert isinstance(told[0], Warned)
    address, token = told[0].sentence.split()[-3], told[0].sentence.split()[-1]
    name, _, port = address.rpartition(":")
    assert name == found_at and not token.startswith("-")
    line = dial(f"127.0.0.1:{port}", token, frames=False)
    line.close()
    wire.close()


def test_a_name_of_loopback_opens_no_other_network_unless_it_is_the_machines_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 1))]
    monkeypatch.setattr(socket, "gethostname", lambda: "this")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    bound: list[str] = []
    for host in ("this", "this.example.org", "localhost", "other"):
        headless_controller._listening((host, 1), lambda at, _: bound.append(at))  # type: ignore[arg-type, return-value]
    assert bound == ["0.0.0.0", "0.0.0.0", "localhost", "other"]


def test_a_rank_whose_peer_has_gone_points_to_that_one() -> None:
    text = "[pair.cc:553] Connection closed by peer [10.0.0.2]:26804. GLHF!"
    gone = ErrorReport(1, 7, "RuntimeError", text, f"An unexpected error: {text}", False, 1)
    assert "another rank has gone" in launched._last_word(gone)
    own = ErrorReport(1, 7, "RuntimeError", "it broke", "An unexpected error: it broke.", False, 1)
    assert launched._last_word(own) == own.sentence


class _FullDisk:
    """A training at its end whose model cannot be saved, as the wire sees it."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.answered = 0

    def send_bytes(self, order: bytes) -> None:
        self.told.append(decode_order(order)[1])

    def poll(self, timeout: float | None) -> bool:
        """Return whether an order has come to which nothing was answered."""
        return len(self.told) != self.answered

    def recv_bytes(self) -> bytes:
        self.answered = len(self.told)
        if Close() in self.told:
            raise EOFError
        return encode(StateChanged("paused", unsaved=True))


def test_a_full_disk_at_the_end_is_tried_again_and_told_by_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(supervisor, "RETRY_MINUTES", 0.0004)  # twice
    line, job = _FullDisk(), TrainJob(Path("scene"), Path("run"))
    wire = headless_controller.HeadlessController(line, None, job, lambda _: None)  # type: ignore[arg-type]
    wire.follow()
    assert line.told == [Start(), Stop(), Stop(), Close()] and wire.unsaved


class _Resumed(_FullDisk):
    """A training whose disk was full, and that was told to go on before the next save was due."""

    def __init__(self) -> None:
        super().__init__()
        self.states = [StateChanged("paused", unsaved=True), StateChanged("training")]

    def poll(self, timeout: float | None) -> bool:
        return bool(self.states) or timeout is None

    def recv_bytes(self) -> bytes:
        if not self.states:
            raise EOFError
        return encode(self.states.pop(0))


def test_a_training_that_goes_on_again_is_not_stopped_for_its_full_disk() -> None:
    line = _Resumed()
    wire = headless_controller.HeadlessController(
        line,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        TrainJob(Path("scene"), Path("run")),
        lambda _: None,
    )
    wire.follow()
    assert line.told == [Start()] and not wire.unsaved


class _Told(_FullDisk):
    """A training that tells a list of events and ends."""

    def __init__(self, *events: Event) -> None:
        super().__init__()
        self.events = list(events)

    def poll(self, timeout: float | None) -> bool:
        return True

    def recv_bytes(self) -> bytes:
        if not self.events:
            raise EOFError
        return encode(self.events.pop(0))


@pytest.mark.usefixtures("environment")
def test_a_training_that_is_started_again_stands_still_with_its_live_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    job, mine = TrainJob(tmp_path, tmp_path / "run"), launch_of(os.environ, named_once=False)
    assert mine.startswith("torchrun a on ") and mine == launch_of(os.environ, named_once=False)
    assert launch_of(os.environ, named_once=True) == "torchrun a"
    assert launch_of(SLURM, named_once=False) == "slurm 120345.0", "that of a job that is queued again"
    Run.create(job.run_dir, tmp_path, TrainConfig())
    told: list[Event] = []

    def ordered(line: _Told, attempt: int, *, launch: str = mine, steered: bool = True) -> list[Any]:
        wire = headless_controller.HeadlessController(line, None, replace(job, attempt=attempt), told.append)  # type: ignore[arg-type]
        wire._steered, wire._orders = steered, KeptOrders(launch)
        wire.follow()
        return line.told

    changes = SettingChanged(9, "ssim_weight", 0.5), SettingChanged(9, "steps", TrainConfig().steps)
    assert ordered(_Told(*changes, PausesAt(90), StateChanged("paused")), 0) == [Start()]
    again = [Start(90), UpdateSettings((("ssim_weight", 0.5),)), Pause()]
    assert ordered(_Told(StateChanged("training")), 1) == again
    assert isinstance(told[-2], Warned) and told[-2].sentence == (
        "Started again by its launcher, it goes on from its beginning: nothing had been saved yet. As before"
        " it was started again: ssim_weight is 0.5; it pauses where it was told to; it stands still, and"
        " Resume lets it go on."
    )
    assert ordered(_Told(), 1) == again[:2], "it was told to go on since"
    assert ordered(_Told(), 1, steered=False) == [Start()], "nobody could change it"
    assert ordered(_Told(), 1, launch="another") == [Start()]
    signalled = _Told(StateChanged("paused"), Finished(9, False, None))
    assert ordered(signalled, 1)[0] == Start(90), "by a signal of torchrun's, for one"
    no_room = StateChanged("paused", unsaved=True)
    assert ordered(_Told(no_room), 1) == again
    assert ordered(_Told(StateChanged("training"), no_room), 1) == again, "nor was there room at the signal"
    assert ordered(_Told(), 1) == again[:2], "it had been told to go on"
    headless_controller.HeadlessController(None, None, job, told.append).forget_orders()  # type: ignore[arg-type]
    assert ordered(_Told(), 1) == [Start()], "it was over"


def test_a_training_that_is_started_again_says_from_where_it_goes_on() -> None:
    checkpoint = Path("run", "ckpts", "step_00001250")
    assert going_on_sentence(checkpoint, (Start(),), again=True) == (
        "Started again by its launcher, it goes on from the checkpoint of step 1,250."
    )
    assert going_on_sentence(None, (Start(),), again=False, why="it is damaged") == (
        "It goes on from its beginning: no checkpoint can be used (it is damaged)."
    )
    assert restarted({"TORCHELASTIC_RESTART_COUNT": "1"}) and restarted({"SLURM_RESTART_COUNT": "2"})
    assert not restarted({"TORCHELASTIC_RESTART_COUNT": "0"}) and not restarted({})


def test_what_is_told_is_kept_already(tmp_path: Path) -> None:
    # Else a machine that dies as the page shows "paused" is replaced by one that trains.
    job, kept = TrainJob(tmp_path, tmp_path / "run"), []
    Run.create(job.run_dir, tmp_path, TrainConfig())
    line = _Told(StateChanged("paused"))
    wire = headless_controller.HeadlessController(
        line,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        job,
        lambda _: kept.append(kept_orders(job.run_dir, "mine").paused),
    )
    wire._steered, wire._orders = True, KeptOrders("mine")
    wire.follow()
    assert kept == [True]


def test_who_looks_on_from_elsewhere_gets_each_mark_of_the_curves(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", tmp_path, TrainConfig())
    rows = [{"step": step, "loss": 0.1} for step in range(5000)]
    for step in range(3, 5000, 100):
        rows[step]["densified"] = {"opacities_reset": True}  # type: ignore[assignment]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    kept = headless_controller.metrics_rows(run.path)
    assert sum("densified" in row for row in kept) == 50 and 1000 <= len(kept) < 1100


def test_who_comes_to_a_port_that_was_free_late_hears_what_was_told_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headless_controller, "LISTEN_SECONDS", 0.05)
    told: queue.Queue[Event] = queue.Queue()
    wire = headless_controller.HeadlessController(
        _FullDisk(),  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        TrainJob(tmp_path, tmp_path, attempt=1),
        told.put,
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wire.listen(taken.getsockname(), None, 2)
        wire.tell(StateChanged("training"))
        said = [told.get(timeout=60), told.get(timeout=60)]
    assert isinstance(said[0], Warned) and "tries again" in said[0].sentence
    found = told.get(timeout=60)
    assert isinstance(found, Warned)
    address, token = found.sentence.split()[-3], found.sentence.split()[-1]
    with closing(dial(address, token, frames=False)) as line:
        assert line.receive() == StateChanged("training")
    wire.close()


def test_a_signal_to_one_rank_alone_saves_the_training_and_says_so_by_the_exit_code(
    blob_folder: Path, tmp_path: Path
) -> None:
    port, run = free_port(), tmp_path / "run"
    ranks = [slurm_rank(rank, port, blob_folder, "--run", run, "--steps", "100000") for rank in (0, 1)]
    try:
        wait_until((run / "metrics.jsonl").exists, "it trains")
        ranks[1].send_signal(signal.SIGTERM)
        told = [" ".join(rank.communicate(timeout=100)[0].split()) for rank in ranks]
        assert "SIGTERM came to rank 1. All ranks save and end." in told[0], told
        assert [rank.returncode for rank in ranks] == [128 + signal.SIGTERM] * 2, told
    finally:
        for rank in ranks:
            rank.kill()
    checkpoint = newest_checkpoint(run)
    assert checkpoint is not None and f"{checkpoint.name}" in told[0], told

"""A rank that torchrun or Slurm has started, on this machine or another: the same rank, without a studio.

What they leave in the environment says which rank it is. The launcher starts the processes and, where one
dies, all of them again; they go on from the newest checkpoint. Rank 0 prints what it tells. The run's folder
must be one that all machines see.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec
import psutil
from msgspec import Struct
from torch._C._distributed_c10d import TCPStore

from splatstudio.distributed.rank_devices import settle_device, usable_gpus
from splatstudio.operating_system import num_processors
from splatstudio.runtime.channel.frame_slots import FrameSlots
from splatstudio.runtime.channel.tls import NO_TLS, TlsFiles
from splatstudio.runtime.headless_controller import HeadlessController
from splatstudio.runtime.heartbeat import Beat, Heartbeats, Limits, Phase, Silence, SilenceWatch
from splatstudio.runtime.messages import Event, TrainJob, Warned
from splatstudio.runtime.rank import activity_of, rank_main
from splatstudio.runtime.rank_group import RankPipe, RankSpec, silence_in_words
from splatstudio.runtime.root_cause import ErrorReport, read_report
from splatstudio.runtime.standstill import Patience

LOOK_SECONDS = 1.0
STORE_SECONDS = 5.0  # for the store to answer
SPREAD_SECONDS = 3 * LOOK_SECONDS  # for the others to hear whom to end
DEAF_SECONDS = 60.0  # without the store and without a step: what a network mends by itself takes less
# The disks are of a network that others use, too.
LIMITS = Limits(stuck={**Limits().stuck, Phase.LOADING: 3600.0, Phase.TRAINING: 600.0, Phase.OBEYING: 3600.0})
MEETING_SECONDS = 600.0  # for all ranks to come together; each machine has torch loaded by then
HUNG = 3  # the exit code of a rank that ends because of one that hangs

log = logging.getLogger("splatstudio.runtime")

LAST_WORDS_SECONDS = 2.0
UNSAVED = 2  # the exit code where the model could not be saved
SLURM_PORT = 29_500  # the first of a thousand, of which a step takes one by its job's number and its own
_STEPS_APART = 37


class Process(Struct, frozen=True):
    """Which process a rank is; `born` tells it from a later one of the same number."""

    host: str
    pid: int
    born: float

    @classmethod
    def own(cls) -> Process:
        """Return this process."""
        return cls(socket.gethostname(), os.getpid(), psutil.Process().create_time())

    @property
    def found(self) -> psutil.Process | None:
        """Return the process, None where it is on another machine, or gone."""
        if self.host != socket.gethostname():
            return None
        try:
            process = psutil.Process(self.pid)
            return process if process.create_time() == self.born else None
        except psutil.Error:
            return None


class RankWord(Struct, frozen=True):
    """What a rank tells of itself, and rank 0 of who is to be ended."""

    beat: Beat
    process: Process
    blamed: Process | None = None
    left: bool = False  # it ends, as it should


class LaunchedWatch:
    """The heartbeats of ranks on several machines, as one of them sees them."""

    def __init__(self, rank: int, num_ranks: int, heartbeats: Heartbeats, tell: Callable[[str], None]):
        """Watch from `rank` on, whose own words are in `heartbeats`, once the ranks have met.

        `tell` gets a sentence on the rank that hangs, on a thread of its own.
        """
        self._rank = rank
        self._own = heartbeats
        self._tell = tell
        self._process = Process.own()
        self._alone = num_ranks == 1
        self._watched = tuple(range(num_ranks)) if rank == 0 else (0,)
        self._heard: dict[int, RankWord] = {}
        self._foreign: set[int] = set()  # ranks whose words are not understood
        self._words = Heartbeats(multiprocessing.get_context("spawn"), len(self._watched))
        self._blamed: Process | None = None
        self._answered = 0.0  # when the store did last
        self._moved = 0  # this rank's own main thread, at the look before
        # A thread of its own: a store whose process is stopped may never answer, whatever its timeout.
        self._talker = threading.Thread(target=self._talk, name="launched-beats", daemon=True)
        self._patience = Patience(LIMITS, self._warn)
        self._over = threading.Event()
        self._ends = False  # for a signal that another rank has got

    def start(self) -> None:
        """Begin, where there is more than one rank."""
        if not self._alone:  # else nobody has made a store
            threading.Thread(target=self._run, name="launched-watch", daemon=True).start()

    def stop(self) -> None:
        """Watch no more, and say so: this rank leaves, as the others do, but not in the same moment."""
        self._over.set()
        if self._talker.is_alive():
            self._talker.join(SPREAD_SECONDS)

    def _run(self) -> None:
        began = time.monotonic()
        while self._own.read(self._rank).phase == Phase.STARTING:
            if self._over.wait(LOOK_SECONDS):
                return
            if time.monotonic() - began > MEETING_SECONDS:
                self._never_met()
        self._answered = time.monotonic()
        self._talker.start()
        watch = SilenceWatch(self._words, len(self._watched), LIMITS)
        looked = time.monotonic()
        while not self._over.wait(LOOK_SECONDS):
            now = time.monotonic()
            deaf = now - self._answered > STORE_SECONDS
            self._spare(deaf=deaf)
            # Without the store rank 0 knows nothing of the others; to them that is the silence of rank 0.
            elapsed = 0.0 if deaf and self._rank == 0 else now - looked
            silence = watch.check(elapsed, order_waits=False)
            looked = now
            self._patience.on_disk(self, len(self._watched), watch.stuck_seconds)
            if silence is not None and (silence.seconds >= DEAF_SECONDS if deaf else self._is_hang(silence)):
                self._end(silence)
            elif watch.all_alive:
                self._patience.forget()

    def _never_met(self) -> None:
        """Tell that the ranks do not come together, and end; a launcher may start them again."""
        sentence = f"The ranks have not met for {MEETING_SECONDS / 60:.0f} minutes. All end."
        if (problem := restart_problem(os.environ)) is not None:
            sentence = f"{sentence} {problem}."
        log.error("%s", sentence)
        self._tell(sentence)
        time.sleep(LAST_WORDS_SECONDS)
        sys.stderr.flush()
        os._exit(HUNG)  # the main thread waits in native code

    def _warn(self, number: int, what: str) -> None:
        self._tell(f"Rank {self._watched[number]} {what}. Nothing is lost.")

    def _spare(self, *, deaf: bool) -> None:
        """Count no silence of who has not told of itself, nor of rank 0 where this rank gets on."""
        own = self._own.read(self._rank)
        gets_on = own.moved != self._moved or own.phase not in (Phase.TRAINING, Phase.WAITING)
        self._moved = own.moved
        for number, rank in enumerate(self._watched):
            if rank not in self._heard:
                self._words.write(number, 2, int(Phase.WAITING))
            if rank not in self._heard or (deaf and gets_on):
                self._words.write(number, 0, time.monotonic_ns())
                self._words.write(number, 1, own.moved)

    def _talk(self) -> None:
        store: TCPStore | None = None
        warned = False
        while not self._over.wait(LOOK_SECONDS):
            # A connection that broke is not mended by itself.
            store = store or _store()
            if store is not None and self._exchange(store):
                self._answered = time.monotonic()
            else:
                store = None
                if not warned:
                    log.warning("ranks that hang are not noticed while the store does not answer")
                warned = True
        if store is not None:
            try:
                told = RankWord(self._own.read(self._rank), self._process, self._blamed, left=True)
                store.set(_key(self._rank), msgspec.json.encode(told).decode())
            except RuntimeError as error:
                log.info("the store has gone: %s", error)

    def _exchange(self, store: TCPStore) -> bool:
        """Tell of this rank and hear of the others; return False where the store does not answer."""
        try:
            told = RankWord(self._own.read(self._rank), self._process, self._blamed)
            store.set(_key(self._rank), msgspec.json.encode(told).decode())
            there = [rank for rank in self._watched if store.check([_key(rank)])]
            answers = store.multi_get([_key(rank) for rank in there]) if there else []
        except RuntimeError as error:
            log.info("the store does not answer: %s", error)
            return False
        for rank, answer in zip(there, answers, strict=True):
            try:
                heard = msgspec.json.decode(answer, type=RankWord)
            except msgspec.MsgspecError:
                if rank not in self._foreign:
                    log.warning("rank %d is not watched: it has another release of splatstudio", rank)
                self._foreign.add(rank)
                continue
            if heard.left:
                self._heard.pop(rank, None)
                continue
            self._heard[rank], beat = heard, heard.beat
            for word, value in enumerate((beat.alive, beat.moved, int(beat.phase), beat.step)):
                self._words.write(self._watched.index(rank), word, value)
            if self._rank == 0 and beat.signal:
                self._end_for(rank, beat.signal)
            if self._rank > 0 and heard.blamed is not None:
                self._kill(heard.blamed)
        return True

    def _end_for(self, rank: int, number: int) -> None:
        """End, and all ranks with this one, as rank 0 would by a signal that another rank has got alone."""
        if self._ends or self._own.read(self._rank).signal:
            return  # it has come here, too
        self._ends = True  # in native code it is heard later
        self._tell(f"{signal.Signals(number).name} came to rank {rank}. All ranks save and end.")
        # nohup switches SIGHUP off, for one rank or for all.
        deaf = signal.getsignal(number) == signal.SIG_IGN
        signal.raise_signal(signal.SIGTERM if deaf else number)

    def _is_hang(self, silence: Silence) -> bool:
        """Return whether a silence is more than that of native code at a large file, or of a stopped rank.

        One that was stopped on this machine is woken; to end it would cost the steps since the checkpoint.
        """
        if not silence.frozen:
            return not self._patience.on_disk(self, len(self._watched), silence.seconds)
        heard = self._heard.get(self._watched[silence.rank])
        process = None if heard is None else heard.process.found
        if process is None:  # on another machine, where it may be woken, too
            return silence.seconds >= LIMITS.busy
        return self._patience.is_over(self, silence, at_stake=0.0)

    def process(self, rank: int) -> psutil.Process | None:
        """Return the process of a watched rank, by its number among them."""
        heard = self._heard.get(self._watched[rank])
        return None if heard is None else heard.process.found

    def _end(self, silence: Silence) -> None:
        """Tell which rank hangs, have it ended, and end."""
        rank = self._watched[silence.rank]
        heard = self._heard.get(rank)
        host = "" if heard is None else f" on {heard.process.host}"
        sentence = f"Rank {rank}{host} {silence_in_words(silence)}. All ranks end."
        log.error("%s", sentence)
        self._tell(sentence)
        if heard is not None and rank != self._rank:
            self._blamed = heard.process  # for its own machine to end it
            self._kill(heard.process)
        time.sleep(SPREAD_SECONDS)
        sys.stderr.flush()
        os._exit(HUNG)  # the main thread waits for the one that hangs, in native code

    def _kill(self, process: Process) -> None:
        """End a rank of this machine that hangs: its launcher may take half a minute for it."""
        if process == self._process:
            log.error("this rank hangs, as rank 0 says")
            os._exit(HUNG)
        found = process.found
        if found is not None:
            found.kill()


def _store() -> TCPStore | None:
    """Return the store by which the ranks have met, None where it does not answer now."""
    timeout = timedelta(seconds=STORE_SECONDS)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timeout)
    except RuntimeError as error:  # all errors of the store are
        log.info("the store cannot be reached: %s", error)
        return None


def _key(rank: int) -> str:
    return f"splatstudio/beat/{rank}"


@dataclass(frozen=True)
class LaunchedRank:
    """What a launcher says in the environment of each process."""

    rank: int
    num_ranks: int
    local_rank: int
    num_local: int  # ranks on this machine


def launched_rank(environment: Mapping[str, str]) -> LaunchedRank | None:
    """Return which rank of a torchrun or of a Slurm step this process is, None where it is neither.

    A batch script of Slurm is no step: in it a training is one of this machine's own. For Slurm the variables
    by which ranks meet, those of torchrun, are added to the process's own. Raises ValueError with one
    sentence where one that is needed is missing or no number.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        return _checked(LaunchedRank(*(_number(environment, name) for name in names)))
    num_ranks = _number(environment, "SLURM_STEP_NUM_TASKS", 1)
    if "SLURM_STEP_ID" not in environment or "SLURM_PROCID" not in environment or num_ranks < 2:
        return None
    nodes = environment.get("SLURM_STEP_NODELIST", "")
    address = environment.get("MASTER_ADDR") or first_node(nodes)
    if not address:
        raise ValueError("Slurm does not say where rank 0 runs: set MASTER_ADDR to the first node's name")
    job, step = _number(environment, "SLURM_JOB_ID", 0), _number(environment, "SLURM_STEP_ID")
    os.environ.setdefault("MASTER_ADDR", address)
    os.environ.setdefault("MASTER_PORT", str(SLURM_PORT + (job + _STEPS_APART * step) % 1000))
    rank = _number(environment, "SLURM_PROCID")
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(num_ranks))
    tasks = tasks_per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", "1"))
    node = min(_number(environment, "SLURM_NODEID", 0), len(tasks) - 1)
    return _checked(LaunchedRank(rank, num_ranks, _number(environment, "SLURM_LOCALID", 0), tasks[node]))


def _checked(launched: LaunchedRank) -> LaunchedRank:
    """Return what a launcher says; ValueError where it cannot be, or the place where the ranks meet."""
    if not (0 <= launched.rank < launched.num_ranks and launched.num_local > 0):
        raise ValueError(
            f"the launcher's variables make no sense: this is rank {launched.rank} of {launched.num_ranks},"
            f" one of {launched.num_local} on this machine; torchrun and srun set them, so set none by hand"
        )
    port = _number(os.environ, "MASTER_PORT", SLURM_PORT)
    if not 0 < port < 65536:
        raise ValueError(f"MASTER_PORT should be a port between 1 and 65535, but is {port}")
    return launched


def _number(environment: Mapping[str, str], name: str, otherwise: int | None = None) -> int:
    """Return the number in a launcher's variable, or `otherwise` where it is not set; ValueError without."""
    text = environment.get(name)
    if text is None and otherwise is not None:
        return otherwise
    try:
        return int(text or "")
    except ValueError:
        told = "not set" if text is None else repr(text)
        raise ValueError(f"{name}, which the launcher sets, should be a number, but is {told}") from None


def first_node(nodes: str) -> str:
    """Return the first name of a list of Slurm's, as "node01" of "node[01-04,9],login"."""
    bracket = r"\[([^\],-]*)[^\]]*\]"
    found = re.match(rf"(?:[^\[,]|{bracket})*", nodes)
    return re.sub(bracket, r"\1", found[0]) if found else ""


def tasks_per_node(text: str) -> list[int]:
    """Return the number of ranks of each node in a list of Slurm's, as [8, 8, 4] of "8(x2),4".

    Raises ValueError for another text.
    """
    if re.fullmatch(r"\d+(\(x\d+\))?(,\d+(\(x\d+\))?)*", text) is None:
        raise ValueError(f"SLURM_STEP_TASKS_PER_NODE should be as 8(x2),4, but is {text!r}")
    tasks: list[int] = []
    for part in text.split(","):
        number, _, times = part.rstrip(")").partition("(x")
        tasks += [int(number)] * int(times or 1)
    return tasks


def cores_for_rank(launched: LaunchedRank, environment: Mapping[str, str]) -> int:
    """Return how many cores this rank may keep busy: its part of those that the launcher left it."""
    if environment.get("SLURM_CPUS_PER_TASK", "").isdigit() and "SLURM_STEP_ID" in environment:
        return max(1, int(environment["SLURM_CPUS_PER_TASK"]))
    # A job of Slurm, or a container, may run on some of the machine's cores alone.
    return max(1, num_processors() // launched.num_local)


def meeting_place(launched: LaunchedRank, environment: Mapping[str, str]) -> str:
    """Return a sentence on where the ranks meet."""
    address, port = environment.get("MASTER_ADDR", "?"), environment.get("MASTER_PORT", "?")
    return f"Rank {launched.rank} is waiting for {launched.num_ranks} ranks at {address}:{port}"


def restart_problem(environment: Mapping[str, str]) -> str | None:
    """Return a sentence where a restart by torchrun is likely to fail, else None.

    Its agents share the store by which they meet with the ranks, unless they are told not to; the ranks of a
    new attempt then read the addresses of the one before (pytorch#135712).
    """
    shares = environment.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
    if not shares or environment.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0":
        return None
    return (
        "When a rank dies, torchrun's restart may fail: set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 on all"
        " machines before torchrun"
    )


def train_launched(
    launched: LaunchedRank,
    job: TrainJob,
    tell: Callable[[Event], None],
    attach_at: tuple[str, int] | None,
    store_at: tuple[str, int] | None = None,
    tls: TlsFiles = NO_TLS,
) -> int:
    """Train as one rank of several that a launcher has started, and return the exit code.

    `tell` gets what rank 0 has to say, on a thread of its own; the others only say where they meet. At
    `attach_at`, host and port of rank 0's machine, `splatstudio attach` finds it, and by what is said in the
    store at `store_at` a studio that holds that; `tls` encrypts it. Raises OSError when that
    is not available, and ValueError with one sentence for what ended this rank.
    """
    usable = usable_gpus()
    gpu = usable[launched.local_rank % len(usable)] if usable else None
    settle_device(gpu, None if usable else cores_for_rank(launched, os.environ))
    # Made where this rank must leave word of an error alone: one that is killed leaves nothing behind.
    folder = Path(tempfile.gettempdir()) / f"splatstudio-rank-{secrets.token_hex(8)}"
    spec = RankSpec(
        launched.rank,
        launched.num_ranks,
        folder,
        Heartbeats(multiprocessing.get_context("spawn"), launched.num_ranks),
        log_path=None,
        launched=True,
    )
    if launched.rank > 0:
        if launched.local_rank == 0:
            tell(Warned(meeting_place(launched, os.environ)))
        _run_rank(spec, job, None, lambda sentence: tell(Warned(sentence)))
        return _exit_code(spec)
    ours, theirs = multiprocessing.Pipe()
    nobody_looks = {"num_slots": 1, "slot_bytes": 3}
    slots = FrameSlots.create(**(nobody_looks if attach_at is store_at is None else {}))
    controller = HeadlessController(ours, slots, job, tell, tls)
    try:
        if (problem := restart_problem(os.environ)) is not None:
            tell(Warned(problem))
        tell(Warned(meeting_place(launched, os.environ)))
        if attach_at is not None or store_at is not None:
            controller.listen(attach_at, store_at, launched.num_ranks)
        threading.Thread(target=controller.follow, name="teller", daemon=True).start()
        _run_rank(spec, job, RankPipe(theirs, slots.file), lambda sentence: controller.tell(Warned(sentence)))
    finally:
        slots.close()
    deadline = time.monotonic() + LAST_WORDS_SECONDS
    while ours.poll() and time.monotonic() < deadline:
        time.sleep(0.01)  # what was sent is being told
    code = UNSAVED if controller.unsaved else _exit_code(spec)
    if code == 0:
        controller.forget_orders()
    controller.close()
    return code


def _exit_code(spec: RankSpec) -> int:
    """Return what shells give for the signal that has ended the training; 0 without one."""
    number = spec.heartbeats.read(spec.rank).signal
    return 128 + number if number else 0


def _run_rank(spec: RankSpec, job: TrainJob, pipe: RankPipe | None, tell: Callable[[str], None]) -> None:
    watch = LaunchedWatch(spec.rank, spec.num_ranks, spec.heartbeats, tell)
    try:
        watch.start()
        rank_main(spec, job, pipe, activity_of)
    except SystemExit:
        report = read_report(spec.folder, spec.rank)
        raise ValueError(f"rank {spec.rank}: {_last_word(report)}") from None
    finally:
        watch.stop()
        shutil.rmtree(spec.folder, ignore_errors=True)


def _last_word(report: ErrorReport | None) -> str:
    if report is None:
        return "it ended without a word"
    if report.of_a_peer:
        return (
            "another rank has gone; what that one or the launcher says tells why. Started again, the training"
            " goes on from its newest checkpoint"
        )
    return report.sentence

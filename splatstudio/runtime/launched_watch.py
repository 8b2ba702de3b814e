"""Finds a rank that hangs among those that torchrun or Slurm started, which have no supervisor of ours.

Each rank tells of its heartbeat in the store by which the ranks have met, on a thread of its own: rank 0
watches all, the others watch rank 0. Where one is silent for too long, its own machine ends it, all others
end by that, and the launcher starts them again. A training that is ended although it was healthy costs more
than one whose end is noticed late: who never told of itself is not blamed, nor rank 0 for a store that does
not answer while this rank gets on.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta

import psutil
from torch._C._distributed_c10d import TCPStore

from splatstudio.runtime.heartbeat import Beat, Heartbeats, Limits, Phase, Silence, SilenceWatch
from splatstudio.runtime.rank_group import silence_in_words

LOOK_SECONDS = 1.0
STORE_SECONDS = 5.0  # for the store to answer
LAST_WORDS_SECONDS = 3 * LOOK_SECONDS  # for the others to hear whom to end
DEAF_SECONDS = 60.0  # without the store and without a step: what a network mends by itself takes less
# The disks are of a network that others use, too.
LIMITS = Limits(stuck={**Limits().stuck, Phase.LOADING: 3600.0, Phase.TRAINING: 600.0, Phase.OBEYING: 3600.0})
HUNG = 3  # the exit code of a rank that ends because of one that hangs

log = logging.getLogger("splatstudio.runtime")


@dataclass(frozen=True)
class Process:
    """Which process a rank is; `insertion` tells it from a later one of the same number."""

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

    @property
    def stopped(self) -> bool:
        """Say whether it is known to be stopped by a signal."""
        process = self.found
        try:
            return process is not None and process.status() == psutil.STATUS_STOPPED
        except psutil.Error:
            return False


@dataclass(frozen=True)
class RankWord:
    """What a rank tells of itself, and rank 0 of who is to be ended."""

    beat: Beat
    process: Process
    blamed: Process | None = None
    left: bool = False  # it ends, as it should

    def encoded(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def decoded(cls, text: bytes) -> RankWord:
        """Return what `encoded` wrote; ValueError, KeyError or TypeError for what it did not."""
        values = json.loads(text)
        beat = Beat(**{**values["beat"], "phase": Phase(values["beat"]["phase"])})
        blamed = values["blamed"]
        process = Process(**values["process"])
        return cls(beat, process, None if blamed is None else Process(**blamed), values["left"])


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
        self._over = threading.Event()

    def start(self) -> None:
        """Begin, where there is more than one rank."""
        if not self._alone:  # else nobody has made a store
            threading.Thread(target=self._run, name="launched-watch", daemon=True).start()

    def stop(self) -> None:
        """Watch no more, and say so: this rank leaves, as the others do, but not in the same moment."""
        self._over.set()
        if self._talker.is_alive():
            self._talker.join(LAST_WORDS_SECONDS)

    def _run(self) -> None:
        while self._own.read(self._rank).phase == Phase.STARTING:
            if self._over.wait(LOOK_SECONDS):
                return  # the launcher's own limits hold until all have met
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
            if silence is not None and (silence.seconds >= DEAF_SECONDS if deaf else self._hangs(silence)):
                self._end(silence)

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
                store.set(_key(self._rank), told.encoded())
            except RuntimeError as error:
                log.info("the store has gone: %s", error)

    def _exchange(self, store: TCPStore) -> bool:
        """Tell of this rank and hear of the others; return False where the store does not answer."""
        try:
            told = RankWord(self._own.read(self._rank), self._process, self._blamed)
            store.set(_key(self._rank), told.encoded())
            there = [rank for rank in self._watched if store.check([_key(rank)])]
            answers = store.multi_get([_key(rank) for rank in there]) if there else []
        except RuntimeError as error:
            log.info("the store does not answer: %s", error)
            return False
        for rank, answer in zip(there, answers, strict=True):
            try:
                heard = RankWord.decoded(answer)
            except (ValueError, KeyError, TypeError):
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
            if self._rank > 0 and heard.blamed is not None:
                self._kill(heard.blamed)
        return True

    def _hangs(self, silence: Silence) -> bool:
        """Say whether a silence is not only that of native code at a large file."""
        if not silence.frozen or silence.seconds >= LIMITS.busy:
            return True
        heard = self._heard.get(self._watched[silence.rank])
        return heard is not None and heard.process.stopped

    def _end(self, silence: Silence) -> None:
        """Say which rank hangs, have it ended, and end."""
        rank = self._watched[silence.rank]
        heard = self._heard.get(rank)
        host = "" if heard is None else f" on {heard.process.host}"
        sentence = f"Rank {rank}{host} {silence_in_words(silence)}. All ranks end, to be started again."
        log.error("%s", sentence)
        self._tell(sentence)
        if heard is not None and rank != self._rank:
            self._blamed = heard.process  # for its own machine to end it
            self._kill(heard.process)
        time.sleep(LAST_WORDS_SECONDS)
        sys.stderr.flush()
        os._exit(HUNG)  # the main thread waits for the one that hangs, in native code

    def _kill(self, process: Process) -> None:
        """End a rank of this machine that hangs: its launcher may take half a minute for it."""
        if process == self._process:
            log.error("this rank hangs, as rank 0 says")
            os._exit(HUNG)
        found = process.found
        if found is not None:
            found.send_signal(signal.SIGKILL)


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

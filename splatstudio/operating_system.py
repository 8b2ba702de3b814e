"""What Windows, macOS and Linux do differently: locks, signals, priorities, memory; nothing else names it.

Each function has one meaning on all systems. What one of them cannot do is said in its docstring.
"""

from __future__ import annotations

import errno
import os
import select
import selectors
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

WINDOWS = sys.platform == "win32"
LINUX = sys.platform == "linux"
_GROUPS = Path("/sys/fs/cgroup")

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl
    import resource

# Ctrl-C; SIGTERM of a job system; SIGHUP of a terminal that is closed, which is SIGBREAK on Windows.
STOP_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)
)
HANG_UP: signal.Signals | None = getattr(signal, "SIGHUP", None) or getattr(signal, "SIGBREAK", None)
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # what network disks without locks answer
# What a system does not have, nobody needs there: only Windows would change the ends of lines.
_OPEN_SAFELY = ("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_BINARY")
_BEHIND_ALL = 1 << 30  # where Windows locks a file: a range that is locked cannot be read by others
_MOST_HOLDERS = 64
_OPEN_ELSEWHERE_SECONDS = 2.0  # a virus scanner or a reader has a file open for moments
_PR_SET_PDEATHSIG = 1


# Files.


def open_descriptor(path: str | Path, flags: int, mode: int = 0o644, *, follow: bool = True) -> int:
    """Open a file as its bytes are, without waiting for a pipe's other end or taking a terminal.

    `flags` are those of os.open. Without `follow`, OSError (ELOOP or EMLINK) for a link.
    """
    if not follow and WINDOWS and Path(path).is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    names = [name for name in _OPEN_SAFELY if not follow or name != "O_NOFOLLOW"]
    return os.open(path, flags | sum(getattr(os, name, 0) for name in names), mode)


def open_standard_streams() -> None:
    """Give the standard streams that whoever started this program has closed a place to go: nowhere.

    Else print fails, and the next file that is opened takes the number of one and is written into.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def as_file_name(name: str) -> str:
    """Return `name` as a file can be called here: on Windows a colon parts a file from a stream in it."""
    return name.replace(":", "_") if WINDOWS else name


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk; Windows writes them with the files."""
    if WINDOWS:
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_in_place(source: Path, target: Path) -> None:
    """Give a file or folder another name, in place of what is there; wait where Windows finds it open."""
    deadline = time.monotonic() + _OPEN_ELSEWHERE_SECONDS
    while True:
        try:
            os.replace(source, target)
            return
        except PermissionError:
            if not WINDOWS or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def content(descriptor: int, most: int) -> bytes:
    """Return what an open file begins with."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, most)


def rewrite(descriptor: int, data: bytes) -> None:
    """Put a few bytes in place of all that an open file holds."""
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, data)


def may_remove(status: os.stat_result) -> bool:
    """Return whether a file is this user's, and not one to be kept; of Windows the second is known alone."""
    return (WINDOWS or status.st_uid == os.getuid()) and bool(status.st_mode & stat.S_IWUSR)


def memory_folder() -> Path | None:
    """Return a folder whose files lie in memory, None where there is none that can be written to."""
    folder = Path("/dev/shm")
    return folder if LINUX and folder.is_dir() and os.access(folder, os.W_OK) else None


def reserve(descriptor: int, size: int) -> None:
    """Make room for `size` bytes now: writing to a mapped file on a full disk would be a bus error later."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    block = bytes(1 << 20)
    for start in range(0, size, len(block)):
        os.write(descriptor, block[: size - start])


# Locks: each goes with its descriptor, and so with its process, however that ends.


def take_lock(descriptor: int) -> None:
    """Lock an open file until its descriptor is closed.

    Raises BlockingIOError where another one has locked it, another OSError where the disk knows no locks.
    """
    if sys.platform == "win32":
        _lock_range(descriptor, _BEHIND_ALL, 1)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def remove_locked(path: Path, descriptor: int, *, at_its_place: bool) -> None:
    """Let a locked file go, and remove it where it is still `at_its_place`.

    Windows removes no open file: there, one that has been opened by the next process stays.
    """
    if WINDOWS:
        os.close(descriptor)
        if at_its_place:
            with suppress(PermissionError):
                path.unlink(missing_ok=True)
        return
    if at_its_place:
        path.unlink(missing_ok=True)
    os.close(descriptor)


def hold(path: Path) -> int:
    """Mark a file or folder as in use until the descriptor that is returned is closed; raises OSError."""
    if sys.platform == "win32":
        # A folder cannot be opened there, and a lock is for one alone: each takes a byte of another file.
        os.lstat(path)
        descriptor = _holders_of(path)
        for place in range(_MOST_HOLDERS):
            with suppress(BlockingIOError):
                _lock_range(descriptor, _BEHIND_ALL + place, 1)
                break
        return descriptor
    descriptor = os.open(path, os.O_RDONLY)
    with suppress(OSError):  # a disk without locks
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def is_held(path: Path) -> bool:
    """Return whether a process has a file or folder in use; raises OSError where that cannot be told."""
    if sys.platform == "win32":
        os.lstat(path)
        descriptor = _holders_of(path)
    else:
        descriptor = open_descriptor(path, os.O_RDONLY, follow=False)
    try:
        if sys.platform == "win32":
            _lock_range(descriptor, _BEHIND_ALL, _MOST_HOLDERS)
        else:
            take_lock(descriptor)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


if sys.platform == "win32":

    def _lock_range(descriptor: int, start: int, length: int) -> None:
        os.lseek(descriptor, start, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, length)
        except PermissionError as error:
            raise BlockingIOError(errno.EAGAIN, "another process has locked it") from error

    def _holders_of(path: Path) -> int:
        """Open the file beside `path` on which its holders are counted; it goes with the last of them."""
        place = Path(path).with_name(f".held-{Path(path).name}")
        return open_descriptor(place, os.O_RDWR | os.O_CREAT | os.O_TEMPORARY)


# Processes.


def num_processors() -> int:
    """Return how many processors this process may use, where that is known, else how many there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def give_way(niceness: int) -> None:
    """Let other programs come first; Windows knows one step of it."""
    if sys.platform == "win32":
        psutil.Process().nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)
    else:
        os.nice(niceness)


def thread_niceness(thread: int) -> int:
    """Return the niceness of a thread of this process; on Linux alone each has its own."""
    assert LINUX
    return os.getpriority(os.PRIO_PROCESS, thread)


def set_thread_niceness(thread: int, niceness: int) -> None:
    """Set the niceness of one thread; ProcessLookupError where it has ended."""
    assert LINUX
    os.setpriority(os.PRIO_PROCESS, thread, niceness)


def peak_memory() -> int:
    """Return the most bytes of memory that this process has had."""
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def address_space() -> int | None:
    """Return how many bytes this process may map at most (`ulimit -v`), None where that is not limited."""
    if sys.platform == "win32":
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def open_files() -> tuple[int, int] | None:
    """Return how many files this process may open, and how many it may ask for; None: not limited."""
    if sys.platform == "win32":
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else (soft, hard)


def new_group() -> int:
    """Return the `creationflags` of a process that Ctrl-C does not reach, as one in a new session."""
    if sys.platform == "win32":
        import subprocess

        return subprocess.CREATE_NEW_PROCESS_GROUP
    return 0


def end_with_parent() -> None:
    """Let this process end when its parent dies, however that comes."""
    if LINUX:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    import threading

    parent = psutil.Process(os.getppid())

    def watch() -> None:
        parent.wait()
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def in_forked_children(do: Callable[[], object]) -> None:
    """Call `do` in every process that is forked from this one, before anything else; Windows forks none."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=do)


def end_within(seconds: int) -> None:
    """End this process in so many seconds even where it cannot end by itself.

    A GPU that waits for a rank that is gone keeps its own process from ending; Python's threads stand still
    by then. Where there are no alarms, whoever has started the process ends it.
    """
    if hasattr(signal, "alarm"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)


def was_killed(exitcode: int | None) -> bool:
    """Return whether SIGKILL ended a process, as the system does that is short of memory."""
    return not WINDOWS and exitcode == -signal.SIGKILL


# Signals.


@contextmanager
def signals_blocked(numbers: tuple[signal.Signals, ...]) -> Iterator[None]:
    """Keep signals from this thread, and from what is started in here for good; Windows hands none on."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock(number: signal.Signals) -> None:
    """Let a signal reach this process, also one that was sent before."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


# Pipes and sockets.


def wait_for(line: socket.socket, *, sending: bool, seconds: float | None) -> bool:
    """Return whether a socket can be read from, or sent to, within `seconds`, None: for ever."""
    # Not select on every system: it knows no descriptor above 1023.
    selector = getattr(selectors, "PollSelector", selectors.SelectSelector)()
    with selector:
        selector.register(line, selectors.EVENT_WRITE if sending else selectors.EVENT_READ)
        return bool(selector.select(None if seconds is None else max(seconds, 0.0)))


def has_no_reader(descriptor: int) -> bool:
    """Return whether a pipe or socket that is written to has no reader any more; Windows does not tell."""
    if not hasattr(select, "poll"):
        return False
    asked = select.poll()
    asked.register(descriptor, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in asked.poll(0))


def of_one_driver(descriptor: int, other: int) -> bool:
    """Return whether two devices are the same, or of one driver, as /dev/null and /dev/full are."""
    one, two = os.fstat(descriptor), os.fstat(other)
    if not hasattr(os, "major"):
        return os.path.samestat(one, two)
    return os.major(one.st_rdev) == os.major(two.st_rdev)


def limit_sending(line: socket.socket, seconds: float, gone_seconds: float) -> None:
    """Let sending fail where the other end does not read for `seconds`, or its machine is gone.

    Not a timeout of the socket's: that would hold for the thread that reads, too.
    """
    milliseconds = struct.pack("@L", int(seconds * 1000))
    timeout = milliseconds if WINDOWS else struct.pack("@ll", int(seconds), 0)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # else what was sent to it is sent again for a quarter of an hour
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * gone_seconds))


def take_port_again(listener: socket.socket) -> None:
    """Let a socket listen where one listened a moment ago; Windows does so by itself."""
    if not WINDOWS:  # there it would share the port with another program
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def loopback() -> str:
    """Return what this system calls the network that stays within the machine, as gloo and NCCL want it."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            return name
    return "lo"


def memory_limit() -> int:
    """Return the most bytes that this process may ever have: the machine's memory, or its control group's."""
    limits = [int(text) for group in _control_groups() if (text := _text(group / "memory.max")).isdigit()]
    return min([psutil.virtual_memory().total, *limits])


def free_memory() -> int:
    """Return how many bytes this process may still take without pushing others out."""
    free = [psutil.virtual_memory().available]
    for group in _control_groups():
        limit, used = _text(group / "memory.max"), _text(group / "memory.current")
        if limit.isdigit() and used.isdigit():
            # Cached files count as used, but give way.
            words = _text(group / "memory.stat").split()
            cached = dict(zip(words[::2], words[1::2], strict=False)).get("inactive_file", "0")
            free.append(int(limit) - int(used) + int(cached))
    if (limit := address_space()) is not None:
        free.append(limit - psutil.Process().memory_info().vms)
    return max(0, min(free))


def _control_groups() -> Iterator[Path]:
    """Yield the folders of this process's control group and of those around it; none but in version 2."""
    own = next((line[3:] for line in _text(Path("/proc/self/cgroup")).splitlines() if line[:3] == "0::"), "/")
    group = _GROUPS / own.lstrip("/")
    while group.is_relative_to(_GROUPS):
        yield group
        group = group.parent


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""  # not Linux, or not limited

"""Makes splatstudio on Linux see the Windows of Python's documentation, and holds it to the rules of that.

What its modules import of the standard library lacks what Windows does not have; other packages see Linux.
No open file is removed or renamed, nor is a folder that has one, as Windows refuses both. Programs that are
started from here get the same by PYTHONPATH.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import importlib
import os
import signal
import socket
import struct
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# What there is no module of.
NO_MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix", "syslog", "crypt"}
# What Python's documentation calls available on Unix alone.
HIDDEN = {
    "os": """
        O_ASYNC O_CLOEXEC O_DIRECT O_DIRECTORY O_NOATIME O_NOCTTY O_NOFOLLOW O_NONBLOCK O_PATH O_SYNC
        O_TMPFILE WEXITSTATUS WIFEXITED WIFSIGNALED WTERMSIG chown chroot fchdir fchmod fchown fork
        forkpty getegid geteuid getgid getgroups getloadavg getpgid getpgrp getpriority getresuid getsid
        getuid initgroups killpg lchown lockf major minor mkfifo mknod nice openpty pathconf pipe2
        posix_fadvise posix_fallocate posix_spawn pread preadv pwrite pwritev readv sched_getaffinity
        sched_setaffinity sched_yield sendfile setegid seteuid setgid setpgid setpriority setsid setuid
        statvfs sync sysconf tcgetpgrp ttyname uname wait wait3 wait4 waitid writev PRIO_PROCESS
    """,
    "signal": """
        SIGALRM SIGBUS SIGCHLD SIGCLD SIGCONT SIGHUP SIGIO SIGKILL SIGPIPE SIGPOLL SIGPROF SIGPWR
        SIGQUIT SIGSTOP SIGSYS SIGTRAP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGUSR1 SIGUSR2 SIGVTALRM SIGWINCH
        SIGXCPU SIGXFSZ SIG_BLOCK SIG_SETMASK SIG_UNBLOCK alarm getitimer pause pthread_kill
        pthread_sigmask setitimer siginterrupt sigpending sigtimedwait sigwait sigwaitinfo
    """,
    "socket": "AF_UNIX AF_NETLINK AF_PACKET SCM_RIGHTS TCP_USER_TIMEOUT SO_REUSEPORT recv_fds send_fds",
    "select": "poll epoll kqueue POLLIN POLLOUT POLLERR POLLHUP POLLPRI",
    "selectors": "PollSelector EpollSelector",
    "time": "clock_getres clock_settime pthread_getcpuclockid tzset",
    "shutil": "chown",
    "subprocess": "",
    "sys": "",
    "psutil": "",
    "multiprocessing": "",
    "multiprocessing.reduction": "DupFd",
    "reduction": "DupFd",
}
FOLDER = str(Path(__file__).parent)


class Shown(types.ModuleType):
    """A module as Windows has it: less what is hidden, and with what is put in place of its own."""

    def __init__(self, module: types.ModuleType, hidden: set[str], instead: Mapping[str, object]) -> None:
        super().__init__(module.__name__)
        object.__getattribute__(self, "__dict__").update(_module=module, _hidden=hidden, _instead=instead)

    def __getattribute__(self, name: str) -> Any:
        of = object.__getattribute__(self, "__dict__")
        if name in of["_instead"]:
            return of["_instead"][name]
        if name in of["_hidden"]:
            raise AttributeError(f"module {of['_module'].__name__!r} has no attribute {name!r}")
        found = getattr(of["_module"], name)
        return (
            _shown.get(getattr(found, "__name__", ""), found)
            if isinstance(found, types.ModuleType)
            else found
        )

    def __setattr__(self, name: str, value: object) -> None:
        setattr(object.__getattribute__(self, "__dict__")["_module"], name, value)


_shown: dict[str, Shown] = {}
_import = builtins.__import__


def install() -> None:
    """Begin, in this process and all that it starts."""
    if _shown:
        return
    instead = _in_their_place()
    for name, hidden in HIDDEN.items():
        if name == "reduction":
            continue
        _shown[name] = Shown(importlib.import_module(name), set(hidden.split()), instead.get(name, {}))
    _shown["msvcrt"] = Shown(_msvcrt(), set(), {})
    builtins.__import__ = _import_as_shown
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [FOLDER, *(entry for entry in path if entry not in ("", FOLDER))]
    )


def _import_as_shown(
    name: str,
    globals: Mapping[str, Any] | None = None,  # noqa: A002 - they are called so
    locals: Mapping[str, Any] | None = None,  # noqa: A002
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    """Import as Python does, for splatstudio what Windows has."""
    if globals is None or not str(globals.get("__name__", "")).startswith("splatstudio"):
        return _import(name, globals, locals, fromlist, level)
    if name.partition(".")[0] in NO_MODULES:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    if fromlist and name in _shown:
        return _shown[name]
    found = _shown["msvcrt"] if name == "msvcrt" else _import(name, globals, locals, fromlist, level)
    return found if fromlist else _shown.get(name.partition(".")[0], found)


def _in_their_place() -> dict[str, dict[str, object]]:
    """Return what is not hidden, but other: what Windows has more, and what it refuses."""
    import psutil

    class Process(psutil.Process):
        """A process, to which no signals of Unix are sent."""

        def nice(self, value: int | None = None) -> int | None:
            assert value is None or value == BELOW_NORMAL
            return super().nice(10 if value else None)

        def memory_info(self) -> Any:
            info = super().memory_info()
            return types.SimpleNamespace(**info._asdict(), peak_wset=info.rss)

        def send_signal(self, sig: int) -> None:
            assert sig == signal.SIGTERM, "on Windows a process can only be ended"
            super().send_signal(sig)

    def no_signals(pid: int, number: int) -> None:
        raise AssertionError("on Windows os.kill ends a process, whatever the signal")

    def descriptor(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        opened = os.open(path, flags & ~TEMPORARY, *more, **named)
        if flags & TEMPORARY:
            temporary[opened] = os.fsdecode(path)
        return opened

    def close(descriptor: int) -> None:
        """Close a file, and remove one that is temporary with the last that has it open."""
        path = temporary.pop(descriptor, None)
        last = path is not None and _locks(descriptor, 0, 0)
        os.close(descriptor)
        if path is not None and last:
            Path(path).unlink(missing_ok=True)

    temporary: dict[int, str] = {}
    hold_open_files()
    socket.socket = Socket
    system: dict[str, object] = {"O_BINARY": 0, "O_TEMPORARY": TEMPORARY, "open": descriptor, "close": close}
    system["kill"] = no_signals
    return {
        "os": system,
        "sys": {"platform": "win32"},
        "psutil": {"Process": Process, "BELOW_NORMAL_PRIORITY_CLASS": BELOW_NORMAL},
        "subprocess": {"CREATE_NEW_PROCESS_GROUP": 0},
        "multiprocessing": {"get_all_start_methods": lambda: ["spawn"], "get_context": _spawn_alone},
        "signal": {"SIGBREAK": signal.SIGUSR2},
    }


BELOW_NORMAL = 0x4000
TEMPORARY = 1 << 40
_Socket = socket.socket


class Socket(_Socket):
    """A socket whose timeouts are milliseconds in one number."""

    def setsockopt(self, level: int, option: int, value: Any, *more: Any) -> None:
        if option == socket.SO_SNDTIMEO:
            value = struct.pack("@ll", *divmod(struct.unpack("@L", value)[0], 1000))
        super().setsockopt(level, option, value, *more)


def _spawn_alone(method: str | None = None) -> Any:
    import multiprocessing

    assert method in (None, "spawn"), f"there is no {method} on Windows"
    return multiprocessing.get_context("spawn")


def hold_open_files() -> None:
    """Let nobody here remove, or give another name, what this process or a child has open."""
    for name in ("unlink", "remove", "rename", "replace", "rmdir"):
        setattr(os, name, _refusing(getattr(os, name), folders=name in ("rename", "replace")))


def _refusing(act: Callable[..., None], *, folders: bool) -> Callable[..., None]:
    def checked(*places: Any, **named: Any) -> None:
        if not named:  # shutil.rmtree names what it removes by the folder's descriptor, which Windows has not
            for place in places:
                _refuse_open(os.path.realpath(os.fsdecode(place)), within=folders)
        act(*places, **named)

    return checked


def _refuse_open(path: str, *, within: bool) -> None:
    for of in _open_here():
        if of == path or (within and of.startswith(path + os.sep)):
            raise PermissionError(errno.EACCES, "The process cannot access the file: it is used", path)


def _open_here() -> set[str]:
    """Return the files that this process has open or mapped, and those that its children have."""
    found: set[str] = set()
    try:
        children = Path("/proc/self/task").glob("*/children")
        pids = ["self", *(pid for tasks in children for pid in tasks.read_text().split())]
    except OSError:
        pids = ["self"]
    for pid in pids:
        try:
            for entry in os.listdir(f"/proc/{pid}/fd"):
                target = os.readlink(f"/proc/{pid}/fd/{entry}")
                # In memory lies what multiprocessing shares, by other means on Windows.
                if (
                    target.startswith("/")
                    and not target.startswith("/dev/shm/")
                    and not os.path.isdir(target)
                ):
                    found.add(target)
        except OSError:
            continue  # it has ended, or closed it
    return found


def _locks(descriptor: int, start: int, length: int) -> bool:
    """Lock a range of bytes for an open file, 0: to the end; return whether no other one has it."""
    wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted)
    except BlockingIOError:
        return False
    return True


def _msvcrt() -> types.ModuleType:
    """Return the module whose locks belong to an open file, a range of bytes and one holder."""
    module = types.ModuleType("msvcrt")

    def locking(descriptor: int, mode: int, length: int) -> None:
        assert mode == 2, "LK_NBLCK, which does not wait"
        if not _locks(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR), length):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    module.locking, module.LK_NBLCK = locking, 2  # type: ignore[attr-defined]
    return module

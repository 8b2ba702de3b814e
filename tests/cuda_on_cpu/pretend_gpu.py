"""A GPU that torch believes in, for tests of what Python does with one: `pytest -p pretend_gpu`.

Its tensors say that they are on cuda:0 and hold an ordinary one, with which everything is computed; our
operators are those of the emulation (SPLATSTUDIO_EXTENSION). Found are tensors of both devices in one
operation, and under torch.cuda.set_sync_debug_mode("error") what the host would wait for. Streams and events
do nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from splatstudio.kernels.ops_training import HISTORY

GPU, HOST = torch.device("cuda", 0), torch.device("cpu")
COPIES = ("aten::copy_", "aten::_to_copy")
# For these torch itself makes the tensor that is added to, on what it takes for the device.
BACKWARD = ("aten::index_add", "aten::index_add_")
WAITING = (
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::equal",
    "aten::_unique2",
)
_sync_mode: list[Any] = ["default"]
_tensor_to, _new, _empty, _quantile = torch.Tensor.to, torch.tensor, torch.empty, torch.quantile
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key


class OnGpu(torch.Tensor):
    """A tensor of the pretended GPU."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> OnGpu:
        """Hold `inner`, a tensor of the host, without its gradient."""
        inner = inner.detach()
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        # Autograd may not know: it would ask a real GPU for its streams.
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, device="cpu", **layout)  # type: ignore
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return run(function, args, kwargs or {})

    device = property(lambda self: GPU)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]

    def cpu(self, *_: Any) -> torch.Tensor:  # type: ignore[override]
        """Return a copy on the host."""
        return moved(self, HOST)

    def numpy(self) -> Any:  # type: ignore[override]
        """Refuse, as torch does."""
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def tolist(self) -> Any:
        """Return the values, for which the host waits."""
        wait("tolist")
        return self.inner.tolist()

    def new_tensor(self, data: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:  # type: ignore
        """Return `data` on the GPU."""
        return tensor(data, dtype=dtype or self.dtype, device=device or GPU)


class OfBothDevices(TorchDispatchMode):
    """Sees the calls that make a tensor of no other."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return run(function, args, kwargs or {})


def wait(what: str) -> None:
    """Raise RuntimeError where waiting was made an error."""
    if _sync_mode[0] == "error":
        raise RuntimeError(f"called a synchronizing CUDA operation: {what}")


def is_gpu(device: Any) -> bool:
    """Return whether a device, or what names one, is the GPU."""
    return device is not None and torch.device(device).type == "cuda"


def run(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute an operation on the host; what it returns is on the device of its tensors, or of `device`."""
    name = function._schema.name
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    ours = [leaf for leaf in tensors if isinstance(leaf, OnGpu)]
    if ours and name not in COPIES + BACKWARD:
        _check_devices(name, args, [leaf for leaf in tensors if not isinstance(leaf, OnGpu)])
    plain = tree_map(lambda leaf: leaf.inner if isinstance(leaf, OnGpu) else leaf, (args, kwargs))
    there = bool(ours)
    if plain[1].get("device") is not None:
        there = is_gpu(plain[1]["device"])
        plain[1].update(device=HOST)
        if "pin_memory" in plain[1]:
            plain[1].update(pin_memory=False)
    if ours or there:
        _note_waiting(name, args, kwargs, there)
    with _disable_current_modes():
        out = function(*plain[0], **plain[1])
        if name == "aten::_to_copy" and bool(ours) != there:
            out = out.clone()
    # A shift is called __rshift__, and changes nothing.
    if name.endswith("_") and function._schema.is_mutable and isinstance(args[0], torch.Tensor):
        return args[0]
    if not there:
        return out
    known = {id(each.inner): each for each in ours}
    return tree_map(lambda leaf: _returned(leaf, known) if isinstance(leaf, torch.Tensor) else leaf, out)


def _returned(tensor: torch.Tensor, known: dict[int, OnGpu]) -> OnGpu:
    return known[id(tensor)] if id(tensor) in known else OnGpu(tensor)


def _check_devices(name: str, args: Any, others: list[torch.Tensor]) -> None:
    if name.startswith("aten::index") or name.startswith("aten::_index"):
        return  # indices may be on the host
    native = name.startswith("splatstudio::")
    lost = [each for each in others if each.dim() > 0 and not (native and each.numel() == 0)]
    # The history of steps that rows have missed is the host's, see `LazyRows`.
    lost = [each for each in lost if not (native and each.shape == (HISTORY, 2))]
    if lost:
        raise RuntimeError(f"{name}: tensors on cuda:0 and on the CPU, of {[tuple(e.shape) for e in lost]}")


def _note_waiting(name: str, args: Any, kwargs: dict[str, Any], there: bool) -> None:
    if name in WAITING:
        wait(name)
    if name == "aten::index" and any(getattr(each, "dtype", None) == torch.bool for each in args[1]):
        wait("an index that is a mask")
    if name == "aten::_to_copy" and isinstance(args[0], OnGpu) != there:
        wait("a copy between the devices")
    if name == "aten::copy_" and isinstance(args[0], OnGpu) != isinstance(args[1], OnGpu):
        host = args[1] if isinstance(args[0], OnGpu) else args[0]
        asynchronous = kwargs.get("non_blocking") or (len(args) > 2 and args[2])
        if not (asynchronous and _is_pinned(host)):
            wait("a copy between the devices")


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, there):
        ctx.back = isinstance(tensor, OnGpu)
        return OnGpu(tensor.detach().clone()) if there else tensor.inner.detach().clone()

    @staticmethod
    def backward(ctx, gradient):
        return _Move.apply(gradient, ctx.back), None


def moved(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Do what torch.Tensor.to does."""
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    for each in args:
        if isinstance(each, torch.Tensor):
            device, dtype = each.device, each.dtype
        elif isinstance(each, torch.dtype):
            dtype = each
        elif not isinstance(each, bool):
            device = each
    out = tensor
    if device is not None and is_gpu(device) != isinstance(tensor, OnGpu):
        if not (kwargs.get("non_blocking") and _is_pinned(tensor)):
            wait("a copy between the devices")
        out = _Move.apply(tensor, is_gpu(device))
    return out if dtype is None or dtype == out.dtype else _tensor_to(out, dtype)  # type: ignore


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Do what torch.Tensor.pin_memory does."""
    assert not isinstance(tensor, OnGpu), "only memory of the host can be pinned"
    copy = tensor.detach().clone()
    copy.in_pinned_memory = True  # type: ignore[attr-defined]
    return copy


def _is_pinned(tensor: torch.Tensor) -> bool:
    return getattr(tensor, "in_pinned_memory", False)


def tensor(data: Any, *, device: Any = None, requires_grad: bool = False, **kwargs: Any) -> torch.Tensor:
    """Do what torch.tensor does."""
    with _disable_current_modes():
        made = _new(data, **kwargs)
    # `torch.zeros` knows a device that was chosen by `with`; torch.get_default_device asks this function.
    return moved(made, device or torch.zeros(0).device).requires_grad_(requires_grad)


def empty(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
    """Do what torch.empty does."""
    made = _empty(*args, **kwargs)
    if pin_memory:
        made.in_pinned_memory = True  # type: ignore[attr-defined]
    return made


def quantile(values: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Do what torch.quantile does, which makes tensors of its own on what it takes for the device."""
    if not isinstance(values, OnGpu):
        return _quantile(values, q)
    assert isinstance(q, OnGpu), "torch asks for both on one device"
    return OnGpu(_quantile(values.inner, q.inner))


class Event:
    """What was queued until now, all of which is done."""

    def __init__(self, device: Any = None, **_: Any) -> None:
        assert device is None or is_gpu(device)
        self._time = 0.0

    def query(self) -> bool:
        """Return whether it is done."""
        return True

    def record(self, stream: Any = None) -> None:
        """Take the time."""
        self._time = time.perf_counter()

    def synchronize(self) -> None:
        """Return at once."""

    def elapsed_time(self, other: Event) -> float:
        """Return the milliseconds until `other`."""
        return 1000.0 * (other._time - self._time)


class Stream:
    """A queue that is always empty."""

    device = GPU

    def __init__(self, device: Any = None) -> None:
        assert device is None or is_gpu(device)

    def __enter__(self) -> Stream:
        """Let work go to this queue."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let work go where it went before."""

    def wait_event(self, event: Event) -> None:
        """Return at once."""
        assert isinstance(event, Event)


@contextlib.contextmanager
def _in_stream(stream: Stream) -> Iterator[None]:
    assert isinstance(stream, Stream)
    yield


def _started(run_thread: Any) -> Any:
    def run_with_mode(self: threading.Thread) -> None:
        with OfBothDevices():
            run_thread(self)

    return run_with_mode


class _Generator(torch.Generator):
    def __new__(cls, device: Any = "cpu") -> _Generator:
        return super().__new__(cls, device="cpu")  # type: ignore[call-arg]


def pytest_configure() -> None:
    """Let torch see the GPU from now on, on all threads."""
    stream = Stream()
    for name, value in {
        "Event": Event,
        "Stream": Stream,
        "stream": _in_stream,
        "current_stream": lambda device=None: stream,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_current_stream_capturing": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": lambda device=None: SimpleNamespace(uuid="pretended", total_memory=1 << 34),
        "mem_get_info": lambda device=None: (1 << 34, 1 << 34),
        "memory_reserved": lambda device=None: 0,
        "memory_allocated": lambda device=None: 0,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "set_sync_debug_mode": lambda mode: _sync_mode.__setitem__(0, mode),
        "_lazy_init": lambda: None,
    }.items():
        setattr(torch.cuda, name, value)
    torch.Event, torch.Stream = Event, Stream  # type: ignore
    torch.accelerator.current_stream = lambda device=None: stream  # type: ignore
    # The emulation gives the operators of a GPU to torch as the CPU's.
    torch._C._dispatch_has_kernel_for_dispatch_key = lambda operator, key: _has_kernel(  # type: ignore
        operator, "CPU" if key == "CUDA" else key
    )
    torch.Tensor.to = OnGpu.to = moved  # type: ignore
    torch.Tensor.cuda = lambda self, *_: moved(self, GPU)  # type: ignore
    torch.Tensor.pin_memory = pinned  # type: ignore
    torch.Tensor.record_stream = lambda self, stream: None  # type: ignore
    torch.tensor, torch.empty, torch.Generator = tensor, empty, _Generator  # type: ignore
    torch.quantile = quantile  # type: ignore
    OfBothDevices().__enter__()
    threading.Thread.run = _started(threading.Thread.run)  # type: ignore[method-assign]

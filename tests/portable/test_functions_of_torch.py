"""Whether another system's torch has the functions that the kernels use is told from its wheel."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PLACES = {"windows-x86_64": "torch_cpu.dll", "macos-arm64": "libtorch_cpu.dylib"}
PLACES |= {"linux-arm64": "libtorch_cpu.so"}


@pytest.fixture
def portable() -> ModuleType:
    spec = importlib.util.spec_from_file_location("portable", ROOT / "csrc" / "portable.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["portable"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_the_kernels_use_functions_in_c_alone(portable: ModuleType) -> None:
    used = portable.functions_used()
    assert {"torch_library_impl", "aoti_torch_get_data_ptr"} <= set(used)
    assert not portable.ASKED_FOR & set(used), "what older torches lack is not needed"


@pytest.mark.parametrize("name", PLACES)
def test_a_torch_that_lacks_one_is_named_with_it(portable: ModuleType, tmp_path: Path, name: str) -> None:
    (system,) = [system for system in portable.SYSTEMS if system.name == name]
    before = "_" if system.cmake == "Darwin" else ""
    used = portable.functions_used()
    for lacking in ([], ["torch_library_impl"]):
        offered = [before + function for function in used if function not in lacking]
        wheel = tmp_path / "torch.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            # Part of a longer name is not the function.
            archive.writestr(
                f"torch/lib/{PLACES[name]}", "\0".join(["", *offered, "x_torch_library_impl_2", ""])
            )
        if not lacking:
            assert portable.check_functions(system, wheel) == len(used)
            continue
        with pytest.raises(SystemExit, match=r"torch\.whl has not what the kernels use: torch_library_impl$"):
            portable.check_functions(system, wheel)

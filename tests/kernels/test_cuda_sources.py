"""Rules that every CUDA operator keeps, read from the sources, so that no GPU is needed to find a breach."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
CSRC = Path(__file__).parents[2] / "csrc"
BINDING = "".join(path.read_text() for path in sorted(CSRC.glob("ops_cuda*.cpp")))
# A GPU's kernels have no sets of instructions to choose from.
CPU_ALONE = {"instruction_set"}
# It takes no tensor, so no device is meant.
WITHOUT_TENSORS = {"cuda_architectures"}
SCHEMAS = (CSRC / "schemas.cpp").read_text()
KERNELS = {path.name: path.read_text() for path in sorted((CSRC / "cuda").glob("*.cu*"))}


def registered(binding: str) -> list[str]:
    """Return the names of the functions of tensors that a binding gives to torch."""
    return [name for name in re.findall(r"TORCH_BOX\(&(\w+)\)", binding) if name not in WITHOUT_TENSORS]


def first_statement(binding: str, function: str) -> str:
    """Return the first statement of a function's body."""
    found = re.search(rf"\n[\w:<>, \n]*\b{function}\([^{{;]*\) {{\n(.*?;)", binding, re.DOTALL)
    assert found is not None, f"{function} has no body"
    return " ".join(found.group(1).split())


def without_guard(binding: str) -> list[str]:
    """Return the operators that do not begin with making their tensors' device current."""
    guard = re.compile(r"const OnDevice device\((\w+|first_of\(\w+\))\);")
    return [name for name in registered(binding) if not guard.fullmatch(first_statement(binding, name))]


def test_every_operator_begins_with_a_device_guard() -> None:
    defined = set(re.findall(r'm\.def\(\s*"(\w+)\(', SCHEMAS))
    assert len(defined) > 10 and set(registered(BINDING)) == defined - CPU_ALONE
    assert without_guard(BINDING) == []


def test_an_operator_without_its_guard_is_found() -> None:
    broken = BINDING.replace("  const OnDevice device(param);\n", "", 1)
    assert broken != BINDING
    assert without_guard(broken) == ["adam_step"]


def test_every_kernel_is_launched_on_the_callers_stream() -> None:
    for name, source in KERNELS.items():
        if name == "launch.cuh":
            continue
        assert "<<<" not in source, f"{name} launches past launch()"
        for call in re.findall(r"\blaunch\((.*?)\);", source, re.DOTALL):
            assert "stream" in call, f"{name}: launch({call}) has no stream"


def test_device_memory_comes_from_torch() -> None:
    for name, source in KERNELS.items():
        for forbidden in ("cudaMalloc", "cudaFree", "cudaDeviceSynchronize", "thrust::"):
            assert forbidden not in source, f"{name} calls {forbidden}"
        # The guard alone chooses the device.
        assert name == "device.cu" or "cudaSetDevice" not in source, name


def test_the_binding_takes_no_macro_that_came_after_the_oldest_torch() -> None:
    for path in [*CSRC.glob("*.h"), *CSRC.glob("*.cpp")]:
        # Torch 2.11 has TORCH_ERROR_CODE_CHECK alone; TORCH_TARGET_VERSION hides functions, not macros.
        assert "STABLE_TORCH_ERROR_CODE_CHECK(" not in path.read_text(), path.name


def names_of_conftest() -> set[str]:
    """Return what conftest.py offers, but for the scenes, which have a file of their own."""
    tree = ast.parse((TESTS / "conftest.py").read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and not str(node.module).startswith("blob_"):
            names.update(alias.name for alias in node.names)
    return names


def test_the_tests_on_a_gpu_do_without_conftest() -> None:
    # That needs what the page's tests need, which a lent machine with a GPU has not.
    beyond = names_of_conftest()
    assert {"browser", "nvml"} <= beyond and "blob_scene" not in beyond
    files = [path for path in TESTS.rglob("test_cuda*.py") if "mark.cuda" in path.read_text()]
    assert len(files) >= 6
    for path in files:
        tree = ast.parse(path.read_text())
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not imported & {"conftest", "tests.conftest"}, path.name
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                assert not {each.arg for each in node.args.args} & beyond, f"{path.name}: {node.name}"

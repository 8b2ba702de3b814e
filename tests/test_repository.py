"""The rules that keep the source readable: layers, sizes, one home for each outside library."""

from __future__ import annotations

import ast
import gc
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "splatstudio"

# The folders of the package and the few files beside them, in the order in which a scene becomes a model on a
# page. Each imports only from those above it.
LAYERS = [
    "error_text",
    "settings",
    "operating_system",
    "files",
    "devices",
    "cameras",
    "gaussians",
    "kernels",
    "distributed",
    "scene",
    "poses",
    "formats",
    "rendering",
    "optimization",
    "strategy",
    "corrections",
    "checkpoints",
    "evaluation",
    "models",
    "surfaces",
    "training",
    "runtime",
    "gui",
    "api",
    "cli",
    "__main__",
]

# The same inside of the page: the gate and viser's insides below what a browser looks at, panels above.
GUI_LAYERS = ["amounts", "theme", "server", "state", "panel", "leaving_bars", "dock", "tabs"]
GUI_LAYERS += ["render_function", "estimation", "app", "attached", "notebook"]

# An outside library that only one part or module may know, so that it is exchanged or upgraded in one place.
HOMES = {
    # Half of viser is a program in the browser, which an exported page takes along; that needs no server.
    "viser": {"gui", "formats.viewer_page"},
    "nerfview": {"gui"},
    "multiprocessing": {"runtime"},
    "cv2": {"scene"},
    "pynvml": {"devices.monitor"},
    "simplejpeg": {"gui", "runtime"},
    "tyro": {"cli"},
    # viser prints by it, which the gate does not let it.
    "rich": {"cli", "gui.server.gate"},
    "safetensors": {"checkpoints.manifest"},
    "splines": {"cameras.camera_path"},
    "imageio": {"models.video"},
    "pycolmap": {"poses"},
}


def module_of(path: Path) -> str:
    """Return a source file's name as it is imported, below `splatstudio`; a folder is its first file."""
    names = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def part(path: Path) -> str:
    """Return the name under which a source file stands in LAYERS."""
    return module_of(path).split(".")[0]


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the tree of a source file, which many of the rules look at."""
    return ast.parse(path.read_text())


@pytest.fixture(scope="module", autouse=True)
def forgotten_trees() -> Iterator[None]:
    """Free the trees after the last of these tests: millions of objects, too many to look through."""
    gc.disable()
    yield
    tree_of.cache_clear()
    gc.enable()


def python_files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


MODULES = {f"splatstudio.{module_of(path)}" for path in python_files()}


def imported_modules(tree: ast.AST) -> list[str]:
    modules: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            modules += [name if name in MODULES else node.module for name in names]
    return modules


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path) -> None:
    assert part(path) in LAYERS, f"{path.name} has no place in LAYERS"
    for module in imported_modules(tree_of(path)):
        top, *rest = module.split(".")
        if top == "splatstudio" and rest:
            assert LAYERS.index(rest[0]) <= LAYERS.index(part(path)), f"{path.name} imports {module}"
        homes = HOMES.get(top, {part(path)})
        assert homes & {part(path), module_of(path)}, f"{path.name} imports {module}"


def test_only_one_module_asks_torch_for_one_makers_accelerators() -> None:
    asks = [
        module_of(path)
        for path in python_files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.cuda", "torch.xpu", "torch.mps")
    ]
    assert set(asks) == {"devices.accelerator"}


def test_no_modules_import_each_other_in_a_circle() -> None:
    imports: dict[str, set[str]] = {}
    for path in python_files():
        modules = imported_modules(tree_of(path))
        imports[f"splatstudio.{module_of(path)}"] = MODULES.intersection(modules)
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle


def test_imports_inside_of_the_page_point_downwards() -> None:
    for path in sorted((PACKAGE / "gui").rglob("*.py")):
        own = module_of(path).split(".")[1:2]
        for module in imported_modules(tree_of(path)):
            prefix, _, rest = module.partition("splatstudio.gui.")
            if not prefix and rest and own:
                layer = rest.split(".")[0]
                assert GUI_LAYERS.index(layer) <= GUI_LAYERS.index(own[0]), f"{path.name} imports {module}"


def test_only_the_server_of_the_page_knows_the_inside_of_viser() -> None:
    inside: list[str] = []
    for path in sorted((PACKAGE / "gui").rglob("*.py")):
        if path.parent.name == "server":
            continue
        tree = tree_of(path)
        inside += [f"{path.name}: {name}" for name in imported_modules(tree) if "viser._" in name]
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or not re.match(r"_[^_]", node.attr):
                continue
            if ast.unparse(node.value) not in {"self", "cls", "super()"}:
                inside.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert not inside, "\n".join(inside)


@pytest.mark.parametrize("script", sorted(PACKAGE.rglob("*.js")), ids=lambda path: path.name)
def test_scripts_of_the_page_are_read_by_a_browsers_engine(script: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    checked = subprocess.run([node, "--check", str(script)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_no_test_imports_from_another() -> None:
    # What tests share lies in tests/support: then any of them is moved, renamed or run alone.
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        modules = imported_modules(tree_of(path))
        tests = [module for module in modules if re.search(r"(^|\.)test_", module)]
        assert not tests, f"{path.relative_to(ROOT)} imports {', '.join(tests)}: move it to tests/support"


def test_every_folder_says_what_it_is_for() -> None:
    silent = [path for path in PACKAGE.rglob("__init__.py") if not ast.get_docstring(tree_of(path))]
    assert not silent, [str(path.relative_to(ROOT)) for path in silent]


def test_torch_ops_are_called_in_one_place() -> None:
    callers = {module_of(path) for path in python_files() if "torch.ops" in path.read_text()}
    assert callers <= {"kernels.ops"}


def test_only_the_command_line_reads_arguments() -> None:
    readers = {module_of(path) for path in python_files() if "sys.argv" in path.read_text()}
    assert readers <= {"cli.main", "__main__"}


def test_only_the_binding_sees_torch() -> None:
    sources = [path for path in (ROOT / "csrc").rglob("*") if path.suffix in {".h", ".cpp", ".cu", ".cuh"}]
    including = {path.name for path in sources if re.search(r"#include\s*<torch/", path.read_text())}
    bindings = {path.name for path in sources if re.fullmatch(r"ops\w*\.cpp", path.name)}
    assert sources and including == {"torch_device.h", "schemas.cpp"} | bindings


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.splitlines() if (ROOT / name).is_file()]


def test_files_and_functions_stay_small() -> None:
    too_long: list[str] = []
    for path in tracked_files():
        if path.suffix not in {".py", ".cpp", ".h", ".cu", ".cuh"}:
            continue
        text = path.read_text()
        if text.count("\n") > 600:
            too_long.append(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines")
        if path.suffix == ".py":
            for node in ast.walk(tree_of(path)):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    length = (node.end_lineno or 0) - node.lineno + 1
                    if length > 60:
                        too_long.append(f"{path.relative_to(ROOT)}:{node.name}: {length} lines")
    assert not too_long, "\n".join(too_long)


def test_no_machine_specific_text() -> None:
    suspicious = re.compile(
        r"/(work|root)/|/home/[a-z]+/|https?://[a-z.]*(pypi|npmjs|debian)\.org", re.IGNORECASE
    )
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in tracked_files()
        if path.suffix in {".py", ".cpp", ".h", ".cu", ".md", ".toml", ".txt", ".json", ""}
        and path != Path(__file__)
        and (match := suspicious.search(path.read_text(errors="replace")))
    ]
    assert not found, "\n".join(found)


def test_top_level_holds_only_what_belongs_there() -> None:
    allowed = {
        ".ci",
        ".gitignore",
        "LICENSE",
        "Makefile",
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "CITATION.cff",
    }
    allowed |= {"assets", "csrc", "docs"}
    allowed |= {"pyproject.toml", "requirements.txt", "splatstudio", "tests"}
    assert {path.relative_to(ROOT).parts[0] for path in tracked_files()} <= allowed


def test_public_functions_say_what_they_do() -> None:
    silent: list[str] = []
    for path in python_files():
        for node in tree_of(path).body:
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name.startswith("_"):
                continue
            if not ast.get_docstring(node):
                silent.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert not silent, "\n".join(silent)


def test_no_class_name_is_used_twice() -> None:
    owners: dict[str, list[str]] = {}
    for path in python_files():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                owners.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert not {name: files for name, files in owners.items() if len(files) > 1}


def test_torchs_idle_threads_sleep_in_the_process_of_the_tests_too() -> None:
    loaded = list(sys.modules)
    assert loaded.index("splatstudio") < loaded.index("torch"), "the setting comes too late otherwise"


# Modules that Windows does not have, and names of those that it has, by Python's documentation.
OF_ONE_SYSTEM = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix", "msvcrt", "winreg"}
NAMES_OF_ONE_SYSTEM = re.compile(
    r"os\.(O_(?!RDONLY|WRONLY|RDWR|APPEND|CREAT|EXCL|TRUNC)\w+|fork\w*|nice|gete?[ug]id|killp?g?|pread|pwrite|"
    r"posix_\w+|sched_\w+|[gs]etpriority|PRIO_\w+|setsid|statvfs|wait\w*|mkfifo|name|replace|rename)|"
    r"signal\.(SIG(?!INT|TERM|ABRT|_DFL|_IGN|nals)\w+|alarm|setitimer|pthread_\w+|sigwait\w*|siginterrupt)|"
    r"socket\.(AF_UNIX|SO_REUSE\w+|SO_SNDTIMEO|TCP_USER_TIMEOUT)|select\.\w+|sys\.(platform|getwindowsversion)|"
    r"ctypes\.(CDLL|windll)|subprocess\.CREATE_\w+"
)
# They say on which systems a file is that they read, and do without where it is not.
ASK_LINUX = {
    "cli.report",
    "training.precision",
    "devices.monitor",
    "runtime.process_setup",
}


def test_one_module_knows_what_operating_systems_do_differently() -> None:
    found: list[str] = []
    for path in python_files():
        module = module_of(path)
        if module == "operating_system":
            continue
        tree = tree_of(path)
        found += [f"{module}: {name}" for name in imported_modules(tree) if name in OF_ONE_SYSTEM]
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and NAMES_OF_ONE_SYSTEM.fullmatch(text := ast.unparse(node)):
                found.append(f"{module}:{node.lineno}: {text}")
            if isinstance(node, ast.Constant) and re.match(r"/(dev|proc|sys)/", str(node.value)):
                found += [] if module in ASK_LINUX else [f"{module}:{node.lineno}: {node.value}"]
    assert not found, "put it into operating_system.py:\n" + "\n".join(found)

"""The rules that keep the source readable: layers, sizes, one home for each outside library."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "splatstudio"

# Each part may import only parts that stand above it.
LAYERS = [
    "typed_path",
    "setting",
    "strategy_config",
    "capture_config",
    "flat_curve",
    "config",
    "presets",
    "setting_notes",
    "camera",
    "placement",
    "camera_path",
    "ready_paths",
    "gaussians",
    "dropout",
    "stages",
    "depth_order",
    "projections",
    "spherical_harmonics",
    "transfer",
    "scene",
    "reference",
    "sky",
    "reference_modes",
    "reference_training",
    "ops",
    "ops_modes",
    "ops_training",
    "instance_room",
    "error_text",
    "durable",
    "camera_file",
    "path_file",
    "rendering",
    "render_modes",
    "color_maps",
    "mode_pictures",
    "distributed",
    "sharded_view",
    "precision",
    "losses",
    "optim",
    "descent",
    "sharded_descent",
    "findings",
    "resolution",
    "contributions",
    "initialize",
    "gaussian_transform",
    "normals",
    "trimming",
    "spatial_order",
    "strategy",
    "survey",
    "half_photos",
    "corrections",
    "shapes",
    "growth",
    "step_stats",
    "step_plan",
    "depth_guide",
    "shard_file",
    "corrections_file",
    "viewer_page",
    "formats",
    "free_path",
    "manifest",
    "checkpoint",
    "checkpoint_share",
    "checkpoint_saver",
    "shared_saver",
    "run",
    "run_lock",
    "lost_scores",
    "rank_parts",
    "gsplat_parts",
    "checkpoint_catalog",
    "lpips",
    "photo_uploads",
    "evaluate",
    "sharded_evaluate",
    "model",
    "exporting",
    "merging",
    "scoring",
    "video",
    "starting_model",
    "dealing",
    "photo_queue",
    "shots",
    "lookahead",
    "resuming",
    "trainer",
    "score_watch",
    "session",
    "devices",
    "gpu_links",
    "rank_devices",
    "memory_plan",
    "device_options",
    "worker",
    "studio",
    "api",
    "doctor",
    "terminal",
    "info_command",
    "score_files",
    "eval_options",
    "eval_command",
    "open_options",
    "render_options",
    "render_command",
    "launched_command",
    "train_command",
    "attach_command",
    "command_options",
    "mistyped",
    "unread_output",
    "cli",
]

# An outside library that only one part may know, so that it can be exchanged or upgraded in one place.
HOMES = {
    # Half of viser is a program in the browser, which an exported page takes along; that needs no server.
    "viser": {"studio", "viewer_page"},
    "nerfview": {"studio"},
    "multiprocessing": {"worker"},
    "cv2": {"scene"},
    "pynvml": {"devices", "gpu_links"},
    "simplejpeg": {"studio", "worker"},
    "tyro": {"cli"},
    "rich": {"cli", "terminal"},
    "safetensors": {"shard_file"},
    "splines": {"camera_path"},
    "imageio": {"video"},
}


def part(path: Path) -> str:
    """Return the name under which a source file stands in LAYERS."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def python_files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def imported_modules(tree: ast.AST) -> list[str]:
    modules: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.append(node.module)
            if node.module == "splatstudio":
                modules += [f"splatstudio.{alias.name}" for alias in node.names]
    return modules


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path) -> None:
    assert part(path) in LAYERS, f"{path.name} has no place in LAYERS"
    for module in imported_modules(ast.parse(path.read_text())):
        top, *rest = module.split(".")
        if top == "splatstudio" and rest:
            assert LAYERS.index(rest[0]) <= LAYERS.index(part(path)), f"{path.name} imports {module}"
        assert part(path) in HOMES.get(top, {part(path)}), f"{path.name} imports {module}"


def test_torch_ops_are_called_in_one_place() -> None:
    callers = {part(path) for path in python_files() if "torch.ops" in path.read_text()}
    assert callers <= {"ops"}


def test_only_the_command_line_reads_arguments() -> None:
    readers = {part(path) for path in python_files() if "sys.argv" in path.read_text()}
    assert readers <= {"cli"}


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
        if text.count("\n") > 400:
            too_long.append(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines")
        if path.suffix == ".py":
            for node in ast.walk(ast.parse(text)):
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
    allowed = {".ci", ".gitignore", "LICENSE", "Makefile", "README.md", "assets", "csrc"}
    allowed |= {"pyproject.toml", "requirements.txt", "splatstudio", "tests"}
    assert {path.relative_to(ROOT).parts[0] for path in tracked_files()} <= allowed


def test_public_functions_say_what_they_do() -> None:
    silent: list[str] = []
    for path in python_files():
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name.startswith("_"):
                continue
            if not ast.get_docstring(node):
                silent.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert not silent, "\n".join(silent)


def test_torchs_idle_threads_sleep_in_the_process_of_the_tests_too() -> None:
    loaded = list(sys.modules)
    assert loaded.index("splatstudio") < loaded.index("torch"), "the setting comes too late otherwise"

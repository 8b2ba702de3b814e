"""The guide: its examples run, every page is reached, and what it says of the code is there."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "guide"
EXAMPLES = ROOT / "docs" / "examples"
MOST_FILES = {"Pause": 10, "A camera move": 12, "A live setting": 10, "One training step": 10}


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r"[\w/-]+\.md", (ROOT / "docs" / "mkdocs.yml").read_text()))
    assert named == {str(page.relative_to(GUIDE)) for page in GUIDE.rglob("*.md")}


def test_a_model_is_trained_and_written_in_two_formats(tmp_path: Path) -> None:
    program = [sys.executable, EXAMPLES / "train_and_export.py", "assets/demo", tmp_path / "out", "40"]
    done = subprocess.run(list(map(str, program)), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "PSNR" in done.stdout and {"model.ply", "model.spz"} == {
        path.name for path in (tmp_path / "out").iterdir()
    }


def test_a_renderer_of_ones_own_draws() -> None:
    from nerfview import CameraState, RenderTabState

    namespace: dict[str, Any] = {"__name__": "example"}
    exec(compile((EXAMPLES / "own_renderer.py").read_text(), "own_renderer.py", "exec"), namespace)
    import numpy as np

    state = RenderTabState(viewer_width=32, viewer_height=16)
    image = namespace["render"](CameraState(fov=1.0, aspect=2.0, c2w=np.eye(4)), state)
    assert image.shape == (16, 32, 3) and image.dtype == np.uint8
    straight = image[8, 16].astype(int)
    assert straight[2] > 240 and abs(straight[:2] - 128).max() < 12, "straight ahead is z"


def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    cells = json.loads((EXAMPLES / "look_at_a_model.ipynb").read_text())["cells"]
    namespace: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), namespace)


def defined(path: Path) -> set[str]:
    """Return the functions of a file, and the methods as Class.method."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names.add(node.name)
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return names


@pytest.mark.parametrize("way", MOST_FILES)
def test_each_way_through_the_code_is_short_and_true(way: str) -> None:
    text = (GUIDE / "how-it-works.md").read_text()
    section = re.search(rf"^### {way}.*?\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None, f"how-it-works.md has no section on {way}"
    steps = re.findall(r"^\d+\. `([\w/.]+\.py)` `([\w.]+)`", section[1], re.MULTILINE)
    assert len(steps) >= 4
    for file, name in steps:
        assert name in defined(ROOT / "splatstudio" / file), f"{file} has no {name}"
    assert len({file for file, _ in steps}) <= MOST_FILES[way]

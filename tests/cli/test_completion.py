"""The scripts with which shells complete what is typed, read by the shells themselves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from splatstudio.cli import main as cli
from splatstudio.cli.command_options import options_of
from splatstudio.cli.completion import ShellName, completion_script
from splatstudio.settings.presets import PRESETS

# Types words before Tab as bash has them, and prints what it would offer.
ASK = """
source {script}
complete -p splatstudio >/dev/null || exit 1
COMP_WORDS=({words})
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_splatstudio
(( ${{#COMPREPLY[@]}} )) && printf '%s\\n' "${{COMPREPLY[@]}}"
exit 0
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[ShellName, Path]:
    """Return a file with the script of each shell."""
    folder = tmp_path_factory.mktemp("completion")
    files: dict[ShellName, Path] = {}
    for shell in ("bash", "zsh", "fish"):
        files[shell] = folder / f"script.{shell}"
        files[shell].write_text(completion_script(shell, cli.COMMANDS))
    return files


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with a scene and a file, to be completed."""
    (tmp_path / "my scene").mkdir()
    (tmp_path / "model.ply").touch()
    return tmp_path


def offered(scripts: dict[ShellName, Path], words: str, folder: Path) -> set[str]:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    asked = ASK.format(script=scripts["bash"], words=words)
    told = subprocess.run(
        [bash, "--norc"], input=asked, capture_output=True, text=True, cwd=folder, timeout=60
    )
    assert told.returncode == 0 and not told.stderr, told.stderr
    return set(told.stdout.splitlines())


def told_by(program: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Return what a shell says in a folder, which is its home: it keeps lists of completions there."""
    home = {**os.environ, "HOME": str(folder), "ZDOTDIR": str(folder)}
    return subprocess.run(program, capture_output=True, text=True, cwd=folder, env=home, timeout=60)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("splatstudio tr", {"train"}),
        ("splatstudio ''", set(cli.COMMANDS)),
        ("splatstudio train SCENE --preset ''", set(PRESETS)),
        ("splatstudio train SCENE --preset f", {"fast"}),
        ("splatstudio train SCENE --preset = fa", {"fast"}),
        ("splatstudio train SCENE --preset =", set(PRESETS)),
        ("splatstudio train SCENE --stop-w", {"--stop-when-flat"}),
        ("splatstudio train SCENE --optim.means", {"--optim.means-lr", "--optim.means-lr-decay"}),
        ("splatstudio train SCENE --help", {"--help", "--help-all"}),
        ("splatstudio train SCENE --steps ''", set()),
        ("splatstudio train m", {"my scene", "model.ply"}),
        ("splatstudio train --resume mo", {"model.ply"}),
        ("splatstudio export RUN -o mod", {"model.ply"}),
        ("splatstudio doctor ''", set()),
        ("splatstudio doctor --rep", {"--report"}),
        ("splatstudio doctor --report --run my", {"my scene"}),
        ("splatstudio completion ''", {"bash", "zsh", "fish"}),
        ("splatstudio render RUN --mode d", {"depth"}),
        ("splatstudio eval RUN --lpips ''", {"alex", "vgg"}),
    ],
)
def test_bash_offers_what_fits(
    words: str, expected: set[str], scripts: dict[ShellName, Path], files: Path
) -> None:
    assert offered(scripts, words, files) == expected


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_bash_offers_every_option_of_a_command(
    name: str, scripts: dict[ShellName, Path], files: Path
) -> None:
    known = {f"--{option}" for option in options_of(cli.COMMANDS[name]) if len(option) > 1}
    assert offered(scripts, f"splatstudio {name} --", files) == known | {"--help-all"}


def test_zsh_reads_its_script(scripts: dict[ShellName, Path], files: Path) -> None:
    zsh = shutil.which("zsh")
    if zsh is None:
        pytest.skip("zsh is not installed")
    asked = f"source {scripts['zsh']}; print $_comps[splatstudio]"
    told = told_by([zsh, "-f", "-c", asked], files)
    assert told.returncode == 0 and "_splatstudio" in told.stdout, told.stderr


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("splatstudio tr", ["train"]),
        ("splatstudio train SCENE --preset f", ["fast"]),
        ("splatstudio train SCENE --stop-w", ["--stop-when-flat"]),
        ("splatstudio export RUN --output mo", ["model.ply"]),
        ("splatstudio completion ba", ["bash"]),
    ],
)
def test_fish_offers_what_fits(
    typed: str, expected: list[str], scripts: dict[ShellName, Path], files: Path
) -> None:
    fish = shutil.which("fish")
    if fish is None:
        pytest.skip("fish is not installed")
    asked = f"source {scripts['fish']}; complete -C {json.dumps(typed)}"
    told = told_by([fish, "-N", "-c", asked], files)
    assert [line.split("\t")[0] for line in told.stdout.splitlines()] == expected, told.stderr

"""Install what `make wheel` built as users do, and use it: without a compiler, outside of the repository.

    make release-check                           (this Python, with the torch of requirements.txt)
    make release-check PYTHONS="3.10 3.13"       (others, each with the torch that pip chooses: 5 GB)
    make release-check PYTHONS="3.11@2.11.0"     (with that torch)

An audit hook in the environment ends every process that opens a file of the checkout.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIST = ROOT / "build" / "dist"
STEPS = 100
PATIENCE_SECONDS = 120.0  # for the demo to train
HOOK = """
import os, sys

def refuse(event, given):
    # A name of a file may be bytes, or the number of one that is open already.
    if event in ("open", "os.listdir", "os.scandir", "ctypes.dlopen") and given and given[0] is not None:
        if not isinstance(given[0], int) and os.path.abspath(os.fsdecode(given[0])).startswith({root!r}):
            os.write(2, f"READ FROM THE CHECKOUT: {{given[0]}}\\n".encode())
            os._exit(77)

sys.addaudithook(refuse)
"""
IMPORT = """
import splatstudio as ss
from splatstudio.kernels import ops
from splatstudio.scene.demo import demo_scene
scene = ss.load_scene(demo_scene(), downscale=4)
model = ss.load_model("runs/demo")
print(ss.__file__, ops.native_version(), ops.without_cuda_kernels(), len(model.gaussians),
      ss.render(model, scene.cameras[0]).shape)
"""


class Failure(Exception):
    """What did not go as it should; its text says all of it."""


@dataclass(frozen=True)
class Environment:
    """A fresh environment in a folder of its own, outside of the repository."""

    folder: Path
    variables: dict[str, str]

    @property
    def programs(self) -> Path:
        """Return where its programs are."""
        return self.folder / "venv" / "bin"

    def run(self, *command: str, code: int = 0) -> str:
        """Run one of its programs to its end and return what it printed; Failure for another exit code."""
        done = subprocess.run(
            [str(self.programs / command[0]), *command[1:]],
            env=self.variables,
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode != code:
            raise Failure(f"{' '.join(command)[:200]}: exit code {done.returncode}\n{done.stdout[-3000:]}")
        return done.stdout

    def pip(self, *arguments: str, code: int = 0) -> str:
        """Run pip."""
        return self.run("python", "-m", "pip", "--disable-pip-version-check", *arguments, code=code)


def main(pythons: Sequence[str]) -> int:
    """Check all of it and return the exit code."""
    (wheel,), (source,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    try:
        check_contents(wheel)
        for python, versions in interpreters(pythons):
            started = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="splatstudio-release-") as folder:
                environment = fresh_environment(Path(folder), python)
                check_source_without_compiler(environment, source)
                install(environment, wheel, versions)
                check_use(environment)
                check_container_commands(environment)
                if not pythons:
                    check_source_builds(environment, source)
            print(f"{python}: ok, {time.monotonic() - started:.0f} s", flush=True)
    except Failure as failure:
        print(f"release-check FAILED: {failure}")
        return 1
    return 0


def interpreters(wanted: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Yield this Python or those of the wanted versions, on PATH or of pyenv, and what pip is bound to there.

    As 3.10, or 3.11@2.11.0 with the version of torch. Nothing wanted: the versions of requirements.txt.
    """
    if not wanted:
        lines = (ROOT / "requirements.txt").read_text().splitlines()
        pinned = "\n".join(line for line in lines if line[:1].isalpha())
        yield Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}"), pinned
    for each in wanted:
        version, _, torch = each.partition("@")
        of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
        found = next(iter(of_pyenv), shutil.which(f"python{version}"))
        if found is None:
            raise Failure(f"Python {version} is not on this machine")
        yield Path(found), f"torch=={torch}" if torch else ""


def check_contents(wheel: Path) -> None:
    """See that nothing in the wheel names a place of this machine."""
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            if str(ROOT).encode() in files.read(name):
                raise Failure(f"{name} in {wheel.name} names {ROOT}")


def fresh_environment(folder: Path, python: Path) -> Environment:
    """Return a new environment with nothing in it but pip, from which no compiler is seen."""
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
    here = {"PATH": str(folder / "venv" / "bin"), "XDG_STATE_HOME": str(folder / "state")}
    environment = Environment(folder, {**kept, **here})
    for name in ("c++", "g++", "gcc", "cc", "clang", "nvcc", "make"):
        if shutil.which(name, path=environment.variables["PATH"]):
            raise Failure(f"{name} is on PATH")
    (packages,) = folder.glob("venv/lib/python*/site-packages")
    (packages / "refuse_checkout.py").write_text(HOOK.format(root=str(ROOT)))
    (packages / "refuse_checkout.pth").write_text("import refuse_checkout\n")
    # The hook works: else it would refuse nothing later.
    environment.run("python", "-c", f"open({str(ROOT / 'README.md')!r})", code=77)
    return environment


def check_source_without_compiler(environment: Environment, source: Path) -> None:
    """See that pip says in a sentence that the source needs a compiler."""
    copy = shutil.copy(source, environment.folder)
    told = environment.pip("install", "--no-deps", str(copy), code=1)
    if "building it needs a C++ compiler: none was found" not in told or "CMake Error" in told:
        raise Failure(f"pip says without a compiler:\n{told}")
    if len(told.splitlines()) > 40:
        raise Failure(f"pip says a page without a compiler:\n{told}")


def install(environment: Environment, wheel: Path, versions: str) -> None:
    """Install the wheel with what it asks for, in `versions` where those name any."""
    started = time.monotonic()
    copy = shutil.copy(wheel, environment.folder)
    constraints = environment.folder / "versions.txt"
    constraints.write_text(versions + "\n")
    environment.pip("install", "--quiet", "--no-compile", "-c", str(constraints), str(copy))
    print(f"installed in {time.monotonic() - started:.0f} s", flush=True)


def check_use(environment: Environment) -> None:
    """Do what a new user does."""
    version = environment.run("splatstudio", "--version").strip()
    print(version)
    doctor = environment.run("splatstudio", "doctor")
    if not re.search(r"ok +self test +the kernels agree", doctor):
        raise Failure(f"splatstudio doctor says:\n{doctor}")
    train_demo(environment)
    told = environment.run("splatstudio", "export", "runs/demo", "-o", "demo.ply")
    if (environment.folder / "demo.ply").stat().st_size < 1e6:
        raise Failure(f"the exported model is too small: {told}")
    imported = environment.run("python", "-c", IMPORT).strip()
    print(imported)
    if not imported.startswith(str(environment.folder)):
        raise Failure(f"splatstudio was imported from elsewhere: {imported}")


def check_source_builds(environment: Environment, source: Path) -> None:
    """Build the source with the tools of this Python, away from the checkout, and use what comes of it."""
    started = time.monotonic()
    folder = environment.folder / "from-source"
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    without_cuda = "--config-settings=cmake.define.SPLAT_CUDA=OFF"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        [*command, "--no-build-isolation", without_cuda, "-w", folder, environment.folder / source.name],
        cwd=environment.folder,
        env={**os.environ, "PATH": path},
        check=True,
    )
    (wheel,) = folder.glob("splatstudio-*-py3-none-linux_*.whl")
    environment.pip("install", "--quiet", "--no-deps", "--force-reinstall", str(wheel))
    print(environment.run("python", "-c", IMPORT).strip())
    print(f"built from source in {time.monotonic() - started:.0f} s", flush=True)


def train_demo(environment: Environment) -> None:
    """Train the demo in the studio, and close it as Ctrl-C does."""
    words = ["demo", "--steps", str(STEPS), "--downscale", "2", "--no-browser", "--port", "0"]
    with open(environment.folder / "demo.log", "w+") as log:
        studio = subprocess.Popen(
            [environment.programs / "splatstudio", *words],
            env=environment.variables,
            cwd=environment.folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        manifest = environment.folder / "runs" / "demo" / "ckpts" / f"step_{STEPS:08d}" / "manifest.json"
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not manifest.exists() and studio.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        studio.send_signal(signal.SIGINT)
        code = studio.wait(PATIENCE_SECONDS)
        log.seek(0)
        told = log.read()
    if code != 0 or not manifest.exists() or "Traceback" in told or "CHECKOUT" in told:
        raise Failure(f"splatstudio demo: exit code {code}, trained: {manifest.exists()}\n{told}")


def check_container_commands(environment: Environment) -> None:
    """Run what both images of the Dockerfile start, until the page is served."""
    text = (ROOT / "docs" / "Dockerfile").read_text()
    starts = [
        [*json.loads(program), *json.loads(words)]
        for program, words in re.findall(r"^ENTRYPOINT (\[.*\])\nCMD (\[.*\])$", text, re.MULTILINE)
    ]
    exposed = set(re.findall(r"^EXPOSE (\d+)$", text, re.MULTILINE))
    users = re.findall(r"^USER (\w+)$", text, re.MULTILINE)
    if users != ["1000", "1000"] or len(starts) != 2 or starts[0] != starts[1] or not exposed <= {*starts[0]}:
        raise Failure(f"docs/Dockerfile starts {starts} as {users} and exposes {exposed}")
    place = environment.folder / "data"
    place.mkdir()
    words = ["0" if word in exposed else word for word in starts[0]]  # another program may have the port
    with subprocess.Popen(
        [environment.programs / words[0], *words[1:]],
        env=environment.variables,
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as studio:
        assert studio.stdout is not None
        told = next((line for line in studio.stdout if "token=" in line), "")
        try:
            found = re.search(r"http://localhost:(\d+)(/\?token=\S+)", told)
            if found is None:
                raise Failure(f"{' '.join(words)} printed no address: {told}")
            for path, status in ((found[2], 303), ("/", 403)):
                connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=PATIENCE_SECONDS)
                connection.request("GET", path)
                if (answered := connection.getresponse().status) != status:
                    raise Failure(f"the page of {' '.join(words)} answered {answered} to {path[:8]}")
        finally:
            studio.terminate()  # as `docker stop` does
            rest = studio.communicate(timeout=PATIENCE_SECONDS)[0]
    if studio.returncode != 143 or "Traceback" in rest or "CHECKOUT" in rest:
        raise Failure(f"{' '.join(words)}: exit code {studio.returncode}\n{told}{rest}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

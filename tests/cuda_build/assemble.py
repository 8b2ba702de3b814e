"""Assemble every CUDA source for every architecture that users have, and hold what was won.

    make cuda-check                                  (needs nvcc, no GPU)
    python tests/cuda_build/assemble.py --write      keeps the figures of today as those that hold

Of each kernel: registers, shared memory and, by those, how many of its blocks find room in a multiprocessor;
in its PTX the instructions, those in each innermost loop, and those that are slow: FP64, divisions, memory of
a thread's own. None may rise, and no room may shrink, against figures.json, which was written with the same
nvcc; another nvcc only tells. Nothing may spill, and nothing be warned of.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIGURES = Path(__file__).with_name("figures.json")
PTX_OF = 90  # the architecture whose PTX is looked at
WITHOUT_FUSED_STEPS = {"raster_fwd.cu", "raster_bwd.cu", "tiles.cu", "modes.cu"}  # see csrc/CMakeLists.txt
LANES = 32
REGISTERS = 65536  # of a multiprocessor, on every architecture
SLOW = {
    "fp64": re.compile(r"\.f64\b"),
    "divisions": re.compile(r"^\s*(?:@\S+ )?div\."),
    "local_memory": re.compile(r"\b(?:ld|st)\.local\b"),
}


@dataclass(frozen=True)
class Multiprocessor:
    """What a multiprocessor has room for (CUDA C++ Programming Guide, technical specifications)."""

    threads: int
    blocks: int
    shared: int  # bytes
    reserved: int  # bytes of it that each block takes beside its own


KB = 1024
MULTIPROCESSORS = {
    75: Multiprocessor(1024, 16, 64 * KB, 0),
    80: Multiprocessor(2048, 32, 164 * KB, KB),
    86: Multiprocessor(1536, 16, 100 * KB, KB),
    89: Multiprocessor(1536, 24, 100 * KB, KB),
    90: Multiprocessor(2048, 32, 228 * KB, KB),
    100: Multiprocessor(2048, 32, 228 * KB, KB),
    120: Multiprocessor(1536, 24, 100 * KB, KB),
}


@dataclass(frozen=True)
class Fit:
    """What a kernel takes on one architecture: registers a thread, shared bytes a block, blocks with room."""

    registers: int
    shared: int
    blocks: int


@dataclass(frozen=True)
class Code:
    """What a kernel's PTX consists of; `loops`: instructions of each innermost loop, the longest first."""

    instructions: int
    loops: tuple[int, ...]
    fp64: int
    divisions: int
    local_memory: int


def room(architecture: int, threads: int, registers: int, shared: int) -> int:
    """Return how many blocks find room in a multiprocessor at once."""
    has = MULTIPROCESSORS[architecture]
    of_a_warp = -(-registers * LANES // 256) * 256  # they are given out so
    by_registers = REGISTERS // of_a_warp // (threads // LANES)
    by_shared = has.shared // max(1, shared + has.reserved)
    return min(has.blocks, has.threads // threads, by_registers, by_shared)


def assembled(source: Path, architecture: int) -> tuple[dict[str, Fit], dict[str, Code]]:
    """Return what each kernel of a source takes, and of one architecture what its code is.

    Raises ValueError with what the compiler says where it warns or fails, and where registers spill.
    """
    fused = "false" if source.name in WITHOUT_FUSED_STEPS else "true"
    with tempfile.TemporaryDirectory() as folder:
        command = ["nvcc", "-std=c++17", f"--fmad={fused}", "--Werror", "all-warnings", "-Icsrc"]
        command += [f"-arch=sm_{architecture}", "-cubin", "-Xptxas", "-v", str(source), "-o", f"{folder}/out"]
        command += ["--keep", "--keep-dir", folder]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            raise ValueError(f"{source.name} sm_{architecture}:\n{done.stdout}{done.stderr}")
        (ptx,) = Path(folder).glob("*.ptx")
        text = ptx.read_text()
    own = [name for name in re.findall(r"\.entry (\w+)", text) if "splat" in name]  # not the library's
    names = plain_names(own) if own else {}
    bodies = dict(re.findall(r"\.entry (\w+)\(.*?^\{(.*?)^\}", text, re.DOTALL | re.MULTILINE))
    threads = {name: int(num) for name, num in re.findall(r"\.entry (\w+)\([^{]*?\.maxntid (\d+)", text)}
    fits = {}
    for name, said in re.findall(r"Compiling entry function '(\w+)'(.*?Used [^\n]*)", done.stderr, re.DOTALL):
        if name not in names:
            continue
        if re.search(r"[1-9]\d* bytes spill", said):
            raise ValueError(f"{names[name]} spills registers on sm_{architecture}, which is slow:{said}")
        registers = int(re.findall(r"Used (\d+) registers", said)[0])
        shared = sum(map(int, re.findall(r"(\d+) bytes smem", said)))
        fits[names[name]] = Fit(registers, shared, room(architecture, threads[name], registers, shared))
    codes = (
        {names[name]: code_of(body) for name, body in bodies.items() if name in names}
        if architecture == PTX_OF
        else {}
    )
    return fits, codes


def plain_names(mangled: list[str]) -> dict[str, str]:
    """Return the kernels' names as they are written: raster_fwd_kernel, raster_bwd_kernel<true, false>."""
    told = subprocess.run(["c++filt", *mangled], capture_output=True, text=True, check=True).stdout
    names = {}
    for name, plain in zip(mangled, told.splitlines(), strict=False):
        plain = plain.replace("(anonymous namespace)::", "").replace("(splat::CameraModel)", "camera ")
        found = re.search(r"(\w+(?:<[^(]*>)?)\(", plain)
        names[name] = found[1] if found else plain
    return names


def code_of(body: str) -> Code:
    """Count the instructions of a kernel's PTX."""
    lines, labels = [], {}
    for line in body.splitlines():
        label = re.match(r"(\$\S+):", line)
        if label:
            labels[label[1]] = len(lines)
        elif re.match(r"\s+(?:@\S+ )?[a-z]", line):
            lines.append(line)
    jumps = [(at, re.search(r"\bbra(?:\.uni)?\s+(\$\S+);", line)) for at, line in enumerate(lines)]
    loops = [(labels[to[1]], at) for at, to in jumps if to and labels.get(to[1], at + 1) <= at]
    inner = [
        end - begin + 1
        for begin, end in loops
        if not any(begin <= b and e <= end and (b, e) != (begin, end) for b, e in loops)
    ]
    slow = {name: sum(bool(pattern.search(line)) for line in lines) for name, pattern in SLOW.items()}
    return Code(len(lines), tuple(sorted(inner, reverse=True)), **slow)


def risen(kept: dict, now: dict) -> list[str]:
    """Return a sentence on each figure that has become worse; what was not there before is none."""
    worse = []
    for kernel, before in kept["kernels"].items():
        if kernel not in now["kernels"]:
            worse.append(f"{kernel} is gone")
            continue
        after = now["kernels"][kernel]
        for name, value in before["code"].items():
            if after["code"][name] > value:
                worse.append(f"{kernel}: {name} {value} -> {after['code'][name]}")
        for architecture, fit in before["fits"].items():
            other = after["fits"][architecture]
            changed = [f"{name} {fit[name]} -> {other[name]}" for name in fit if fit[name] != other[name]]
            if other["blocks"] < fit["blocks"] or other["registers"] > fit["registers"]:
                worse.append(f"{kernel} on sm_{architecture}: {', '.join(changed)}")
    worse += [f"{kernel} is new" for kernel in now["kernels"] if kernel not in kept["kernels"]]
    return worse


def measured() -> dict:
    """Return the figures of all kernels as they are kept; ValueError for what must not be."""
    sources = sorted((ROOT / "csrc" / "cuda").glob("*.cu"))
    tasks = [(source, architecture) for source in sources for architecture in MULTIPROCESSORS]
    kernels: dict[str, dict] = {}
    with ThreadPoolExecutor(2) as pool:
        for (_, architecture), (fits, codes) in zip(
            tasks, pool.map(lambda task: assembled(*task), tasks), strict=True
        ):
            for name, fit in fits.items():
                kernels.setdefault(name, {"code": {}, "fits": {}})["fits"][str(architecture)] = asdict(fit)
            for name, code in codes.items():
                kernels[name]["code"] = {**asdict(code), "loops": list(code.loops)}
    told = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    (release,) = re.findall(r"V([\d.]+)", told)
    return {"nvcc": release, "kernels": dict(sorted(kernels.items()))}


def table(figures: dict) -> str:
    """Return the figures a line a kernel."""
    head = (
        f"{'kernel':<32} {'PTX':>5} {'loop':>5} {'fp64':>4} {'div':>3} {'local':>5}  registers/blocks on sm_"
    )
    lines = [head + ", ".join(map(str, MULTIPROCESSORS))]
    for name, figure in figures["kernels"].items():
        code = figure["code"]
        loop = code["loops"][0] if code["loops"] else 0
        fits = "  ".join(f"{fit['registers']}/{fit['blocks']}" for fit in figure["fits"].values())
        slow = f"{code['fp64']:>4} {code['divisions']:>3} {code['local_memory']:>5}"
        lines.append(f"{name:<32} {code['instructions']:>5} {loop:>5} {slow}  {fits}")
    return "\n".join(lines)


def main() -> int:
    """Assemble, compare, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if shutil.which("nvcc") is None:
        print("nvcc was not found: install the CUDA toolkit to check the CUDA sources")
        return 1
    try:
        now = measured()
    except ValueError as error:
        print(error)
        return 1
    print(table(now))
    if arguments.write:
        FIGURES.write_text(json.dumps(now, indent=1) + "\n")
        return 0
    kept = json.loads(FIGURES.read_text())
    if kept["nvcc"] != now["nvcc"]:
        print(f"nvcc is {now['nvcc']}, the figures that hold are of {kept['nvcc']}: not compared")
        return 0
    worse = risen(kept, now)
    for sentence in worse:
        print(f"WORSE: {sentence}")
    if worse:
        print("Where that is meant: python tests/cuda_build/assemble.py --write")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())

"""Compare sets of instructions, or builds, of the CPU kernels: the parts of a step, in turns, in one run.

python tests/bench/lanes.py --scene SCENE --ply model.ply --downscale 4 --rounds 15
python tests/bench/lanes.py --scene SCENE --ply model.ply avx512 avx512:/path/to/another/_C.so

A variant is a set that SPLATSTUDIO_CPU knows, and after a colon another build of the kernels. Each runs in a
process of its own; in every round each makes all steps once, one process after the other. Printed are medians
over the rounds of the processor's milliseconds (with --wall: of the clock's), and the median over the rounds
of the first variant's time over each other's, so that what else the machine does strikes both. `iteration`
is made of `forward`, `loss`, `backward` and `optimizer`; `raster` is the rasterizer alone, binning included.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path

DEFAULT = ("avx2", "avx512")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("variants", nargs="*", default=DEFAULT, help="default: avx2 avx512")
    parser.add_argument("--scene", type=Path, required=True)
    parser.add_argument("--ply", type=Path, help="the model, in the scene's own frame; default: its points")
    parser.add_argument("--downscale", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="keep every n-th Gaussian")
    parser.add_argument("--cameras", type=int, default=2, help="how many take turns at most; default 2")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--repeats", type=int, default=2, help="steps with each camera in a round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wall", action="store_true", help="the clock's time, not the processor's")
    arguments = parser.parse_args()
    print_table(arguments.variants, measured(arguments))


def measured(arguments: argparse.Namespace) -> list[list[dict[str, float]]]:
    """Return the milliseconds of each part, by variant and round."""
    spawn = multiprocessing.get_context("spawn")
    wires = []
    for variant in arguments.variants:
        instructions, _, build = variant.partition(":")
        os.environ["SPLATSTUDIO_CPU"] = instructions
        os.environ.pop("SPLATSTUDIO_EXTENSION", None)
        if build:
            os.environ["SPLATSTUDIO_EXTENSION"] = build
        ours, theirs = spawn.Pipe()
        spawn.Process(target=_serve, args=(theirs, arguments, instructions), daemon=True).start()
        theirs.close()  # so that the end of a process is told here
        wires.append(ours)
        ours.recv()
    rounds: list[list[dict[str, float]]] = [[] for _ in wires]
    for number in range(arguments.rounds):
        for k in range(len(wires)):
            chosen = (k + number) % len(wires)
            wires[chosen].send("measure")
            rounds[chosen].append(wires[chosen].recv())
    return rounds


def print_table(variants: list[str], rounds: list[list[dict[str, float]]]) -> None:
    """Print a row for each part: milliseconds of each variant, and how many times as fast as the first."""
    print(" " * 16 + "".join(f"{Path(variant).name[-12:]:>13}" for variant in variants))
    for part in rounds[0][0]:
        medians = [statistics.median(one[part] for one in each) for each in rounds]
        ratios = [
            statistics.median(first[part] / other[part] for first, other in zip(rounds[0], each, strict=True))
            for each in rounds[1:]
        ]
        times = "".join(f"{value:13.2f}" for value in medians)
        print(f"{part:16}{times}   " + " ".join(f"{ratio:6.3f}x" for ratio in ratios), flush=True)


def _serve(wire: Connection, arguments: argparse.Namespace, instructions: str) -> None:
    """Measure once whenever asked; the kernels are loaded here, with what the environment says by now."""
    import splatstudio  # noqa: F401 - before torch: it says how torch's threads wait

    # isort: split
    import torch
    from step import camera_numbers, example_of, load_model, time_iteration, time_rasterizer

    from splatstudio.kernels import ops
    from splatstudio.scene.load import load_scene

    if ops.native_version() != instructions:
        raise SystemExit(f"This machine has no {instructions}: its kernels are {ops.native_version()}.")
    torch.set_num_threads(arguments.threads)
    scene = load_scene(arguments.scene, downscale=arguments.downscale)
    model = load_model(scene, arguments.ply)[:: arguments.every]
    examples = [example_of(scene, number) for number in camera_numbers(scene, None, arguments.cameras)]
    clock = time.perf_counter if arguments.wall else time.process_time
    wire.send("ready")
    while wire.recv():
        seconds = time_iteration(model, examples, arguments.repeats, clock)
        raster = time_rasterizer(model, examples[0][0], 2 * arguments.repeats, clock)
        parts = {name.removesuffix("_ms"): value for name, value in seconds.items()}
        parts |= {"raster forward": raster[0], "raster backward": raster[1]}
        wire.send({name: 1e3 * value for name, value in parts.items()})


if __name__ == "__main__":
    main()

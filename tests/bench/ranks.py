"""Compare trainings on several ranks with those of one process at the same global batch.

python tests/bench/ranks.py --scene fox-colmap banana --presets default absgrad mcmc fast --seeds 1 2 3

Every step has --batch photographs, which the ranks share; every 8th photograph by name is held out. Beside
one process and each of --ranks there is a control: one process that takes the photographs of a step in two
rounds. It makes the same sums as one process does, in another order, as ranks do, and shows how far rounding
alone leads trainings apart. One line of JSON is printed for each training, and in the end the mean PSNR of
each, its standard error, and of the differences from one process, of trainings with the same seed, the mean
with its own, their size (root mean square) and the largest. --set changes a setting beside the preset's:
--set optim.hurry=0 takes the usual learning rates in place of those that are the larger the shorter the
training is (seven times in 200 steps), with which any last bit comes to show in the picture.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import splatstudio  # noqa: F401 - before torch: it says how torch's threads wait

# isort: split
import torch
from rank_processes import answers_of, meet

from splatstudio.config import TrainConfig, changed, declaration
from splatstudio.distributed.process_ranks import ProcessRanks
from splatstudio.distributed.ranks import ALONE, Ranks
from splatstudio.presets import PRESETS
from splatstudio.scene import load_training_scene
from splatstudio.sharded_evaluate import evaluate_together
from splatstudio.trainer import Trainer

SCENES = Path(__file__).parents[3] / "shared" / "scenes"
STRATEGIES = ("default", "absgrad", "mcmc", "fast")  # each with the preset of its name, where there is one


@dataclass(frozen=True)
class Layout:
    """How the photographs of a step are shared."""

    num_ranks: int
    batch_size: int
    accumulate: int = 1

    def __str__(self) -> str:
        return f"{self.num_ranks} x {self.batch_size}" + (", twice" if self.accumulate > 1 else "")


@dataclass(frozen=True)
class Outcome:
    """What came of a training."""

    scene: str
    strategy: str
    seed: int
    layout: str
    psnr: float
    num_gaussians: int
    births: list[int]  # of each change of the number of Gaussians, cloned, split and moved ones together
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scene", nargs="+", default=["fox-colmap", "banana"])
    parser.add_argument("--presets", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--batch", type=int, default=6)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--downscale", type=int, default=8)
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE")
    arguments = parser.parse_args()
    numbers = (1, 2, *arguments.ranks)
    if any(arguments.batch % num for num in numbers):
        parser.error(f"--batch {arguments.batch} cannot be shared evenly by {', '.join(map(str, numbers))}")
    batch = arguments.batch
    layouts = [Layout(num, batch // num) for num in (1, *arguments.ranks)] + [Layout(1, batch // 2, 2)]
    outcomes = []
    for seed in arguments.seeds:
        for scene in arguments.scene:
            for strategy in arguments.presets:
                for layout in layouts:
                    config = _config(arguments, strategy, seed, layout)
                    outcomes.append(measure(scene, strategy, config, layout))
                    print(json.dumps(asdict(outcomes[-1])), flush=True)
    print_table(outcomes)


def _config(arguments: argparse.Namespace, strategy: str, seed: int, layout: Layout) -> TrainConfig:
    config = TrainConfig(steps=arguments.steps, downscale=arguments.downscale, seed=seed)
    config = changed(config, "strategy", strategy)
    given = {"steps", "downscale", "seed", "strategy"}
    for assignment in arguments.set:
        path, _, text = assignment.partition("=")
        declaration(TrainConfig, path)
        config = changed(config, path, json.loads(text))
        given.add(path)
    if strategy in PRESETS:
        config = PRESETS[strategy].apply(config, given)
    return changed(changed(config, "batch_size", layout.batch_size), "accumulate", layout.accumulate)


def measure(scene: str, strategy: str, config: TrainConfig, layout: Layout) -> Outcome:
    """Train with so many processes, of one thread each, and return what came of it."""
    path = SCENES / scene if (SCENES / scene).is_dir() else Path(scene)
    answers = answers_of(layout.num_ranks, _train, path, config)
    psnr, num_gaussians, births, seconds = answers[0]
    return Outcome(
        scene, strategy, config.seed, str(layout), round(psnr, 4), num_gaussians, births, round(seconds, 1)
    )


def _train(
    wire: Connection, rank: int, num_ranks: int, folder: str, scene_path: Path, config: TrainConfig
) -> None:
    torch.set_num_threads(1)
    ranks: Ranks = ALONE
    if num_ranks > 1:
        meet(rank, num_ranks, folder)
        ranks = ProcessRanks()
    scene = load_training_scene(scene_path, config)
    trainer = Trainer(scene, config, ranks=ranks)
    started, births = time.perf_counter(), []
    while trainer.step < config.steps:
        change = trainer.train_step().change
        if change is not None:
            births.append(change.cloned + change.split + change.relocated)
    seconds = time.perf_counter() - started
    evaluation = evaluate_together(ranks, trainer.gaussians, scene, options=trainer.display_options)
    wire.send((evaluation.psnr, trainer.num_gaussians, births, seconds))
    trainer.close()


def print_table(outcomes: Iterable[Outcome]) -> None:
    """Print for each scene, strategy and layout the PSNR, and by how much it is above that of one process."""
    runs: dict[tuple[str, str, str], dict[int, Outcome]] = {}
    for outcome in outcomes:
        runs.setdefault((outcome.scene, outcome.strategy, outcome.layout), {})[outcome.seed] = outcome
    alone: dict[int, Outcome] = {}
    print("\nscene       strategy  photographs       PSNR   s.e.  Gaussians   over one   s.e.    rms   most")
    for (scene, strategy, layout), by_seed in runs.items():
        if layout.startswith("1 x") and "twice" not in layout:
            alone = by_seed
        psnr = _mean([outcome.psnr for outcome in by_seed.values()])
        differences = [outcome.psnr - alone[seed].psnr for seed, outcome in by_seed.items()]
        above, size = _mean(differences), math.sqrt(statistics.mean(each**2 for each in differences))
        number = statistics.mean(outcome.num_gaussians for outcome in by_seed.values())
        print(
            f"{scene:11} {strategy:9} {layout:13} {psnr[0]:8.3f} {psnr[1]:6.3f} {number:10,.0f}"
            f" {above[0]:+10.3f} {above[1]:6.3f} {size:6.3f} {max(map(abs, differences)):6.3f}"
        )


def _mean(values: list[float]) -> tuple[float, float]:
    """Return the mean and its standard error, which one value alone does not have."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.mean(values), error


if __name__ == "__main__":
    main()

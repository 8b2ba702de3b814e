"""Compare trainings on several ranks with those of one process at the same global batch.

python tests/bench/ranks.py --scene fox-colmap banana --presets default absgrad mcmc fast --seeds 1 2

Every step has --batch photos, which the ranks share; every 8th photo by name is held out. Beside
one process and each of --ranks there is one process that takes the photos of a step in two rounds. One
line of JSON is printed for each training, and in the end a table: PSNR, Gaussians, and whether the model is
that of one process to the last bit, in whatever order its rows lie. --set changes a setting beside the
preset's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import splatstudio  # noqa: F401 - before torch: it says how torch's threads wait

# isort: split
import torch
from rank_processes import answers_of, meet

from splatstudio.distributed.process_ranks import ProcessRanks
from splatstudio.distributed.ranks import ALONE, Ranks
from splatstudio.evaluation.evaluate import evaluate
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.rendering.sharded_view import gathered
from splatstudio.scene.load import load_training_scene
from splatstudio.settings.config import TrainConfig, changed, declaration
from splatstudio.settings.presets import PRESETS
from splatstudio.training.trainer import Trainer

SCENES = Path(__file__).parents[3] / "shared" / "scenes"
STRATEGIES = ("default", "absgrad", "mcmc", "fast")  # each with the preset of its name, where there is one


@dataclass(frozen=True)
class Layout:
    """How the photos of a step are shared."""

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
    model: str  # a hash of its rows, sorted
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
    psnr, num_gaussians, model, seconds = answers[0]
    return Outcome(
        scene, strategy, config.seed, str(layout), round(psnr, 4), num_gaussians, model, round(seconds, 1)
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
    started = time.perf_counter()
    while trainer.step < config.steps:
        trainer.train_step()
    seconds = time.perf_counter() - started
    evaluation = evaluate(trainer.gaussians, scene, ranks=ranks, options=trainer.display_options)
    whole = gathered(ranks, trainer.gaussians)
    model = "" if whole is None else _hash_of(whole)
    wire.send((evaluation.psnr, trainer.num_gaussians, model, seconds))
    trainer.close()


def _hash_of(gaussians: Gaussians) -> str:
    rows = torch.cat([tensor.reshape(len(gaussians), -1) for tensor in gaussians.tensors().values()], dim=1)
    return hashlib.sha256(b"".join(sorted(row.tobytes() for row in rows.numpy()))).hexdigest()[:16]


def print_table(outcomes: Iterable[Outcome]) -> None:
    """Print a line for each training, and whether its model is that of one process."""
    alone: dict[tuple[str, str, int], Outcome] = {}
    print("\nscene       strategy  seed  photos       PSNR  over one  Gaussians  the same model")
    for outcome in outcomes:
        one = alone.setdefault((outcome.scene, outcome.strategy, outcome.seed), outcome)
        print(
            f"{outcome.scene:11} {outcome.strategy:9} {outcome.seed:4}  {outcome.layout:13}"
            f" {outcome.psnr:8.3f} {outcome.psnr - one.psnr:+9.3f} {outcome.num_gaussians:10,}"
            f"  {outcome.model == one.model}"
        )


if __name__ == "__main__":
    main()

"""Print a hash over all that short trainings say and leave, to compare two versions of this program.

python tests/bench/identical.py --steps 60 --out new.jsonl
PYTHONPATH=/path/to/the/code/before python tests/bench/identical.py --steps 60 --out old.jsonl
diff old.jsonl new.jsonl

Each line is of one training: of a preset on a number of ranks, or of an option. The hash is over the loss,
the PSNR and the number of Gaussians of every step, and over all tensors of the final checkpoint of each rank.
It uses nothing of the package but what both versions have.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import json
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import splatstudio  # noqa: F401 - before torch: it says how torch's threads wait

# isort: split
import torch
from rank_processes import answers_of, meet

from splatstudio.distributed.process_ranks import ProcessRanks
from splatstudio.distributed.ranks import ALONE, Ranks
from splatstudio.scene.load import load_training_scene
from splatstudio.settings.config import TrainConfig, changed
from splatstudio.settings.presets import PRESETS

SCENES = Path(__file__).parents[3] / "shared" / "scenes"
TRAINERS = ("splatstudio.training.trainer", "splatstudio.training.trainer")  # where it is, or was

PRESET_NAMES = ("default", "absgrad", "mcmc", "fast", "quality", "preview")
OPTIONS: dict[str, dict[str, Any]] = {
    "batch 2": {"batch_size": 2},
    "accumulate 2": {"accumulate": 2},
    "exposure": {"exposure.enabled": True},
    "grid": {"exposure.grid": True},
    "poses": {"poses.enabled": True, "poses.start_step": 10},
    "sky": {"sky.enabled": True},
    "depth": {"depth.weight": 0.05},
    "random background": {"random_background": True},
    "visible only": {"optim.visible_only": True},
    "mixed, morton": {"precision": "mixed", "order": "morton"},
}


def main() -> None:
    """Train as the arguments say and print a line for each training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scene", type=Path, default=SCENES / "banana")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--downscale", type=int, default=8)
    parser.add_argument("--presets", nargs="*", default=PRESET_NAMES)
    parser.add_argument("--options", nargs="*", default=tuple(OPTIONS))
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--option-ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    runs = [(name, num) for name in arguments.presets for num in arguments.ranks]
    runs += [(name, num) for name in arguments.options for num in arguments.option_ranks]
    for name, num_ranks in runs:
        config = config_of(name, arguments.steps, arguments.downscale)
        answers = answers_of(num_ranks, _train, arguments.scene, config)
        digest = hashlib.sha256("".join(text for text, _, _ in answers).encode()).hexdigest()
        _, loss, num_gaussians = answers[0]
        line = json.dumps({"run": name, "ranks": num_ranks, "loss": loss, "num": num_gaussians, "is": digest})
        print(line, flush=True)
        if arguments.out is not None:
            with arguments.out.open("a") as file:
                file.write(line + "\n")


def config_of(name: str, steps: int, downscale: int) -> TrainConfig:
    """Return the settings of a run, with a strategy that changes the model within these steps."""
    config = TrainConfig(steps=steps, downscale=downscale, sh_degree_every=max(1, steps // 4))
    given = {"steps", "downscale", "sh_degree_every"}
    if name in PRESETS:
        config = PRESETS[name].apply(config, given)
    elif name == "absgrad":
        config = changed(config, "strategy", name)
    early = {"densify.start_step": steps // 6, "densify.every": max(1, steps // 6)}
    early |= {"mcmc.start_step": steps // 6, "mcmc.every": max(1, steps // 6)}
    for path, value in {**early, **OPTIONS.get(name, {})}.items():
        config = changed(config, path, value)
    return config


def _train(
    wire: Connection, rank: int, num_ranks: int, folder: str, scene_path: Path, config: TrainConfig
) -> None:
    torch.set_num_threads(1)
    ranks: Ranks = ALONE
    if num_ranks > 1:
        meet(rank, num_ranks, folder)
        ranks = ProcessRanks()
    scene = load_training_scene(scene_path, config)
    trainer = _trainer_class()(scene, config, ranks=ranks)
    digest, loss = hashlib.sha256(), 0.0
    while trainer.step < config.steps:
        stats = trainer.train_step()
        loss = stats.loss
        told = (stats.loss.hex(), (stats.psnr or 0.0).hex(), stats.num_gaussians, stats.view, stats.problem)
        digest.update(repr(told).encode())
    for tensor in _tensors_of(trainer.checkpoint()):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    wire.send((digest.hexdigest(), loss, trainer.num_gaussians))
    trainer.close()


def _trainer_class() -> Any:
    for name in TRAINERS:
        if importlib.util.find_spec(name.rpartition(".")[0]) is not None:
            return importlib.import_module(name).Trainer
    raise SystemExit("this version has no Trainer that is known here")


def _tensors_of(checkpoint: Any) -> list[torch.Tensor]:
    population = checkpoint.population
    optimizer, learned = population.optimizer, checkpoint.corrections
    models = (population.gaussians, optimizer.exp_avg, optimizer.exp_avg_sq)
    tensors = [tensor for model in models for tensor in model.tensors().values()]
    tensors += [population.counts[name] for name in sorted(population.counts)]
    tensors += [] if learned is None else list(learned.tensors.values())
    return [*tensors, checkpoint.rng_state, torch.tensor(optimizer.num_steps)]


if __name__ == "__main__":
    main()

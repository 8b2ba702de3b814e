"""Train a preset on a scene and measure the held-out photos; prints one line of JSON.

python tests/bench/quality.py --scene fox-colmap --preset fast --steps 2000 --downscale 4 --json

`--scene` is a folder, or the name of one below ../shared/scenes. Every 8th photo by name is held out, or
those of --test-images. Seconds are of the training alone, without reading the scene and evaluating: wall
clock, and the CPU time of all threads. --set changes a setting beside the preset's, as --set mcmc.noise=0.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import splatstudio  # noqa: F401 - before torch: it says how torch's threads wait

# isort: split
import torch

from splatstudio.evaluation.evaluate import evaluate, measures_for
from splatstudio.scene.load import load_training_scene
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig, changed, declaration, value_of
from splatstudio.settings.presets import PRESETS
from splatstudio.training.trainer import Trainer

SCENES = Path(__file__).parents[3] / "shared" / "scenes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scene", required=True)
    parser.add_argument("--preset", choices=tuple(PRESETS), default="default")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--downscale", type=int, default=4)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--test-images", default="", help="names of the photos to hold out, by commas")
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--lpips", action="store_true", help="also LPIPS, where its weights are on this machine"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one line of JSON (there is no other output)"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    try:
        config, scene = _setup(arguments)
    except ValueError as error:
        sys.exit(str(error))
    print(json.dumps(_described(arguments) | measure(scene, config, lpips=arguments.lpips)), flush=True)


def _setup(arguments: argparse.Namespace) -> tuple[TrainConfig, Scene]:
    named = tuple(name for name in arguments.test_images.split(",") if name)
    config = TrainConfig(
        steps=arguments.steps, downscale=arguments.downscale, seed=arguments.seed, test_images=named
    )
    given = {"steps", "downscale", "seed", "test_images"}
    for assignment in arguments.set:
        path, _, text = assignment.partition("=")
        config = changed(config, path, _value(config, path, text))
        given.add(path)
    config = PRESETS[arguments.preset].apply(config, given)
    path = SCENES / arguments.scene
    return config, load_training_scene(path if path.is_dir() else Path(arguments.scene), config)


def _value(config: TrainConfig, path: str, text: str) -> Any:
    """Return the value that `text` gives the setting `path`; ValueError for an unknown one, or no value."""
    declaration(TrainConfig, path)
    if isinstance(value_of(config, path), str):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"--set {path}={text}: write a value as in JSON, as 0.1, true or [1, 2]") from error


def _described(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "scene": Path(arguments.scene).name,
        "preset": arguments.preset,
        "steps": arguments.steps,
        "downscale": arguments.downscale,
        "threads": arguments.threads,
        **({"set": arguments.set} if arguments.set else {}),
    }


def measure(scene: Scene, config: TrainConfig, *, lpips: bool = False) -> dict[str, Any]:
    """Train to the last step and return the scores of the held-out photos, seconds and Gaussians."""
    trainer = Trainer(scene, config)
    wall, cpu, most = time.perf_counter(), time.process_time(), 0
    while trainer.step < config.steps:
        most = max(most, trainer.train_step().num_gaussians)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    measures = measures_for(("alex", "vgg") if lpips else (), color_correct=False)
    evaluation = evaluate(trainer.gaussians, scene, measures=measures, options=trainer.display_options)
    trainer.close()
    for note in evaluation.notes:
        print(note, file=sys.stderr)
    scores = {name: round(getattr(evaluation, name), 4) for name in evaluation.measured}
    return {
        **scores,
        "num_gaussians": evaluation.num_gaussians,
        "most_gaussians": most,
        "wall_s": round(wall, 1),
        "cpu_s": round(cpu, 1),
        "test_images": [score.name for score in evaluation.images],
    }


if __name__ == "__main__":
    main()

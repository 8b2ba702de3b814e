"""Measure what each option for real captures does: test PSNR, SSIM, Gaussians and time with it and without.

`python tests/bench/captures.py --scene fox --option exposure --steps 1500 --json`; without --option all
of them, one after the other. Scenes: fox, banana (../shared/scenes), fox-light, banana-light (in changing
light), fox-shaken, banana-shaken (cameras off), fox-passers, banana-passers (somebody stands in each training
photo) and fox-masked, banana-masked (the same, and masks leave him out), sky (drawn by the demo's
program). Each eighth photo is held out; none of the test photos is corrected in any way, and its
camera stays as it was read. --judge-at also compares with the photos at other sizes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import splatstudio  # noqa: F401 - before torch: it says how torch's threads wait

# isort: split
import torch
from capture_scenes import in_changing_light, under_an_open_sky, with_cameras_off, with_passers_by

from splatstudio.evaluation.evaluate import Measures, evaluate
from splatstudio.scene.load import load_scene
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig, changed
from splatstudio.settings.presets import PRESETS
from splatstudio.training.trainer import Trainer

SCENES = Path(__file__).parents[3] / "shared" / "scenes"
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "exposure": {"exposure.enabled": True},
    "grid": {"exposure.grid": True},
    "poses": {"poses.enabled": True},
    "sky": {"sky.enabled": True},
    "random": {"random_background": True},
    "depth": {"depth.weight": 0.1},
    "opacity": {"shapes.opacity_weight": 0.01},
    "scale": {"shapes.scale_weight": 0.01},
    "giants": {"shapes.max_scale": 0.5},
    "needles": {"shapes.max_ratio": 10.0},
    "floaters": {"shapes.min_views": 2},
    "antialiased": {"antialiased": True},
    "morton": {"order": "morton"},
}


def scene_named(name: str, downscale: int) -> Scene:
    """Return a scene of the table, made below the temporary folder where it is not one of photos."""
    made = Path(tempfile.gettempdir()) / "splatstudio-captures"
    made.mkdir(exist_ok=True)
    if name == "sky":
        return load_scene(under_an_open_sky(made / "sky"), downscale=1)
    base, _, kind = name.partition("-")
    folder = SCENES / {"fox": "fox-colmap", "banana": "banana"}[base]
    if kind == "light":
        folder = in_changing_light(folder, made / name)
    if kind in ("passers", "masked"):
        folder = with_passers_by(folder, made / name, masked=kind == "masked")
    scene = load_scene(folder, downscale=downscale)
    return with_cameras_off(scene) if kind == "shaken" else scene


def measured(
    scene: Scene, settings: Mapping[str, Any], config: TrainConfig, others: Mapping[int, Scene]
) -> dict[str, Any]:
    """Train on `scene` and return the figures of the table; `others` are it at other sizes, by downscale."""
    for path, value in settings.items():
        config = changed(config, path, value)
    trainer = Trainer(scene, config)
    started, cpu = time.perf_counter(), time.process_time()
    for _ in range(config.steps):
        trainer.train_step()
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    trainer.close()
    scores = evaluate(
        trainer.gaussians, scene, options=trainer.display_options, measures=Measures(color_correct=True)
    )
    elsewhere = {
        f"psnr_at_{downscale}": round(
            evaluate(trainer.gaussians, other, options=trainer.display_options).psnr, 3
        )
        for downscale, other in others.items()
    }
    return {
        "psnr": round(scores.psnr, 3),
        "psnr_corrected": round(scores.psnr_corrected or 0.0, 3),
        **elsewhere,
        "ssim": round(scores.ssim, 4),
        "gaussians": scores.num_gaussians,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
    }


def main() -> None:
    """Run what the arguments name and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scene", required=True)
    parser.add_argument("--option", action="append", choices=sorted(OPTIONS))
    parser.add_argument("--preset", choices=tuple(PRESETS), default="default")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--downscale", type=int, default=4)
    parser.add_argument("--judge-at", type=int, nargs="*", default=(), metavar="DOWNSCALE")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE", help="as JSON")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    scene = scene_named(arguments.scene, arguments.downscale)
    others = {downscale: scene_named(arguments.scene, downscale) for downscale in arguments.judge_at}
    config = TrainConfig(steps=arguments.steps, downscale=arguments.downscale, seed=arguments.seed)
    config = PRESETS[arguments.preset].apply(config, {"steps"})
    further = {path: json.loads(value) for path, _, value in (text.partition("=") for text in arguments.set)}
    for option in arguments.option or OPTIONS:
        row = {"scene": arguments.scene, "option": option, "seed": arguments.seed, **further}
        row |= measured(scene, {**OPTIONS[option], **further}, config, others)
        cells = " ".join(f"{name} {value}" for name, value in row.items())
        print(json.dumps(row) if arguments.json else cells, flush=True)


if __name__ == "__main__":
    main()

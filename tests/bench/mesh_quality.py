"""How near meshes come to known surfaces: photos are made, a model is trained, and its mesh compared.

    python tests/bench/mesh_quality.py --presets surface default --shapes spot ball block part

The F-score is that at 1 % of the diagonal; the Chamfer distance is the mean of both ways over the diagonal.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import splatstudio as ss  # before torch: it says how torch's threads wait

# isort: split
from known_meshes import NAMES, known_mesh
from traced_shapes import SOLIDS, Shape, f_score, write_traced_scene

from splatstudio.surfaces.make_mesh import mesh_of_model
from splatstudio.surfaces.mesh_options import MeshOptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shapes", nargs="+", choices=[*SOLIDS, *NAMES], default=[*SOLIDS, *NAMES])
    parser.add_argument("--presets", nargs="+", default=["surface", "default"])
    parser.add_argument("--photos", type=int, default=12, help="on each of three rings")
    parser.add_argument("--pixels", type=int, default=240)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--between", action="store_true", help="look from between the photos, too")
    options = parser.parse_args()
    print("| shape | preset | F-score | Chamfer | PSNR | splats | triangles | holes | training, meshing s |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for name in options.shapes:
        shape: Shape = SOLIDS[name] if name in SOLIDS else known_mesh(name)
        with tempfile.TemporaryDirectory() as folder:
            scene = write_traced_scene(Path(folder) / "scene", shape, options.photos, options.pixels)
            for preset in options.presets:
                run = Path(folder) / preset
                print(f"| {name} | {preset} | {measured(scene, run, shape, preset, options)} |", flush=True)


def measured(scene: Path, run: Path, shape: Shape, preset: str, options: argparse.Namespace) -> str:
    """Return the rest of a line of the table."""
    start = time.perf_counter()
    trained = ss.train(scene, run_dir=run, preset=preset, steps=options.steps, seed=1)  # type: ignore[arg-type]
    trained_at = time.perf_counter()
    photos = ss.load_scene(scene)
    made = mesh_of_model(trained, photos, MeshOptions(between=options.between))
    done = time.perf_counter()
    score, chamfer = f_score(made.mesh, shape)
    psnr = trained.evaluate(photos).psnr
    numbers = f"{psnr:.2f} | {len(trained):,} | {made.mesh.num_triangles:,} | {made.report.holes}"
    return f"{score:.4f} | {chamfer:.3%} | {numbers} | {trained_at - start:.0f}, {done - trained_at:.0f}"


if __name__ == "__main__":
    main()

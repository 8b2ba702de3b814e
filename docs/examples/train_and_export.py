"""Train the demo scene, look at its scores, write it in two formats."""

import sys
from pathlib import Path

import splatstudio as ss

scene_folder, output = Path(sys.argv[1]), Path(sys.argv[2])
steps = int(sys.argv[3]) if len(sys.argv) > 3 else 1000

scene = ss.load_scene(scene_folder, downscale=4)
model = ss.train(scene, preset="fast", steps=steps)
scores = model.evaluate(scene)
print(f"{len(model):,} splats, PSNR {scores.psnr:.2f} dB, SSIM {scores.ssim:.4f}")
for image in scores.worst_first[:3]:
    print(f"  {image.name}: {image.psnr:.2f} dB")
output.mkdir(parents=True, exist_ok=True)
model.save(output / "model.ply")
model.save(output / "model.spz")

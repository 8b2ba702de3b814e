"""What ranks on pretended GPUs do in the tests; functions of a module, as other processes run them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pretended_gpus import GPU, is_marked, pretended
from sharded_training_tasks import Plan, config_of, fault_of

from splatstudio.distributed.ranks import Ranks
from splatstudio.evaluation.evaluate import evaluate
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.rendering.sharded_view import gathered
from splatstudio.runtime.messages import ViewOptions, ViewRequest
from splatstudio.runtime.shared_views import gather_seen
from splatstudio.scene.load import load_scene
from splatstudio.training.trainer import Trainer


@dataclass(frozen=True, eq=False)
class Known:
    """What a rank knows in the end."""

    losses: list[float]
    num_gaussians: int
    num_changed: int
    problems: list[str]
    saved: Path | None
    psnr: float
    whole: Gaussians | None
    calls: Counter[tuple[str, str]]  # of the steps, by group and kind


def train_on_gpus(ranks: Ranks, plan: Plan) -> Known:
    """Make the steps of a plan on pretended GPUs, save, evaluate and gather the model."""
    scene = load_scene(plan.scene)
    with pretended(ranks) as (strict_ranks, strict), fault_of(plan):
        if plan.resume is None:
            trainer = Trainer(scene, config_of(plan.settings, 200), device=GPU, ranks=strict_ranks)
        else:
            trainer = Trainer.resume(scene, plan.resume, device=GPU, ranks=strict_ranks, **plan.settings)
        strict.calls.clear()
        steps = [trainer.train_step() for _ in range(plan.steps)]
        calls = Counter(strict.calls)
        assert all(is_marked(tensor) for tensor in trainer.gaussians.tensors().values())
        saved = None if plan.save is None else trainer.save(plan.save)
        psnr = evaluate(trainer.gaussians, scene, ranks=strict_ranks, options=trainer.display_options).psnr
        whole = gathered(strict_ranks, trainer.gaussians)
        look = ViewRequest(scene.views[0].camera, ViewOptions())
        seen = gather_seen(strict_ranks, trainer.live_gaussians, look, trainer.display_options)
        assert is_marked(seen.rows) and (len(seen.rows) > 0) == (ranks.rank == 0)
        trainer.close()
    changes = [step.change for step in steps if step.change is not None]
    return Known(
        losses=[step.loss for step in steps],
        num_gaussians=trainer.num_gaussians,
        num_changed=sum(change.num_changed + change.cloned for change in changes),
        problems=[step.problem for step in steps if step.problem is not None],
        saved=saved,
        psnr=psnr,
        whole=whole,
        calls=calls,
    )

"""All corrections of a training together: their leaf tensors before a step, their own step after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.corrections.poses import corrected_camera, of_correction, without_common_motion
from splatstudio.devices.transfer import to_device
from splatstudio.gaussians.sky import Sky, over_sky
from splatstudio.kernels.ops_training import StepGate
from splatstudio.kernels.reference_training import square_root
from splatstudio.optimization.gradients import RenderOutput, TrainView
from splatstudio.rendering.render import training_stages_for
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig

BETA1, BETA2 = 0.9, 0.99  # of the second less than usual: a photo comes only once in an epoch
EPS = 1e-15

# A gradient of the loss with respect to a gain below this is as good as none: it comes of what the picture
# shows. Without the limit maps wander in constant light, and take the model along: measured -2.1 dB, with it
# -0.7, on 12 photos after 500 steps; and in changing light it costs nothing.
SETTLED = 0.02


def exposed(rgb: Tensor, difference: Tensor) -> Tensor:
    """Return the colors `rgb` [H, W, 3] under an affine map, or under a bilateral grid of such maps.

    `difference` is what the map differs by from none, [3, 4], or a grid [12, D, G, G] of that, see
    `reference_training.bilateral_grid`. Differentiable in both.
    """
    grid = difference if difference.dim() == 4 else difference.reshape(12, 1, 1, 1)
    return training_stages_for(rgb).bilateral_grid(rgb, grid)


def roughness(grid: Tensor) -> Tensor:
    """Return the mean square difference of neighbors in `grid` [12, D, G, G], summed over its axes."""
    return sum(((grid.diff(dim=axis) ** 2).mean() for axis in (1, 2, 3)), grid.new_zeros(()))


@dataclass(eq=False)
class LearnedRows:
    """V rows of values [V, ...] with the moments of Adam (Kingma and Ba 2015) and the steps of each row.

    A step moves the rows of the photos that it learned from and no other, moments included.
    """

    values: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    num_steps: Tensor  # [V] int64

    @classmethod
    def starting_at(cls, values: Tensor) -> LearnedRows:
        """Return rows before their first step."""
        steps = values.new_zeros(len(values), dtype=torch.int64)
        return cls(values, torch.zeros_like(values), torch.zeros_like(values), steps)

    def __len__(self) -> int:
        return len(self.values)

    def leaf(self, rows: Sequence[int]) -> Tensor:
        """Return the values of `rows` as a leaf tensor that requires a gradient."""
        return self.values.index_select(0, self._at(rows)).requires_grad_()

    @torch.no_grad()
    def step(
        self,
        rows: Sequence[int],
        gradient: Tensor,
        lr: float,
        eps: float = EPS,
        *,
        gate: StepGate | None = None,
    ) -> None:
        """Make a step of `rows`, all different, down `gradient`, which has a row for each of them.

        Adam goes as far for a small gradient as for a large one, down to about `eps`. A `gate` may keep
        everything from changing.
        """
        assert len(set(rows)) == len(rows) == len(gradient), "one gradient for each row"
        at = self._at(rows)
        before = {name: tensor.index_select(0, at) for name, tensor in self.tensors().items()}
        num_steps = before["num_steps"] + 1
        exp_avg = BETA1 * before["exp_avg"] + (1.0 - BETA1) * gradient
        exp_avg_sq = BETA2 * before["exp_avg_sq"] + (1.0 - BETA2) * gradient**2
        steps = num_steps.reshape(-1, *(1,) * (gradient.dim() - 1)).to(gradient.dtype)
        mean = exp_avg / (1.0 - BETA1**steps)
        square = exp_avg_sq / (1.0 - BETA2**steps)
        values = before["values"] - lr * mean / (square_root(square) + eps)
        after = {"values": values, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq, "num_steps": num_steps}
        # All of them before the first is written: where memory is short, nothing has changed.
        moved = {name: _through(gate, after[name], before[name]) for name in after}
        for name, tensor in self.tensors().items():
            tensor.index_copy_(0, at, moved[name])

    @torch.no_grad()
    def center(self, gate: StepGate | None = None) -> None:
        """Take the rows' mean from each of them: what all photos share belongs to the model.

        A `gate` may keep them from changing.
        """
        self.values.copy_(_through(gate, self.values - self.values.mean(dim=0), self.values))

    def _at(self, rows: Sequence[int]) -> Tensor:
        """Return `rows` as indices on the device of the values, for which nobody waits."""
        return to_device(torch.tensor(list(rows), dtype=torch.int64, device="cpu"), self.values.device)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name: what a checkpoint keeps."""
        return {name: getattr(self, name) for name in ("values", "exp_avg", "exp_avg_sq", "num_steps")}

    @torch.no_grad()
    def take(self, rows: Sequence[int], other: dict[str, Tensor], of: Sequence[int]) -> None:
        """Take `rows` from the tensors of another table, in which they are the rows `of`.

        Raises ValueError when the tensors do not fit.
        """
        for name, tensor in self.tensors().items():
            saved = other.get(name)
            if saved is None or saved.dtype != tensor.dtype or saved.shape[1:] != tensor.shape[1:]:
                raise ValueError(f"{name} is missing or of another shape")
            tensor[list(rows)] = saved[list(of)].to(tensor.device)


def _through(gate: StepGate | None, after: Tensor, before: Tensor) -> Tensor:
    """Return what is left where a gate, if there is one, is open or shut: `after` or `before`."""
    return after if gate is None else torch.where(gate.opened, after, before)


@dataclass(frozen=True, eq=False)
class SavedCorrections:
    """The corrections of a training as a checkpoint keeps them."""

    photos: tuple[str, ...]  # the names of the rows, but for the sky's
    tensors: Mapping[str, Tensor]  # as "exposure.values"

    @property
    def num_bytes(self) -> int:
        """Return how many bytes the tensors have."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def copy(self) -> SavedCorrections:
        """Return the same with tensors of its own, on the CPU."""
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.tensors.items()}
        return SavedCorrections(self.photos, copies)


class Corrections:
    """What the settings say to learn besides the Gaussians of a training.

    Before a step `begin` gives the leaf tensors of its photos, `camera`, `shown` and `penalty` use them,
    and `finish` and `move_cameras` move them from their gradients, the same on every rank.
    """

    def __init__(self, config: TrainConfig, scene: Scene, device: torch.device) -> None:
        """Prepare to learn, of the training photos of `scene`, what `config` asks for."""
        self._cameras = {index: scene.views[index].camera for index in scene.train_indices}
        # All parts of a photo were taken in one exposure.
        whole = {index: scene.views[index].whole for index in scene.train_indices}
        self._names = tuple(dict.fromkeys(whole.values()))
        rows = {name: row for row, name in enumerate(self._names)}
        self._row_of = {index: rows[name] for index, name in whole.items()}
        if config.poses.enabled and len(self._names) < len(self._cameras):
            raise ValueError(
                "poses cannot be refined of photos that are cut into several views, as panoramas: switch"
                " poses.enabled off"
            )
        self._extent = scene.extent
        self._tables: dict[str, LearnedRows] = {}
        num, exposure = len(self._names), config.exposure
        if exposure.enabled or exposure.grid:
            size = (12, exposure.grid_depth, exposure.grid_size, exposure.grid_size)
            shape = size if exposure.grid else (3, 4)
            self._add("exposure", torch.zeros(num, *shape, device=device))
        if config.poses.enabled:
            self._add("poses", torch.zeros(num, 6, dtype=torch.float64, device="cpu"))
        if config.sky.enabled:
            self._add("sky", torch.zeros(1, (config.sky.degree + 1) ** 2, 3, device=device))
        self._rows: list[int] = []
        self._leaves: dict[str, Tensor] = {}
        self._shown: dict[int, Tensor] = {}

    def _add(self, name: str, values: Tensor) -> None:
        self._tables[name] = LearnedRows.starting_at(values)

    def __bool__(self) -> bool:
        return bool(self._tables)

    @property
    def sky(self) -> Sky | None:
        """Return the sky as it is now, where one is learned."""
        table = self._tables.get("sky")
        return None if table is None else Sky.of(table.values[0])

    def refines_poses(self, step: int, config: TrainConfig) -> bool:
        """Return whether the step after `step` others needs the gradients of its cameras."""
        return "poses" in self._tables and step >= config.poses.start_step

    def camera(self, index: int) -> Camera:
        """Return the camera of the training photo `index` of the scene, as it is known now."""
        row = self._row_of[index]
        table = self._tables.get("poses")
        if table is None or not int(table.num_steps.sum()) > 0:
            return self._cameras[index]
        return corrected_camera(self._cameras[index], self._correction(row))

    def cameras(self) -> list[Camera]:
        """Return the cameras of all training photos, as they are known now."""
        return [self.camera(index) for index in self._row_of]

    def poses(self) -> dict[str, np.ndarray]:
        """Return the corrections [6] of the training cameras as of `corrected_camera`, by photo."""
        if "poses" not in self._tables:
            return {}
        return {name: self._correction(row) for row, name in enumerate(self._names)}

    def begin(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        """Return the leaf tensors of a step on the photos `indices` of the scene, of all ranks."""
        self._rows = sorted({self._row_of[index] for index in indices})
        self._shown = {}
        self._leaves = {
            name: table.leaf([0] if name == "sky" else self._rows)
            for name, table in self._tables.items()
            if name != "poses"
        }
        return tuple(self._leaves.values())

    def shown(self, view: TrainView, output: RenderOutput) -> Tensor:
        """Return an output as its photo shows it: before the sky, in the photo's exposure."""
        rows = {name: 0 if name == "sky" else self._place(view) for name in self._leaves}
        learned = {name: leaf[rows[name]] for name, leaf in self._leaves.items()}
        rgb = output.rgb
        if "sky" in learned:
            rgb = _over_learned_sky(view, output, learned["sky"])
        if "exposure" in learned:
            rgb = exposed(rgb, learned["exposure"])
        if learned:
            self._shown[view.index] = rgb.detach()
        return rgb

    @torch.no_grad()
    def over_what_is_behind(self, view: TrainView) -> TrainView:
        """Return the view of a photo with alpha over the sky, or the background, as the photo would show it.

        Its target is over the view's background before, as that is. Others are returned as they are.
        """
        if view.alpha is None or not self._tables.keys() & {"sky", "exposure"}:
            return view
        background = to_device(torch.tensor(view.background), view.target.device)
        plain = background.expand_as(view.target).contiguous()
        behind = plain
        if "sky" in self._tables:
            behind = over_sky(plain, torch.zeros_like(view.alpha), self._tables["sky"].values[0], view.camera)
        if "exposure" in self._tables:
            behind = exposed(behind, self._tables["exposure"].values[self._row_of[view.index]])
        return replace(view, target=view.target + (1.0 - view.alpha[..., None]) * (behind - plain))

    def picture(self, view: TrainView, drawn: Tensor) -> Tensor:
        """Return what `shown` made of `drawn`, the picture of a view, without gradients."""
        return self._shown.get(view.index, drawn)

    def behind(
        self, config: TrainConfig, generator: torch.Generator | None = None
    ) -> tuple[float, float, float]:
        """Return over what to draw: black where a sky comes behind, else what the settings say.

        Random colors are drawn from `generator`; without one the background is never random.
        """
        if "sky" in self._tables:
            return 0.0, 0.0, 0.0
        if config.random_background and generator is not None:
            red, green, blue = torch.rand(3, generator=generator).tolist()
            return red, green, blue
        return config.background

    def penalty(self, view: TrainView, config: TrainConfig) -> Tensor | None:
        """Return what keeps the correction of a photo small and smooth, a scalar; None: nothing does."""
        if "exposure" not in self._leaves:
            return None
        difference = self._leaves["exposure"][self._place(view)]
        loss = config.exposure.stay * (difference**2).mean()
        if difference.dim() == 4:
            loss = loss + config.exposure.grid_smooth * roughness(difference)
        return loss

    def finish(
        self,
        gradients: Sequence[Tensor | None],
        *,
        step: int,
        config: TrainConfig,
        gate: StepGate | None = None,
    ) -> None:
        """Move what `begin` gave from its `gradients`, which are those of all ranks.

        `step` is the number of steps done before. A `gate` may keep everything from changing.
        """
        progress = _progress(step, config)
        rates = {"exposure": config.exposure.lr * config.exposure.lr_decay**progress, "sky": config.sky.lr}
        cells = config.exposure.grid_size**2 if config.exposure.grid else 1
        eps = {"exposure": SETTLED / cells, "sky": EPS}
        for (name, leaf), gradient in zip(self._leaves.items(), gradients, strict=True):
            rows = [0] if name == "sky" else self._rows
            self._tables[name].step(rows, _whole(gradient, leaf), rates[name], eps[name], gate=gate)
        if "exposure" in self._tables and self._ends_epoch(step):
            self._tables["exposure"].center(gate)

    def move_cameras(
        self, indices: Sequence[int], twists: Sequence[Tensor], *, step: int, config: TrainConfig
    ) -> None:
        """Move the cameras of the photos `indices` from the gradients of their twists, of all ranks.

        `twists` are as of `pose_gradient`, and none where nobody asked; `step` as of `finish`.
        """
        if not twists:
            return
        lr = config.poses.lr * config.poses.lr_decay ** _progress(step, config)
        summed: dict[int, np.ndarray] = {}
        for index, twist in zip(indices, twists, strict=True):
            row = self._row_of[index]
            gradient = of_correction(twist.cpu().numpy(), self._correction(row))
            gradient[:3] *= self._extent
            summed[row] = summed.get(row, np.zeros(6)) + gradient
        rows = sorted(summed)
        self._tables["poses"].step(rows, torch.as_tensor(np.stack([summed[row] for row in rows])), lr)
        if self._ends_epoch(step):
            self._hold_cameras()

    def may_move(self, then: Iterable[int], *, now: Iterable[int], step: int, config: TrainConfig) -> bool:
        """Return whether the step after `step` others may move a camera of the photos `then`.

        It learns from the photos `now`. Only they move, but for the first step and the ends of epochs.
        """
        if not self.refines_poses(step, config):
            return False
        first = not int(self._tables["poses"].num_steps.sum()) > 0
        return first or self._ends_epoch(step) or not set(now).isdisjoint(then)

    def _ends_epoch(self, step: int) -> bool:
        return (step + 1) % len(self._names) == 0

    def save(self) -> SavedCorrections | None:
        """Return all that a checkpoint keeps; None: nothing is learned."""
        if not self._tables:
            return None
        tensors = {
            f"{name}.{part}": tensor
            for name, table in self._tables.items()
            for part, tensor in table.tensors().items()
        }
        return SavedCorrections(self._names, tensors)

    def restore(self, saved: SavedCorrections | None) -> None:
        """Go on from what a checkpoint kept; photos that it does not know start without corrections.

        Raises ValueError when what it kept is damaged.
        """
        if saved is None:
            return
        of = {name: row for row, name in enumerate(saved.photos)}
        known = [row for row, name in enumerate(self._names) if name in of]
        for name, table in self._tables.items():
            prefix = name + "."
            parts = {k.removeprefix(prefix): v for k, v in saved.tensors.items() if k.startswith(prefix)}
            if not parts:
                continue  # was not learned then
            rows = [0] if name == "sky" else known
            try:
                table.take(rows, parts, [0] if name == "sky" else [of[self._names[row]] for row in known])
            except (IndexError, ValueError) as error:
                raise ValueError(f"the checkpoint's corrections do not fit: {name}.{error}") from error

    def _place(self, view: TrainView) -> int:
        return self._rows.index(self._row_of[view.index])

    def _correction(self, row: int) -> np.ndarray:
        correction = self._tables["poses"].values[row].numpy().copy()
        correction[:3] *= self._extent
        return correction

    def _hold_cameras(self) -> None:
        table = self._tables["poses"]
        corrections = np.stack([self._correction(row) for row in range(len(table))])
        held = without_common_motion(corrections, list(self._cameras.values()))
        held[:, :3] /= self._extent
        table.values.copy_(torch.as_tensor(held))


def check_agreement(config: TrainConfig) -> None:
    """Raise ValueError where two settings contradict each other."""
    if not config.near < config.far:
        raise ValueError(
            f"nothing lies between near {config.near:g} and far {config.far:g}: near is to be the smaller one"
        )
    if config.sky.enabled and config.random_background:
        raise ValueError(
            "a sky cannot be learned over random backgrounds: switch sky.enabled or random_background off"
        )


def saved_sky(saved: SavedCorrections | None) -> Sky | None:
    """Return the sky that a checkpoint keeps, or None."""
    values = None if saved is None else saved.tensors.get("sky.values")
    return None if values is None else Sky.of(values[0])


def saved_poses(saved: SavedCorrections | None) -> dict[str, np.ndarray]:
    """Return the corrections [6] of the training cameras that a checkpoint keeps, by photo.

    They are as of `corrected_camera`, in the frame of the training, where the scene's extent is 1.
    """
    values = None if saved is None else saved.tensors.get("poses.values")
    if saved is None or values is None:
        return {}
    return dict(zip(saved.photos, values.cpu().numpy().astype(np.float64), strict=True))


def _over_learned_sky(view: TrainView, output: RenderOutput, sky: Tensor) -> Tensor:
    """Return an output over the sky, which learns only from what the photo has not left transparent."""
    rgb = over_sky(output.rgb, output.alpha, sky, view.camera)
    if view.alpha is None:
        return rgb
    unmoved = over_sky(output.rgb, output.alpha, sky.detach(), view.camera)
    return unmoved + view.alpha[..., None] * (rgb - unmoved)  # the value of both


def _progress(step: int, config: TrainConfig) -> float:
    return min(step / max(config.steps, 1), 1.0)


def _whole(gradient: Tensor | None, leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if gradient is None else gradient

"""How well a model shows the photos that it was not trained on."""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.devices import accelerator
from splatstudio.devices.transfer import to_device
from splatstudio.distributed.failures import OutOfMemory, unless_out_of_memory
from splatstudio.distributed.ranks import ALONE, Ranks
from splatstudio.evaluation.lpips import NETWORKS, Lpips, load_lpips
from splatstudio.evaluation.perceptual import MIN_SIDE, NO_FLIP, flip_error, has_flip, ms_ssim
from splatstudio.files.durable import write_durably, write_json_durably
from splatstudio.files.inputs import read_input
from splatstudio.files.outputs import make_folder
from splatstudio.files.run import finite_or_none
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.optimization.losses import psnr, ssim
from splatstudio.rendering.render import RenderOptions, area_means, render
from splatstudio.rendering.sharded_view import Received, drawn, received_for
from splatstudio.scene.capture import View
from splatstudio.scene.photo import Photo, whole_photo, whole_picture
from splatstudio.scene.photo_uploads import Pixels, pixels_of
from splatstudio.scene.scene import Scene

# What the figures are, as it stands in every file of results. `photo` is 8-bit / 255, `render` is float.
DEFINITIONS = {
    "psnr": "dB; -10 log10 of the mean squared error over pixels and channels; render (float, clamped to"
    " 0..1) against photo (8-bit / 255); data range 1; a mask leaves its pixels out",
    "ssim": "Wang et al. 2004; Gaussian window 11 x 11, sigma 1.5, K1 0.01, K2 0.03; no padding (valid);"
    " data range 1; mean over windows and channels; with a mask over the windows centered in it",
    "psnr_corrected": "PSNR after the affine map of colors [r g b 1] -> [r g b] that brings the render"
    " closest to the photo (least squares over the image, clamped to 0..1); each test photo helps"
    " to fit its own map, so it compares models in changing light and is not to be compared with PSNR",
    "ms_ssim": "Wang, Simoncelli and Bovik 2003; five scales with the weights of the paper; windows as of"
    " SSIM; mean over channels",
    "flip": "LDR-FLIP, Andersson et al. 2020; 67 pixels a degree; 0 (equal) to 1; lower is better; mean over"
    " pixels; a mask leaves its pixels out",
    "lpips_alex": "Zhang et al. 2018, version 0.1, AlexNet; images in -1..1 (as gsplat's default); lower is"
    " better; mean over positions",
    "lpips_vgg": "Zhang et al. 2018, version 0.1, VGG16; images in 0..1 as they are (as the first 3DGS"
    " program and gsplat's lpips_net vgg); lower is better; mean over positions",
    "test_photos": "nothing is learned of them: where a training learns exposures, poses or depths, they"
    " are of its own photos; a test photo is compared with the uncorrected render from the camera"
    " that the scene's files tell",
    "mean": "over images; one that is masked altogether is left out, and one whose score is no finite number"
    " from the mean of that score",
    "seconds_per_image": "rendering alone, on the machine that evaluated",
}


@dataclass(frozen=True)
class ImageScore:
    """The scores of one photo, as `DEFINITIONS` says; None: not measured."""

    name: str
    psnr: float
    ssim: float
    psnr_corrected: float | None = None
    ms_ssim: float | None = None
    flip: float | None = None
    lpips_alex: float | None = None
    lpips_vgg: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the name and the scores that were measured; what is not finite is None."""
        return {name: finite_or_none(value) for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class ComparedWith:
    """What an evaluation compared with: the figures of two are comparable where this is the same."""

    scene: Path  # resolved
    downscale: int
    test_every: int
    test_images: tuple[str, ...] = ()


# Gets a score, the render and the photo that it was compared with, both [H, W, 3].
OnImage = Callable[[ImageScore, Tensor, Tensor], None]

SCORES = ("psnr", "ssim", "psnr_corrected", "ms_ssim", "flip", "lpips_alex", "lpips_vgg")


@dataclass(frozen=True)
class Evaluation:
    """The scores of some photos and their means over the photos."""

    psnr: float
    ssim: float
    num_gaussians: int
    images: tuple[ImageScore, ...]
    seconds_per_image: float
    psnr_corrected: float | None = None
    ms_ssim: float | None = None
    flip: float | None = None
    lpips_alex: float | None = None
    lpips_vgg: float | None = None
    notes: tuple[str, ...] = ()  # what could not be measured, and why
    part: str | None = None  # a sentence, also a note, where a part of a model was compared alone
    against: ComparedWith | None = None  # where it is known

    def to_json(self) -> dict[str, Any]:
        """Return the means by name, num_gaussians, seconds_per_image, images, notes and definitions.

        scene, downscale, test_every and test_images say what was compared with, where it is known.
        """
        means = {name: finite_or_none(getattr(self, name)) for name in self.measured}
        against = {} if self.against is None else {**asdict(self.against), "scene": str(self.against.scene)}
        return {
            **means,
            **against,
            "num_gaussians": self.num_gaussians,
            "seconds_per_image": self.seconds_per_image,
            "images": [score.to_json() for score in self.images],
            "notes": list(self.notes),
            **({} if self.part is None else {"part": self.part}),
            "definitions": {
                name: text for name, text in DEFINITIONS.items() if name not in SCORES or name in means
            },
        }

    @property
    def measured(self) -> tuple[str, ...]:
        """Return the names of the scores that were measured."""
        return tuple(name for name in SCORES if getattr(self, name) is not None)

    @property
    def worst_first(self) -> tuple[ImageScore, ...]:
        """Return the images' scores by rising PSNR; one that is no number comes first."""
        return tuple(sorted(self.images, key=lambda s: -math.inf if math.isnan(s.psnr) else s.psnr))

    def to_csv(self) -> str:
        """Return a table with a line for each image, worst first, and one for the mean.

        Below the scores of a part of a model stands that they are, after a # as a comment.
        """
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(["name", *self.measured])
        for score in self.worst_first:
            writer.writerow([_as_text(score.name), *(getattr(score, name) for name in self.measured)])
        writer.writerow(["mean", *(getattr(self, name) for name in self.measured)])
        if self.part is not None:
            writer.writerow([f"# {self.part}"])
        return table.getvalue()


def evaluation_from_json(values: dict[str, Any]) -> Evaluation:
    """Return the evaluation that a file of `write_evaluation` holds; ValueError when it holds none."""
    try:
        images = tuple(_score_from_json(score) for score in values["images"])
        means = {name: _number(values[name]) for name in SCORES if name in values}
        against = None
        if "scene" in values:
            numbers = int(values["downscale"]), int(values["test_every"])
            against = ComparedWith(
                Path(values["scene"]), *numbers, tuple(map(str, values.get("test_images", ())))
            )
        return Evaluation(
            **means,
            num_gaussians=int(values["num_gaussians"]),
            images=images,
            seconds_per_image=_number(values["seconds_per_image"]),
            notes=tuple(map(str, values.get("notes", ()))),
            part=None if values.get("part") is None else str(values["part"]),
            against=against,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"these are no scores: {error}") from error


def _score_from_json(values: dict[str, Any]) -> ImageScore:
    scores = {name: _number(values[name]) for name in SCORES if name in values}
    return ImageScore(name=str(values["name"]), **scores)


def _number(value: Any) -> float:
    """Return a number; JSON's null stands for one that was not finite."""
    return math.nan if value is None else float(value)


@dataclass(frozen=True, eq=False)
class Measures:
    """What to measure besides PSNR and SSIM, and why something that was wanted cannot be."""

    lpips: tuple[Lpips, ...] = ()
    color_correct: bool = False
    ms_ssim: bool = False
    flip: bool = False
    notes: tuple[str, ...] = ()

    def to(self, device: torch.device) -> Measures:
        """Return the measures with their networks on `device`."""
        return replace(self, lpips=tuple(network.to(device) for network in self.lpips))


PSNR_AND_SSIM = Measures()
_WELL, _SHORT, _BROKEN_OFF = 0, 1, 2  # how a rank's part of a round ended


def measures_for(lpips: Sequence[str] = (), *, color_correct: bool = False, flip: bool = True) -> Measures:
    """Return the measures with the networks of LPIPS, "alex" and "vgg", that are found on this machine.

    For one whose weights are not, a note says where to put them. MS-SSIM is always among them, FLIP where it
    is wanted and can be computed here.
    """
    networks: list[Lpips] = []
    notes: list[str] = []
    for name in lpips:
        if name not in NETWORKS:
            raise ValueError(f"there is no LPIPS with the network {name!r}: {', '.join(NETWORKS)} there are")
        try:
            networks.append(load_lpips(name))
        except ValueError as error:
            notes.append(str(error))
    if flip and not has_flip():
        notes.append(NO_FLIP)
    return Measures(
        tuple(networks), color_correct, ms_ssim=True, flip=flip and has_flip(), notes=tuple(notes)
    )


class AbandonedElsewhere(Exception):
    """An evaluation of several ranks was broken off by another rank, which has the reason."""


@torch.no_grad()
def evaluate(
    gaussians: Gaussians,
    scene: Scene,
    *,
    ranks: Ranks = ALONE,
    indices: Sequence[int] | None = None,
    options: RenderOptions = RenderOptions(),
    measures: Measures = PSNR_AND_SSIM,
    on_image: OnImage | None = None,
) -> Evaluation:
    """Render `gaussians` (in the scene's frame) from the test cameras and compare with the photos.

    The scores are those of `DEFINITIONS`. A photo that is cut into several views is compared as a whole,
    in the projection of its lens. One with alpha is put over the background, or the sky, of
    `options`. `indices` defaults to the test views. `on_image` gets each score, its render and the photo.

    Of several `ranks` each calls it with its own rows of the model, renders its share of the photos, and
    gets the whole result; all else is the same on all, except `on_image`, which gets this rank's pictures.
    When it raises, the others raise AbandonedElsewhere. Raises ValueError when there is nothing to compare
    with, and OutOfMemory on all ranks alike where any has no memory for it.
    """
    indices = scene.test_indices if indices is None else indices
    measures = measures.to(gaussians.device)
    scores: list[ImageScore] = []
    seconds: list[float] = []  # of rendering, by photo of this rank

    def compared(own: Sequence[int], received: Received | None, started: float) -> ImageScore | None:
        if not own:
            return None
        views = [scene.views[index] for index in own]
        cameras = [view.camera for view in views]
        if received is None:
            renders = [render(gaussians, camera, options).rgb for camera in cameras]
        else:
            renders = [output.rgb for output in drawn(gaussians, received, cameras, options)]
        taken = now(gaussians.device) - started
        rgb, photo, camera = renders[0], None, cameras[0]
        if views[0].face:  # compared as its lens shows it
            rgb, photo = _whole(views, renders), whole_photo(views[0])
            camera = replace(camera, width=rgb.shape[1], height=rgb.shape[0])
        photo = scene.photo(own[0]) if photo is None else photo
        target, mask = target_for(photo, camera, options, gaussians.device)
        if mask is not None and not mask.any():
            return None  # one that is masked altogether
        seconds.append(taken)
        score = score_of(views[0].whole, rgb, target, mask, measures)
        if on_image is not None:
            on_image(score, rgb, target)
        return score

    groups = list(_by_photo(scene, indices))
    for start in range(0, len(groups), ranks.num_ranks):
        own = next(iter(groups[start + ranks.rank :]), ())  # none where they run out
        started, received = now(gaussians.device), None
        if ranks.num_ranks > 1:
            received = received_for(ranks, gaussians, [scene.views[index].camera for index in own], options)
        scores += _of_all(ranks, _unless_broken_off(ranks, partial(compared, own, received, started)))
    num_gaussians = int(ranks.all_reduce(torch.tensor([len(gaussians)], device="cpu")))
    notes = _notes(measures, scores)
    return summary(scores, scene, num_gaussians=num_gaussians, seconds=_without_start(seconds), notes=notes)


def _without_start(seconds: Sequence[float]) -> float:
    """Return how long the renders took together, the first, in which kernels wake, as long as the others."""
    if len(seconds) < 2:
        return sum(seconds)
    first, *others = seconds
    return min(first, sum(others) / len(others)) + sum(others)


def _notes(measures: Measures, scores: Sequence[ImageScore]) -> tuple[str, ...]:
    """Return what could not be measured of photos, and why."""
    if measures.ms_ssim and any(score.ms_ssim is None for score in scores):
        return (*measures.notes, f"MS-SSIM is skipped: a photo has a side below {MIN_SIDE} pixels")
    return measures.notes


def _by_photo(scene: Scene, indices: Sequence[int]) -> Iterable[tuple[int, ...]]:
    """Return the views to compare with, those of a photo that is cut into several together."""
    return dict.fromkeys(scene.photos[scene.views[index].whole] for index in indices)


def _whole(views: Sequence[View], renders: Sequence[Tensor]) -> Tensor:
    """Return the renders of the views of one photo put together, [H, W, 3]."""
    pictures = [picture.detach().float().cpu().numpy() for picture in renders]
    return torch.from_numpy(whole_picture(views, pictures)).to(renders[0].device)


def _unless_broken_off(ranks: Ranks, compared: Callable[[], ImageScore | None]) -> ImageScore | None:
    """Return what `compared` returns where it does so on all ranks; else all of them raise."""
    result, endings = None, torch.zeros(ranks.num_ranks, dtype=torch.int64, device="cpu")
    endings[ranks.rank] = _BROKEN_OFF
    try:
        result = unless_out_of_memory(lambda: (compared(),))
        endings[ranks.rank] = _SHORT if result is None else _WELL
    finally:  # also on the way out of an error: the others wait for this word
        endings = ranks.all_reduce(endings)
    short = (endings == _SHORT).nonzero().squeeze(1).tolist()
    if short:
        raise OutOfMemory(short)
    if result is None or endings.any():
        raise AbandonedElsewhere("another rank broke the evaluation off")
    return result[0]


def _of_all(ranks: Ranks, score: ImageScore | None) -> Sequence[ImageScore]:
    """Return the scores of all ranks, rank 0's first."""
    if ranks.num_ranks == 1:
        return [] if score is None else [score]
    message = b"" if score is None else json.dumps(asdict(score)).encode()
    return [ImageScore(**json.loads(text)) for text in ranks.all_gather_bytes(message) if text]


def score_of(
    name: str, rgb: Tensor, target: Tensor, mask: Tensor | None, measures: Measures = PSNR_AND_SSIM
) -> ImageScore:
    """Return the scores of a render [H, W, 3] of the photo `name`, see `target_for`."""
    corrected = psnr(color_corrected(rgb, target, mask), target, mask) if measures.color_correct else None
    distances = {f"lpips_{network.name}": network(rgb, target, mask) for network in measures.lpips}
    similarity = ms_ssim(rgb, target, mask) if measures.ms_ssim else None
    flip = flip_error(rgb, target, mask) if measures.flip else None
    own = psnr(rgb, target, mask), ssim(rgb, target, mask)
    return ImageScore(name, *own, corrected, similarity, flip, **distances)


def summary(
    scores: Sequence[ImageScore],
    scene: Scene,
    *,
    num_gaussians: int,
    seconds: float,
    notes: Sequence[str] = (),
) -> Evaluation:
    """Return the evaluation of a model on some photos of `scene`; `seconds` are those of rendering.

    Raises ValueError when there are none.
    """
    if not scores and scene.test_indices:
        raise ValueError(
            f"the masks of {scene.path} hide all of its test photos, and there is nothing to compare with:"
            " what is black in a mask does not count"
        )
    if not scores:
        raise ValueError(
            f"{scene.path} has no test photos to compare with: load it with test_every of 2 or more"
        )
    means = {name: [getattr(score, name) for score in scores] for name in SCORES}
    known = {name: values for name, values in means.items() if None not in values}
    averages: dict[str, Any] = {name: _mean(values) for name, values in known.items()}
    return Evaluation(
        **averages,
        num_gaussians=num_gaussians,
        images=tuple(scores),
        seconds_per_image=seconds / len(scores),
        notes=(*notes, *_left_out(known)),
    )


@torch.no_grad()
def color_corrected(image: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return `image` [H, W, 3] under the affine map of colors that brings it closest to `target`.

    Least squares over the pixels of `mask` [H, W] bool, clamped to 0..1 before and after. NaN where one of
    these is no number.
    """
    image = image.clamp(0.0, 1.0)
    ones = torch.cat([image, torch.ones_like(image[..., :1])], dim=-1).double()
    seen = ones.reshape(-1, 4) if mask is None else ones[mask]
    wanted = (target.reshape(-1, 3) if mask is None else target[mask]).double()
    if not (torch.isfinite(seen).all() and torch.isfinite(wanted).all()):
        return torch.full_like(image, torch.nan)
    # The pseudo-inverse, as an image of one color leaves the map undetermined.
    affine = torch.linalg.pinv(seen.T @ seen, hermitian=True) @ (seen.T @ wanted)
    return (ones @ affine).clamp(0.0, 1.0).to(image.dtype)


def target_of(
    pixels: Pixels, background: Sequence[float], size: tuple[int, int] | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return what a render of a photo should look like, [H, W, 3] float32 in 0..1, and its mask [H, W] bool.

    A photo with alpha (not premultiplied) is put over `background`, linear RGB. `size`: width and height to
    which one without alpha is reduced at once; the mask is not.
    """
    alpha = alpha_of(pixels)
    height, width = pixels.rgb.shape[:2]
    if alpha is None:
        width, height = size or (width, height)
        return area_means(pixels.rgb, width=width, height=height), pixels.mask
    behind = to_device(torch.tensor(tuple(background)), alpha.device)
    rgb = area_means(pixels.rgb, width=width, height=height)
    return alpha[..., None] * rgb + (1.0 - alpha[..., None]) * behind, pixels.mask


def alpha_of(pixels: Pixels) -> Tensor | None:
    """Return the alpha of a photo, [H, W] float32 in 0..1; None: it has none."""
    return None if pixels.alpha is None else pixels.alpha.float() / 255.0


def target_for(
    photo: Photo, camera: Camera, options: RenderOptions, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Return as `target_of` what `camera`, with the photo's pixels, should show under `options`.

    Where the photo is transparent that is the background, or the sky where there is one.
    """
    pixels = pixels_of(photo, device)
    alpha = alpha_of(pixels)
    if options.sky is None or alpha is None:
        return target_of(pixels, options.background)
    over_black, mask = target_of(pixels, (0.0, 0.0, 0.0))
    return options.sky.over(over_black, alpha, camera), mask


def write_evaluation(run_dir: Path, step: int, evaluation: Evaluation) -> Path:
    """Write eval/step_N.json and eval/step_N.csv of a run folder and return the path of the first.

    What an earlier evaluation of the same pictures has measured and this one has not is kept.
    """
    folder = Path(run_dir) / "eval"
    make_folder(folder)
    path = folder / f"step_{step:08d}.json"
    evaluation = _with_earlier(path, evaluation)
    write_durably(path.with_suffix(".csv"), evaluation.to_csv().encode())
    write_json_durably(path, {"step": step, **evaluation.to_json()})
    return path


def _with_earlier(path: Path, evaluation: Evaluation) -> Evaluation:
    """Return an evaluation with what the one at `path`, of the same pictures, has measured in addition."""
    try:
        earlier = evaluation_from_json(json.loads(read_input(path)))
    except (OSError, ValueError):
        return evaluation  # there is none, or it is damaged
    old = {score.name: score for score in earlier.images}
    same = old.keys() == {score.name for score in evaluation.images} and all(
        (old[score.name].psnr, old[score.name].ssim) == (score.psnr, score.ssim)
        for score in evaluation.images
    )
    if not same:
        return evaluation
    missing = [name for name in SCORES if getattr(evaluation, name) is None]
    more = [name for name in missing if getattr(earlier, name) is not None]
    images = tuple(
        replace(score, **{name: getattr(old[score.name], name) for name in more})
        for score in evaluation.images
    )
    return replace(evaluation, images=images, **{name: getattr(earlier, name) for name in more})


def _mean(values: Sequence[float]) -> float:
    """Return the mean of the finite values; where there are none, the first: infinity or NaN."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else values[0]


def _left_out(scores: dict[str, list[float]]) -> list[str]:
    notes: list[str] = []
    for name, values in scores.items():
        num = sum(not math.isfinite(value) for value in values)
        if num == len(values):
            notes.append(f"{name}: no image has a finite value")
        elif num:
            notes.append(
                f"{name}: {num} of {len(values)} images have no finite value; the mean is without them"
            )
    return notes


def _as_text(name: str) -> str:
    """Return a file's name as a spreadsheet takes it for text: these begin a formula there."""
    return f"'{name}" if name.startswith(("=", "+", "-", "@", "\t", "\r")) else name


def now(device: torch.device) -> float:
    """Return the seconds of a clock when everything given to `device` until now is done."""
    accelerator.synchronize(device)
    return time.perf_counter()

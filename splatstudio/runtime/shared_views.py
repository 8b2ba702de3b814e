"""Pictures of a model that lies on several ranks: for who looks now, and the frames of a camera path.

Each rank sends the Gaussians that a camera sees of its part, with the color that they have from there. What
comes together is a model of degree 0, which is drawn as any other, in every mode. For a task each rank keeps
a copy of its Gaussians as they are when it begins; of every round of frames each rank draws one, and rank 0
collects the pictures. Rounds come between the steps.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.distributed.failures import (
    FailedTogether,
    OutOfMemory,
    all_or_none,
    together,
    unless_out_of_memory,
)
from splatstudio.distributed.ranks import Ranks
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.rendering.mode_pictures import scaled
from splatstudio.rendering.render import RenderOptions
from splatstudio.rendering.sharded_view import as_seen_from
from splatstudio.runtime.messages import (
    Command,
    DrawCopy,
    DropCopy,
    GatherViews,
    KeepCopy,
    ViewOptions,
    ViewRequest,
)
from splatstudio.runtime.view_renderer import Painter, ShownModel, asked_for
from splatstudio.training.trainer import Trainer

COLUMNS = 14  # means 3, quats 4, scales 3, opacity 1, sh0 3
POLL_SECONDS = 0.1  # between two looks whether a task that waits for pictures was cancelled

log = logging.getLogger("splatstudio.runtime")


class Cancelled(Exception):
    """A task was cancelled while it waited for pictures."""


@dataclass(frozen=True, eq=False)
class SeenRows:
    """What was gathered for a view."""

    rows: Tensor  # [M, COLUMNS] on the model's device
    short: tuple[int, ...]  # the ranks that had no memory for their part


@dataclass(frozen=True, eq=False)
class _KeptCopy:
    gaussians: Gaussians  # this rank's
    options: RenderOptions  # of all


class SharedViews:
    """A rank's part in drawing a model that lies on several; all ranks call its methods in the same order.

    But for `copy`, which is rank 0's: `tell` says to the others what to do.
    """

    def __init__(self, trainer: Trainer, ranks: Ranks, tell: Callable[[Command], None]):
        self._trainer = trainer
        self._ranks = ranks
        self._tell = tell
        self._copies: dict[int, _KeptCopy] = {}
        self._painter = Painter()

    def execute(self, command: Command) -> None:
        """Take part in what rank 0 announced; what fails on all ranks rank 0 tells."""
        try:
            if isinstance(command, GatherViews):
                self.gather(command.requests)
            elif isinstance(command, KeepCopy):
                self.keep(command.job)
            elif isinstance(command, DrawCopy):
                self.draw(command.job, command.requests)
            else:
                assert isinstance(command, DropCopy), command
                self.drop(command.job)
        except (OutOfMemory, FailedTogether) as error:
            log.warning("%s: %s", type(command).__name__, error)

    def gather(self, requests: Sequence[ViewRequest]) -> list[ShownModel]:
        """Return what each request shows of the model, on rank 0; nothing on the others."""
        trainer, models = self._trainer, []
        gaussians, options = trainer.live_gaussians, trainer.display_options
        for request in requests:
            seen = gather_seen(self._ranks, gaussians, request, options)
            if self._ranks.rank == 0:
                model, notice = shown_model(seen, gaussians.device)
                models.append(ShownModel(model, options, trainer.step, trainer.scene, notice))
        return models

    def keep(self, job: int) -> None:
        """Keep a copy of the model as it is now; raises OutOfMemory on all ranks alike."""
        trainer = self._trainer
        copied = together(self._ranks, lambda: trainer.gaussians.detach().map(Tensor.clone))
        self._copies[job] = _KeptCopy(copied, trainer.display_options)

    def draw(self, job: int, requests: Sequence[ViewRequest]) -> list[np.ndarray]:
        """Draw `requests` of one size, one on each rank; return the pictures [H, W, 3] uint8, on rank 0.

        Raises OutOfMemory or FailedTogether on all ranks alike.
        """
        copy = self._copies[job]
        return all_or_none(self._ranks, lambda ranks: self._drawn(ranks, copy, requests), lambda: None)

    def _drawn(self, ranks: Ranks, copy: _KeptCopy, requests: Sequence[ViewRequest]) -> list[np.ndarray]:
        model = seen_by_rank(ranks, copy.gaussians, requests, copy.options)
        camera = requests[0].camera
        size = (camera.height, camera.width, 3)
        own = torch.zeros((0, *size), dtype=torch.uint8, device="cpu")
        if ranks.rank < len(requests):
            request = requests[ranks.rank]
            picture = self._painter.paint(model, request.camera, copy.options, request.options).picture
            own = torch.from_numpy(np.ascontiguousarray(picture.image))[None]
        nobody = [0] * (ranks.num_ranks - 1)
        received = [int(rank < len(requests)) for rank in range(ranks.num_ranks)]
        received = received if ranks.rank == 0 else [0, *nobody]
        into = own.new_empty((sum(received), *size))
        return list(ranks.all_to_all(own, [len(own), *nobody], received, into=into).numpy())

    def drop(self, job: int) -> None:
        """Let the copy of a task go."""
        self._copies.pop(job, None)

    def copy(self, job: int, post: Callable[[Callable[[], None]], None]) -> CopyDrawer:
        """Return what draws the model as it is now for a task; `post` queues work for the main thread.

        Raises OutOfMemory where a rank has no memory for a copy of its part.
        """
        self._tell(KeepCopy(job))
        self.keep(job)
        return CopyDrawer(self, job, post, self._ranks.num_ranks)

    def own_options(self, job: int) -> ViewOptions:
        """Return the options with which the model of a task was trained."""
        return ViewOptions(self._copies[job].options.background)

    def draw_together(self, job: int, requests: Sequence[ViewRequest]) -> list[np.ndarray]:
        """Have all ranks draw one picture of a copy each; as `draw`, for rank 0."""
        self._tell(DrawCopy(job, tuple(requests)))
        return self.draw(job, requests)

    def drop_together(self, job: int) -> None:
        """Let all ranks' copies of a task go; for rank 0."""
        self._tell(DropCopy(job))
        self.drop(job)


class CopyDrawer:
    """What a task's thread has in place of a model: pictures that all ranks draw.

    While it works on those of one round, the next is drawn.
    """

    def __init__(
        self, views: SharedViews, job: int, post: Callable[[Callable[[], None]], None], num_ranks: int
    ):
        self._views = views
        self._job = job
        self._post = post
        self._num_ranks = num_ranks
        self._own_options = views.own_options(job)
        self._changed = threading.Condition()
        self._pictures: dict[int, np.ndarray] = {}  # drawn, and not taken yet
        self._asked = 0  # frames that were asked for
        self._error: str | None = None

    def of(
        self, cameras: Sequence[Camera], options: ViewOptions | None, cancelled: Callable[[], bool]
    ) -> Callable[[Camera], np.ndarray]:
        """Return what draws `cameras` one after the other, in the size that each is asked for in.

        It raises ValueError where a picture cannot be drawn, and Cancelled.
        """
        numbers = iter(range(len(cameras)))
        wanted = self._own_options if options is None else options

        def draw(camera: Camera) -> np.ndarray:
            number = next(numbers)
            # The round that has this one, and a whole one after it.
            while self._asked < min(len(cameras), number + 1 + self._num_ranks):
                following = cameras[self._asked : self._asked + self._num_ranks]
                sized = [each.resized(camera.width, camera.height) for each in following]
                self._post(partial(self._serve, self._asked, [ViewRequest(each, wanted) for each in sized]))
                self._asked += len(sized)
            with self._changed:
                while number not in self._pictures:
                    if self._error is not None:
                        raise ValueError(self._error)
                    if cancelled():
                        raise Cancelled
                    self._changed.wait(POLL_SECONDS)
                return self._pictures.pop(number)

        return draw

    def close(self) -> None:
        """Let the copies go; called at the end of the task."""
        self._post(partial(self._views.drop_together, self._job))

    def _serve(self, first: int, requests: list[ViewRequest]) -> None:
        """Draw a round; on the main thread of rank 0."""
        error, pictures = None, []
        try:
            pictures = self._views.draw_together(self._job, requests)
        except (OutOfMemory, FailedTogether) as raised:
            error = f"a picture could not be drawn: {raised}"
        with self._changed:
            self._error = self._error or error
            self._pictures.update(enumerate(pictures, first))
            self._changed.notify_all()


@torch.no_grad()
def seen_rows(gaussians: Gaussians, request: ViewRequest, options: RenderOptions) -> Tensor:
    """Return the Gaussians that are seen, [M, COLUMNS] float32, with their colors from there.

    `options` are the model's own.
    """
    factor = request.options.splat_scale if request.options.splat_scale > 0 else 1.0
    # Larger splats are seen from farther away; the painter makes them larger itself.
    seen = as_seen_from(scaled(gaussians, factor), request.camera, asked_for(options, request.options))
    seen = scaled(seen, 1.0 / factor)
    columns = (seen.means, seen.quats, seen.scales, seen.opacities[:, None], seen.sh0[:, 0])
    return torch.cat(columns, dim=1)


def gather_seen(ranks: Ranks, gaussians: Gaussians, request: ViewRequest, options: RenderOptions) -> SeenRows:
    """Return what all ranks' Gaussians look like, on rank 0; the others send, and get nothing.

    A rank that has no memory for its part sends none. Called by all ranks.
    """
    # Between GPUs they go the short way: by the CPU's memory and network a picture would take far longer.
    own, nothing = unless_out_of_memory(lambda: seen_rows(gaussians, request, options)), (0, COLUMNS)
    short, rows = own is None, gaussians.means.new_zeros(nothing) if own is None else own
    table = torch.cat(ranks.all_gather(torch.tensor([[len(rows), int(short)]], device="cpu")))
    received = table[:, 0].tolist() if ranks.rank == 0 else [0] * ranks.num_ranks
    try:
        got = together(ranks, lambda: rows.new_empty((sum(received), COLUMNS)))
    except OutOfMemory as error:
        return SeenRows(gaussians.means.new_zeros(nothing), error.ranks)
    got = ranks.all_to_all(rows, [len(rows), *[0] * (ranks.num_ranks - 1)], received, into=got)
    return SeenRows(got, tuple(table[:, 1].nonzero().squeeze(1).tolist()))


@torch.no_grad()
def seen_by_rank(
    ranks: Ranks, gaussians: Gaussians, requests: Sequence[ViewRequest], options: RenderOptions
) -> Gaussians:
    """Return what `requests[rank]` sees of all ranks' Gaussians, with their colors from there, of degree 0.

    `options` are the model's own. A rank beyond the last request gets none. What comes from rank 0 lies
    first.
    """
    parts = [seen_rows(gaussians, request, options) for request in requests]
    rows = torch.cat(parts) if parts else gaussians.means.new_zeros((0, COLUMNS))
    sent = [len(part) for part in parts] + [0] * (ranks.num_ranks - len(parts))
    counts = ranks.all_to_all_counts(torch.tensor(sent, dtype=torch.int64, device="cpu")[:, None])
    received = counts[:, 0].tolist()
    into = rows.new_empty((sum(received), COLUMNS))
    return gaussians_of_rows(ranks.all_to_all(rows, sent, received, into=into))


def shown_model(seen: SeenRows, device: torch.device) -> tuple[Gaussians, str | None]:
    """Return the model to draw of what was gathered, and a sentence on what is missing in it, if anything."""
    model = unless_out_of_memory(lambda: gaussians_of_rows(seen.rows).to(device))
    short = seen.short if model is not None else (*seen.short, 0)
    if model is None:
        model = gaussians_of_rows(seen.rows[:0]).to(device)
    if not short:
        return model, None
    names = ", ".join(str(rank) for rank in sorted(set(short)))
    return model, f"There was no memory for this picture on rank {names}, whose part of it is missing."


def gaussians_of_rows(rows: Tensor) -> Gaussians:
    """Return the model, of degree 0, that the rows of all processes make up."""
    means, quats, scales, opacities, sh0 = rows.split((3, 4, 3, 1, 3), dim=1)
    return Gaussians(
        means=means.contiguous(),
        quats=quats.contiguous(),
        scales=scales.contiguous(),
        opacities=opacities[:, 0].contiguous(),
        sh0=sh0[:, None].contiguous(),
        shN=sh0.new_zeros(len(sh0), 0, 3),
    )

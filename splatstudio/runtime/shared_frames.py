"""The frames of a camera path of a model that lies on several ranks: each rank draws its share.

For a task each rank keeps a copy of its Gaussians as they are when it begins. Of every round of frames each
rank draws one: it gets the Gaussians that are seen there, of all ranks, with their colours, which makes a
model of degree 0 that is drawn as any other. Rank 0 collects the pictures. Rounds come between the steps.
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
from splatstudio.distributed import Ranks
from splatstudio.distributed.failures import FailedTogether, OutOfMemory, together
from splatstudio.distributed.guarded_ranks import all_or_none
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.rendering.render import RenderOptions
from splatstudio.runtime.control import Turn
from splatstudio.runtime.looks import (
    COLUMNS,
    ViewRequest,
    decoded_looks,
    encoded_looks,
    gaussians_of_rows,
    seen_rows,
)
from splatstudio.runtime.messages import Command, ViewOptions
from splatstudio.runtime.painter import Painter
from splatstudio.train.trainer import Trainer

POLL_SECONDS = 0.1  # between two looks whether a task that waits for pictures was cancelled
JOB_BYTES = 8  # of a task's number before what is asked for it

log = logging.getLogger("splatstudio.runtime")


class Cancelled(Exception):
    """A task was cancelled while it waited for pictures."""


@dataclass(frozen=True, eq=False)
class _Copy:
    gaussians: Gaussians  # this rank's
    options: RenderOptions  # of all


class FrameShare:
    """A rank's part in drawing frames together: its copies of its Gaussians, one for each task."""

    def __init__(self, trainer: Trainer, ranks: Ranks):
        self._trainer = trainer
        self._ranks = ranks
        self._copies: dict[int, _Copy] = {}
        self._painter = Painter()

    def keep(self, job: int) -> None:
        """Keep a copy of the model as it is now; raises OutOfMemory on all ranks alike."""
        trainer = self._trainer
        copied = together(self._ranks, lambda: trainer.gaussians.detach().map(Tensor.clone))
        self._copies[job] = _Copy(copied, trainer.display_options)

    def view_options(self, job: int) -> ViewOptions:
        """Return the options with which the model of a task was trained."""
        return ViewOptions(self._copies[job].options.background)

    def draw(self, job: int, looks: Sequence[ViewRequest]) -> list[np.ndarray]:
        """Draw `looks` of one size, one on each rank; return the pictures [H, W, 3] uint8, on rank 0.

        Raises OutOfMemory or FailedTogether on all ranks alike.
        """
        copy = self._copies[job]
        return all_or_none(self._ranks, lambda ranks: self._drawn(ranks, copy, looks), lambda: None)

    def _drawn(self, ranks: Ranks, copy: _Copy, looks: Sequence[ViewRequest]) -> list[np.ndarray]:
        model = seen_by_rank(ranks, copy.gaussians, looks, copy.options)
        camera = looks[0].camera
        size = (camera.height, camera.width, 3)
        own = torch.zeros((0, *size), dtype=torch.uint8, device="cpu")
        if ranks.rank < len(looks):
            look = looks[ranks.rank]
            picture, _ = self._painter.paint(model, look.camera, copy.options, look.options)
            own = torch.from_numpy(np.ascontiguousarray(picture.image))[None]
        nobody = [0] * (ranks.num_ranks - 1)
        received = [int(rank < len(looks)) for rank in range(ranks.num_ranks)]
        received = received if ranks.rank == 0 else [0, *nobody]
        into = own.new_empty((sum(received), *size))
        return list(ranks.all_to_all(own, [len(own), *nobody], received, into=into).numpy())

    def drop(self, job: int) -> None:
        """Let the copy of a task go."""
        self._copies.pop(job, None)

    def take_part(self, turn: Turn, body: bytes) -> None:
        """Do what rank 0 announced, on another rank; what fails on all of them rank 0 tells."""
        job = int.from_bytes(body[:JOB_BYTES], "little")
        try:
            if turn == Turn.KEEP:
                self.keep(job)
            elif turn == Turn.DRAW:
                self.draw(job, decoded_looks(body[JOB_BYTES:]))
            else:
                assert turn == Turn.DROP, turn
                self.drop(job)
        except (OutOfMemory, FailedTogether) as error:
            log.warning("task %d: %s", job, error)


@torch.no_grad()
def seen_by_rank(
    ranks: Ranks, gaussians: Gaussians, looks: Sequence[ViewRequest], options: RenderOptions
) -> Gaussians:
    """Return what `looks[rank]` sees of all ranks' Gaussians, with their colours from there, of degree 0.

    `options` are the model's own. A rank beyond the last look gets none. What comes from rank 0 lies first.
    """
    parts = [seen_rows(gaussians, look, options) for look in looks]
    rows = torch.cat(parts) if parts else gaussians.means.new_zeros((0, COLUMNS))
    sent = [len(part) for part in parts] + [0] * (ranks.num_ranks - len(parts))
    counts = ranks.all_to_all_counts(torch.tensor(sent, dtype=torch.int64, device="cpu")[:, None])
    received = counts[:, 0].tolist()
    into = rows.new_empty((sum(received), COLUMNS))
    return gaussians_of_rows(ranks.all_to_all(rows, sent, received, into=into))


@dataclass(frozen=True, eq=False)
class Round(Command):
    """What a task's thread asks of the main thread: the next pictures, or that its copy can go."""

    do: Callable[[], None]


class SharedFrames:
    """Rank 0's side: copies for tasks, and the way from a task's thread to all ranks."""

    def __init__(self, share: FrameShare, ranks: Ranks, tell: Callable[[Turn, bytes], None]):
        self._share = share
        self._ranks = ranks
        self._tell = tell

    def copy(self, job: int, post: Callable[[Command], None]) -> SharedDrawing:
        """Return what draws the model as it is now for a task; `post` queues for the main thread.

        Raises OutOfMemory where a rank has no memory for a copy of its part.
        """
        self._tell(Turn.KEEP, _numbered(job))
        self._share.keep(job)
        return SharedDrawing(self, job, post, self._ranks.num_ranks, self._share.view_options(job))

    def pictures(self, job: int, looks: Sequence[ViewRequest]) -> list[np.ndarray]:
        """Return one picture for each of as many looks as there are ranks, or fewer."""
        self._tell(Turn.DRAW, _numbered(job) + encoded_looks(looks))
        return self._share.draw(job, looks)

    def drop(self, job: int) -> None:
        """Let all ranks' copies of a task go."""
        self._tell(Turn.DROP, _numbered(job))
        self._share.drop(job)


class SharedDrawing:
    """What a task's thread has in place of a model: pictures that all ranks draw.

    While it works on those of one round, the next is drawn.
    """

    def __init__(
        self,
        frames: SharedFrames,
        job: int,
        post: Callable[[Command], None],
        num_ranks: int,
        own_options: ViewOptions,
    ):
        self._frames = frames
        self._job = job
        self._post = post
        self._num_ranks = num_ranks
        self._own_options = own_options  # those with which the model was trained
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
                self._post(
                    Round(partial(self._serve, self._asked, [ViewRequest(each, wanted) for each in sized]))
                )
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
        self._post(Round(lambda: self._frames.drop(self._job)))

    def _serve(self, first: int, looks: list[ViewRequest]) -> None:
        """Draw a round; on the main thread of rank 0."""
        error, pictures = None, []
        try:
            pictures = self._frames.pictures(self._job, looks)
        except (OutOfMemory, FailedTogether) as raised:
            error = f"a picture could not be drawn: {raised}"
        with self._changed:
            self._error = self._error or error
            self._pictures.update(enumerate(pictures, first))
            self._changed.notify_all()


def _numbered(job: int) -> bytes:
    return job.to_bytes(JOB_BYTES, "little")

"""Measure what ranks cost each other in a training, and say on paper where more of them stop helping.

python tests/bench/scaling.py --scene SCENE --init model.ply --downscale 4 --ranks 1 2 4 --steps 20
python tests/bench/scaling.py --shown 0.3 --seconds 0.005

Processes of this machine, each with one photo a step, train together over gloo. Of each step are
printed: the seconds, those of the processor for a photo, the shares of the seconds in which ranks wait
for each other and in which they exchange rows, the megabytes that a rank sends, its short messages, the
Gaussians that a photo shows, and the slowest rank's own work over the mean. More ranks than cores share
these: then only the processor's seconds say something about scaling. From the rest, or without a scene from
--shown, follows the model printed below (scaling_model.py): what a step on GPUs would take, from the time of
a photo on one, which is stated.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
from rank_processes import answers_of, meet
from scaling_model import LINKS, Link, Load, efficiency, step_seconds
from torch import Tensor

from splatstudio.distributed.process_ranks import ProcessRanks
from splatstudio.distributed.ranks import ALONE, Ranks, Transfer
from splatstudio.scene.load import load_scene
from splatstudio.settings.config import TrainConfig, changed
from splatstudio.training.precision import HALVES, row_bytes
from splatstudio.training.trainer import Trainer

# Of a visible Gaussian in the exchange and of its gradients.
ROW_BYTES = {"fp32": row_bytes(None), "mixed": row_bytes(HALVES)}
WARM_UP = 3  # steps that are not measured

# GB/s that a node sends while it receives as many, and seconds until the first byte is there.
NETWORKS = {"InfiniBand 8 x 400 Gb/s a node": (400.0, 10e-6), "Ethernet 100 Gb/s a node": (12.5, 30e-6)}


@dataclass(frozen=True)
class Measured:
    """Means over the steps and the ranks."""

    step_seconds: float
    cpu_seconds: float  # of a rank
    waiting_share: float
    exchange_share: float
    bytes_sent: float  # by a rank
    messages: float  # short ones, of a rank
    shown: float  # share of the Gaussians that a photo shows
    imbalance: float  # the slowest rank's own work over the mean
    num_gaussians: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scene", type=Path, help="default: nothing is measured")
    parser.add_argument("--init", type=Path, help="the model to start from; default: the scene's points")
    parser.add_argument("--downscale", type=int, default=4)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--gaussians", type=float, default=3e6, help="of the model on paper")
    parser.add_argument("--seconds", type=float, default=0.005, help="of a photo on one GPU, on paper")
    parser.add_argument("--shown", type=float, default=0.3, help="of the Gaussians, without a scene")
    parser.add_argument("--precision", choices=list(ROW_BYTES), default="fp32", help="of several ranks")
    arguments = parser.parse_args()
    if arguments.scene is None:
        on_paper(arguments.gaussians, arguments.shown * arguments.gaussians, arguments.seconds)
        return
    config = replace(TrainConfig(), downscale=arguments.downscale, precision=arguments.precision)
    config = changed(config, "densify.enabled", False)
    if arguments.init:
        config = changed(config, "init", str(arguments.init.resolve()))
    print("ranks   s/step  CPU s  views/s  waiting  exchange  MB sent  messages  shown  slowest")
    measured = {}
    for num_ranks in arguments.ranks:
        found = measured[num_ranks] = measure(num_ranks, arguments.scene, config, arguments.steps)
        rate = num_ranks / found.step_seconds
        print(
            f"{num_ranks:5} {found.step_seconds:8.3f} {found.cpu_seconds:6.3f} {rate:8.2f}"
            f" {found.waiting_share:8.1%} {found.exchange_share:9.1%} {found.bytes_sent / 1e6:8.2f}"
            f" {found.messages:9.1f} {found.shown:6.1%} {found.imbalance:7.2f}",
            flush=True,
        )
    last = measured[max(measured)]
    check_bytes(max(measured), last, ROW_BYTES[arguments.precision])
    on_paper(arguments.gaussians, last.shown * arguments.gaussians, arguments.seconds)
    print(f"Photos that cost as unequally as here take another {1 - 1 / last.imbalance:.0%} off.")


def measure(num_ranks: int, scene: Path, config: TrainConfig, steps: int) -> Measured:
    """Train with so many processes and return what their steps took."""
    answers = answers_of(num_ranks, _train, scene, config, steps)
    rows = list(zip(*(answer["steps"] for answer in answers), strict=True))
    seconds = [max(whole for whole, _, _ in step) for step in rows]
    work = [[whole - waited - exchanged for whole, waited, exchanged in step] for step in rows]
    return Measured(
        statistics.mean(seconds),
        statistics.mean(answer["cpu"] for answer in answers) / steps,
        statistics.mean(waited / whole for step in rows for whole, waited, _ in step),
        statistics.mean(exchanged / whole for step in rows for whole, _, exchanged in step),
        statistics.mean(answer["bytes"] for answer in answers) / steps,
        statistics.mean(answer["messages"] for answer in answers) / steps,
        statistics.mean(answer["shown"] for answer in answers),
        statistics.mean(max(own) / statistics.mean(own) for own in work),
        answers[0]["num_gaussians"],
    )


class TimedRanks(ProcessRanks):
    """Ranks that know the time in which rows are sent, when all have come, and count short messages."""

    rows_seconds = 0.0
    messages = 0  # short ones

    def all_reduce(self, values: Tensor) -> Tensor:
        """Add as `ProcessRanks` does."""
        self.messages += 1
        return super().all_reduce(values)

    def all_gather(self, rows: Tensor) -> list[Tensor]:
        """Gather as `ProcessRanks` does."""
        self.messages += 1
        return super().all_gather(rows)

    def all_to_all_counts(self, counts: Tensor) -> Tensor:
        """Tell counts as `ProcessRanks` does."""
        self.messages += 1
        return super().all_to_all_counts(counts)

    def all_to_all(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], into: Tensor | None = None
    ) -> Tensor:
        """Send rows as `ProcessRanks` does."""
        started = time.perf_counter()
        dist.barrier()
        self.seconds += time.perf_counter() - started
        before = self.seconds
        got = super().all_to_all(rows, sent, received, into)
        self.rows_seconds += self.seconds - before
        return got

    def begin_all_to_all(
        self, rows: Tensor, sent: Sequence[int], received: Sequence[int], into: Tensor
    ) -> Transfer:
        """Send rows at once: what they take is to be known."""
        self.all_to_all(rows, sent, received, into)
        return Transfer()


def _train(
    wire: Connection, rank: int, num_ranks: int, folder: str, scene: Path, config: TrainConfig, steps: int
) -> None:
    torch.set_num_threads(1)
    ranks: Ranks = ALONE
    timed: TimedRanks | None = None
    if num_ranks > 1:
        meet(rank, num_ranks, folder)
        ranks = timed = TimedRanks()
    trainer = Trainer(load_scene(scene, downscale=config.downscale), config, ranks=ranks)
    seen: list[float] = []
    strategy = trainer.parts.strategy

    def observed(population, observations, step):
        seen.extend(float((each.radii > 0).all(dim=1).sum()) for each in observations)

    strategy.after_step = observed  # type: ignore[method-assign]
    strategy.observes_at = lambda _: True  # type: ignore[method-assign]
    strategy.changes_at = lambda _: False  # type: ignore[method-assign]
    times = []
    for step in range(WARM_UP + steps):
        if step == WARM_UP:
            seen.clear()
            sent_before, cpu_before = ranks.num_bytes, time.process_time()
            told_before = timed.messages if timed else 0
        rows_before = timed.rows_seconds if timed else 0.0
        started, others_before = time.perf_counter(), ranks.seconds
        trainer.train_step()
        seconds = time.perf_counter() - started
        exchanged = (timed.rows_seconds if timed else 0.0) - rows_before
        times.append((seconds, ranks.seconds - others_before - exchanged, exchanged))
    shown = num_ranks * statistics.mean(seen) / trainer.num_gaussians
    wire.send(
        {
            "steps": times[WARM_UP:],
            "cpu": time.process_time() - cpu_before,
            "bytes": ranks.num_bytes - sent_before,
            "messages": (timed.messages if timed else 0) - told_before,
            "shown": shown,
            "num_gaussians": trainer.num_gaussians,
        }
    )
    trainer.close()


def check_bytes(num_ranks: int, measured: Measured, row: tuple[int, int]) -> None:
    """Print how the bytes of a step compare with what the records of the exchange come to."""
    shown = measured.shown * measured.num_gaussians
    counted = shown * sum(row)
    print(
        f"\n{num_ranks} ranks: {shown:,.0f} of {measured.num_gaussians:,} Gaussians in a photo, at "
        f"{row[0]} + {row[1]} bytes {counted / 1e6:.2f} MB a rank, its own with them; "
        f"measured {measured.bytes_sent / 1e6:.2f} MB"
    )


def on_paper(num_gaussians: float, shown: float, seconds: float) -> None:
    """Print how a step would grow with the ranks, of one photo each, on links of stated bandwidth.

    A photo shows `shown` Gaussians. Of them a rank gets all but its own from others, and sends as many.
    """
    print(
        f"\nOn paper: {shown:,.0f} of {num_gaussians:,.0f} Gaussians shown,"
        f" {seconds * 1e3:.1f} ms a photo on one\nGPU;"
        " efficiency = photos a second over those of one GPU times the GPUs."
    )
    for precision, row in ROW_BYTES.items():
        print(f"--precision {precision}, {row[0]} + {row[1]} bytes a Gaussian there and back:")
        load = Load(num_gaussians, shown, seconds, row, mixed=precision == "mixed")
        for link in LINKS:
            line = [f"{num}: {efficiency(load, num, link):.0%}" for num in (2, 4, 8)]
            print(f"  one node, {link.name:18} {link.bandwidth:5.0f} GB/s   {'   '.join(line)}")
        _on_networks(load)


def _on_networks(load: Load) -> None:
    in_node = 8 / step_seconds(load, 8, LINKS[0])
    for name, (bandwidth, latency) in NETWORKS.items():
        steps = {nodes: _over_network(load, nodes, bandwidth, latency) for nodes in (2, 4, 8)}
        line = [f"{nodes} x 8: {load.seconds / step:.0%}" for nodes, step in steps.items()]
        print(f"  {name:38}   {'   '.join(line)}")
        worth = [nodes for nodes, step in steps.items() if 8 * nodes / step > 1.2 * in_node]
        print(f"    {'faster than one node with ' + str(worth[0]) if worth else 'no faster than one node'}")


def _over_network(load: Load, nodes: int, bandwidth: float, latency: float) -> float:
    """Return the seconds of a step of `nodes` of eight GPUs, which share what a node sends."""
    num, memory = 8 * nodes, LINKS[0].memory
    # What leaves a node is for the others alone, and of eight GPUs: as if each had so much of the line.
    return step_seconds(load, num, Link("", bandwidth * (num - 1) / (8 * (num - 8)), latency, memory))


if __name__ == "__main__":
    main()

"""The report of an estimation in plain sentences, as the terminal and report.txt have it."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from splatstudio.error_text import first_of
from splatstudio.files.path_words import as_argument
from splatstudio.poses.records import PoseReport
from splatstudio.scene.layout import estimated_poses, pose_files
from splatstudio.scene.unread_poses import unread_poses

MOST_NAMES = 12  # of photos that share a reason


def headline(report: PoseReport) -> str:
    """Return what came out, in one sentence."""
    seconds = sum(report.seconds.values())
    took = f", in {seconds:.0f} s" if seconds else ""
    have = "have a pose so far" if report.so_far else "have a pose"
    return (
        f"{len(report.posed)} of {report.num_photos} photos {have}: {report.num_points:,} points,"
        f" {report.error:.2f} px reprojection error{took}"
    )


def report_lines(report: PoseReport) -> list[str]:
    """Return the report as lines: what came out, what was left out and why, what is doubtful, what to do."""
    lines = [headline(report)]
    size = "meters by GPS" if report.meters is not None else "of arbitrary size"
    lines.append(f"Up: by {report.up}; {size}")
    for camera in report.cameras:
        told = "" if camera.told_focal is None else f" (EXIF: {camera.told_focal:.0f})"
        lines.append(
            f"Camera: {camera.num_photos} photos of {camera.width} x {camera.height}, focal length"
            f" {camera.focal:.0f} px{told}, {camera.model}"
        )
    coverage = sorted(photo.coverage for photo in report.posed)
    if coverage:
        middle = coverage[len(coverage) // 2]
        worst = min(report.posed, key=lambda photo: photo.coverage)
        lines.append(
            f"Coverage: points in {middle:.0%} of the picture at the median, {worst.coverage:.0%} at least"
            f" ({worst.name})"
        )
    by_reason = defaultdict[str, list[str]](list)
    for photo in report.left_out:
        by_reason[photo.reason].append(photo.name)
    for reason, names in by_reason.items():
        lines.append(f"Left out: {first_of(names, MOST_NAMES)}: {reason}")
    others_used = note_on_own_poses(Path(report.source)) is not None
    opened = f"splatstudio open {as_argument(report.store)} " if others_used else ""
    for group in report.groups:
        lines.append(
            f"Another group: {len(group.names)} photos, {group.names[0]} to {group.names[-1]};"
            f" {opened}--model {group.model} opens it"
        )
    lines += [
        f"Doubtful: {link.first} and {link.second} ({link.num_matches} matches, which do not fit the poses)"
        for link in report.doubtful[:3]
    ]
    lines += [f"Note: {note}" for note in report.notes]
    lines += [f"Next: {advice}" for advice in report.advice]
    return lines


def note_on_own_poses(path: Path) -> str | None:
    """Return a sentence where a folder has poses of its own, which are used and not those estimated of it."""
    own = pose_files(path) if path.is_dir() else None
    if own is None or own.folder == estimated_poses(path):
        return None
    estimated = as_argument(estimated_poses(path))
    return (
        f"{path} has poses of its own ({own.format}), with which open and train go on; those estimated here"
        f" lie beside them: `splatstudio open {estimated}` shows them"
    )


def note_on_unread_poses(path: Path) -> str | None:
    """Return a sentence where other programs have left poses in a folder which are not read."""
    found = unread_poses(path) if path.is_dir() else None
    return None if found is None else f"The camera poses are estimated anew; {found.told(path)}"


def report_text(report: PoseReport) -> str:
    """Return the report as text, with a line for each photo that has a pose."""
    rows = [
        f"{photo.name}: {photo.num_points} points, {photo.error:.2f} px, coverage {photo.coverage:.0%}"
        for photo in report.posed
    ]
    return "\n".join([*report_lines(report), "", *rows])

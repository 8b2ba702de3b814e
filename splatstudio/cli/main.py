"""The command line: `splatstudio open | poses | train | ...`, and all of its commands."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import OmitArgPrefixes, Positional

from splatstudio.cameras.camera_path import FrameFormat
from splatstudio.cameras.placement import AS_IN_THE_FILES, Placement
from splatstudio.cli.command_options import options_of
from splatstudio.cli.json_output import CommandResult, failed, print_json, printed_to_stderr
from splatstudio.cli.mesh import mesh
from splatstudio.cli.mistyped import mistake_in, refuse_lost_folder
from splatstudio.cli.options import (
    Against,
    AtOnce,
    PartChoice,
    Route,
    RunOptions,
    ScoreFiles,
    Scores,
    attach_token,
)
from splatstudio.cli.overview import answer, say_starting
from splatstudio.cli.short_help import SHORT_HELP, short_help
from splatstudio.cli.standard_output import AS_SIGPIPE, leave_unread, nobody_reads, not_written, tell
from splatstudio.error_text import in_words
from splatstudio.files.durable import refuse_existing, refuse_unwritable
from splatstudio.gaussians.trimming import KEEP_ALL, Trim
from splatstudio.gui.server.access import THIS_MACHINE, Listen
from splatstudio.kernels.installed import installed_torch, refuse_torch
from splatstudio.rendering.modes import DrawnMode
from splatstudio.runtime.channel.tls import NO_TLS, TlsFiles
from splatstudio.runtime.stop_signals import leave_closed_terminal
from splatstudio.scene.demo import STEPS as DEMO_STEPS
from splatstudio.scene.demo import demo_scene
from splatstudio.settings.config import TrainConfig, check, settings_named, with_whole_paths
from splatstudio.settings.presets import PRESETS, PresetName
from splatstudio.training.device_options import AS_FOUND, DeviceOptions, with_fit_batch

BEGINS_AT_HOME = re.compile(r"(--[\w.-]+=)?(~(?:[/\\].*)?)", re.DOTALL)  # a path, or an option with one
NARROWEST = 20  # columns of a help text; in fewer than six, tyro never ends to wrap it


# Everything that needs torch is imported inside the command that uses it: `--help` must answer at once.

# A setting is an option of its own: --steps, and for those of a group --optim.means-lr.
Settings = Annotated[TrainConfig, tyro.conf.arg(name="")]


def open_(
    path: Positional[Path | None] = None,
    /,
    config: Settings = TrainConfig(),
    preset: PresetName | None = None,
    listen: OmitArgPrefixes[Listen] = THIS_MACHINE,
    devices: OmitArgPrefixes[DeviceOptions] = AS_FOUND,
    run: Path | None = None,
    at_once: OmitArgPrefixes[AtOnce] = AtOnce(),
) -> int:
    """Open a scene folder, photos, a video, a file of splats or a run folder in the studio.

    Args:
        path: What to open; of photos and videos without camera poses these are estimated first. Without
            it a page offers what was opened last, the demo and a field for a path.
        config: Settings of a training that is started from the studio.
        preset: Settings tuned for one goal; those given beside it win.
        listen: Where the page can be reached.
        devices: What trains, and how much fits there.
        run: Folder of the run; by default the newest of this scene below runs/, or a new one.
        at_once: What to do without being asked in the page.
    """
    say_starting()
    given = settings_named(sys.argv[1:])
    config, _ = _with_preset(config, preset, given)
    asked = {"config": config, "given": given, "run_dir": run, "devices": devices}
    at_page = {"train": at_once.train, "browser": at_once.browser}
    if devices.nodes == 1 and (path is None or path.exists()):
        from splatstudio.runtime.fork_server import begin_fork_server

        begin_fork_server()
    from splatstudio.cli.poses import out_of_archive, with_poses
    from splatstudio.cli.start import note_opened, run_until_closed, run_with_start_page, studio_of_choice
    from splatstudio.poses.estimate import lacks_poses
    from splatstudio.scene.layout import holds_several

    if path is None and (at_once.merge or devices.nodes > 1):
        raise ValueError("--merge and --nodes need a path: splatstudio open PATH")
    path = path and out_of_archive(path)
    # The page is there while the poses of photos are estimated, and offers a choice of several scenes.
    if path is None or (devices.nodes == 1 and (lacks_poses(path) or holds_several(path))):
        run_with_start_page(studio_of_choice(listen, **at_page, chosen=path, **asked), asked)
        return 0
    path = with_poses(path)
    from splatstudio.gui.app import open_studio
    from splatstudio.gui.attached import nodes_asked_for

    if at_once.merge:
        path = _whole(path)
    if devices.nodes > 1:
        run_until_closed(nodes_asked_for(sys.argv[2:], path, run, devices, listen), devices)
    else:
        studio = open_studio(path, network=listen, **at_page, **asked)
        note_opened(path)
        run_with_start_page(studio, asked)
    return 0


def demo(
    config: Settings = TrainConfig(steps=DEMO_STEPS),
    preset: PresetName | None = None,
    listen: OmitArgPrefixes[Listen] = THIS_MACHINE,
    devices: OmitArgPrefixes[DeviceOptions] = AS_FOUND,
    run: Path | None = None,
    browser: bool = True,
) -> int:
    """Train the demo scene, which comes with splatstudio, in the studio.

    Args:
        config: The training's settings.
        preset: Settings tuned for one goal; those given beside it win.
        listen: Where the page can be reached.
        devices: What trains, and how much fits there.
        run: Folder of the run; runs/demo by default.
        browser: Open the default browser, where there is a display.
    """
    at_once = AtOnce(train=True, browser=browser)
    return open_(demo_scene(), config, preset, listen, devices, run, at_once)


def poses(path: Positional[Path], /, frames: int | None = None) -> int:
    """Estimate the camera poses of photos or of a video, and report how good they are.

    Everything is kept in the folder .splatstudio beside the photos, which are not changed. Ctrl-C loses
    no finished stage.

    Args:
        path: A folder of photos and videos, or one video.
        frames: How many frames of each video to use; as many as its motion needs, or as were named before.
    """
    from splatstudio.cli.poses import estimate_and_print

    estimate_and_print(path, frames)
    return 0


def train_(
    scene: Positional[Path],
    /,
    config: Settings = TrainConfig(),
    preset: PresetName | None = None,
    devices: OmitArgPrefixes[DeviceOptions] = AS_FOUND,
    of: OmitArgPrefixes[RunOptions] = RunOptions(),
    tls: OmitArgPrefixes[TlsFiles] = NO_TLS,
    json: bool = False,
) -> int | CommandResult:
    """Train a model of a scene, without the studio. Ctrl-C saves and says where.

    Args:
        scene: A COLMAP folder, or one with transforms.json or Blender's files, or photos or a video,
            whose camera poses are estimated first; with --resume a run will do.
        config: The training's settings.
        preset: Settings tuned for one goal; those given beside it win.
        devices: What trains, and how much fits there.
        of: Which run is trained, and for how long.
        tls: How the line to those who attach is encrypted.
        json: Print what it came to as one JSON object, and all else to standard error.
    """
    of.check(preset)
    config, given = _with_preset(config, preset, settings_named(sys.argv[1:]))
    say_starting()
    from splatstudio.cli.poses import with_poses
    from splatstudio.cli.terminal import print_part
    from splatstudio.cli.train import refuse_launched, scene_and_run, train_scene

    scene = with_poses(scene)
    if config.init and not of.resume:
        print_part(Path(config.init))
    scene, run = scene_and_run(scene, of.run, resume=of.resume)
    config = with_whole_paths(config, scene)
    if json:
        refuse_launched()
    return train_scene(
        scene, config, run, resume=of.resume, given=given, minutes=of.minutes, devices=devices, tls=tls
    )


def eval_(
    path: Positional[Path],
    /,
    against: OmitArgPrefixes[Against] = Against(),
    scores: OmitArgPrefixes[Scores] = Scores(),
    part: OmitArgPrefixes[PartChoice] = PartChoice(),
    files: OmitArgPrefixes[ScoreFiles] = ScoreFiles(),
    json: bool = False,
) -> int | CommandResult:
    """Compare a run, a checkpoint or a file of splats with the scene's test photos.

    The scores of a run or its checkpoint are also written to the run's folder: eval/step_N.json and .csv.

    Args:
        path: A run folder, a checkpoint folder, or a file of splats (in the scene's coordinates).
        against: What to compare with.
        scores: What to measure beside PSNR and SSIM.
        part: What is judged where the path is one rank's part of a model.
        files: Where the scores are written beside the terminal.
        json: Print the scores as one JSON object, and all else to standard error.
    """
    files.check()
    say_starting()
    from splatstudio.cli.eval import ComparedPictures, evaluated, print_scored, scored_values, write_scores

    pictures = None if files.pictures is None else ComparedPictures(files.pictures)
    scored = evaluated(path, against, scores, part, pictures)
    if not json:
        print_scored(scored)
    try:
        write_scores(scored.evaluation, files)
        if pictures is not None:
            pictures.conclude()
    except ValueError as error:  # what was measured is told all the same
        if not json:
            raise
        values = scored_values(scored)
        return CommandResult(1, {**values, "notes": (*values["notes"], str(error))})
    code = 1 if scored.lost else 0
    return CommandResult(code, scored_values(scored)) if json else code


def merge_(
    paths: Positional[tuple[str, ...]],
    /,
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
    overwrite: bool = False,
) -> int:
    """Merge the files that the ranks of a training on several GPUs wrote into one model.

    Args:
        paths: gsplat's ckpt_STEP_rankN.pt (all ranks of one step, of one folder or several; a pattern or
            their folder will do), or a run or checkpoint of splatstudio.
        output: What to write: .pt (gsplat's own layout), .ply or another format of `export`; a name without
            an ending is a checkpoint folder.
        overwrite: Replace a file that is there already.
    """
    refuse_existing(output, overwrite)
    from splatstudio.cli.terminal import console
    from splatstudio.models.merging import merged_parts

    merged = merged_parts(paths)
    exported = merged.write(output)
    rows = " + ".join(f"{num:,}" for num in merged.rows)
    whose = f"{len(merged.rows)} ranks" if len(merged.rows) > 1 else "the only rank"
    console.print(f"Step {merged.step}: {rows} = {len(merged):,} splats of {whose}")
    console.print(f"Written to {output}")
    if exported.note:
        console.print(exported.note, style="yellow")
    return 0


def export(
    path: Positional[Path],
    /,
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
    trim: OmitArgPrefixes[Trim] = KEEP_ALL,
    placement: OmitArgPrefixes[Placement] = AS_IN_THE_FILES,
    normals: bool = False,
    strict: bool = False,
    overwrite: bool = False,
) -> int:
    """Write a model for other programs, in the coordinates of the scene's files or upright.

    Args:
        path: A run folder (its newest good checkpoint is taken), a checkpoint folder or a file of splats.
        output: The file to write; its ending says the format: .ply, .compressed.ply, .spz, .sog, .splat,
            .glb (glTF), .pt (gsplat's checkpoint), .points.ply (a point cloud) or .html (a web page).
        trim: What to leave out; a crop box is in the coordinates of the scene's files.
        placement: Coordinate system.
        normals: Write normals into a PLY or a point cloud, where they are 0 or absent by default:
            the shortest axis, on the side of the scene's nearest camera, or without one away from the middle.
        strict: Refuse a file with splats that would be left out, as a value of them is not finite.
        overwrite: Replace files that are there already.
    """
    trim.check()
    for written in (output, placement.cameras):
        refuse_existing(written, overwrite)
    refuse_unwritable(output)
    from splatstudio.cli.export import export_model
    from splatstudio.cli.terminal import console, print_part

    print_part(path)
    exported = export_model(
        path, output, trim, placement, normals=normals, strict=strict, announce=console.print
    )
    form, size = exported.form, output.stat().st_size / 1e6
    assert form is not None, "a file has a format"
    console.print(f"{exported.num_gaussians:,} splats written to {output} as {form.name} ({size:.1f} MB)")
    if exported.num_left_out:
        console.print(f"{exported.num_left_out:,} splats were left out")
    if placement.cameras is not None:
        console.print(f"The photos' cameras written to {placement.cameras}")
    if form.loses:
        console.print(f"Not everything is kept: {form.loses}")
    if exported.note:
        console.print(exported.note, style="yellow")
    return 0


def render(
    path: Positional[Path],
    /,
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
    route: OmitArgPrefixes[Route],
    frames: OmitArgPrefixes[FrameFormat],
    quality: Literal["full", "small"] = "full",
    mode: DrawnMode = "color",
    overwrite: bool = False,
) -> int:
    """Render a camera path as a video, or as PNG frames. Ctrl-C cancels and removes partial output.

    Args:
        path: A run folder (its newest good checkpoint is taken), a checkpoint folder or a file of splats.
        output: What to write: a .mp4, a .webm, or with no ending a folder of PNG frames.
        route: Where the camera goes.
        frames: The frames' size, rate and number.
        quality: Look like the frames themselves, or be quick to send.
        mode: What to show of the model.
        overwrite: Replace a video that is there already.
    """
    route.check()
    if output.suffix and output.is_file():
        refuse_existing(output, overwrite)
    say_starting()
    from splatstudio.cli.render import render_and_print
    from splatstudio.cli.terminal import print_part
    from splatstudio.models.video import check_output

    check_output(output)
    print_part(path)
    render_and_print(path, output, route, frames, quality, mode)
    return 0


def info(
    path: Positional[Path], /, images: str = "", model: int = -1, strict: bool = False, json: bool = False
) -> int | CommandResult:
    """Show what a scene folder, a file of splats, a checkpoint, a run or a folder of runs contains.

    Args:
        path: What to look at; nothing is changed, but an archive is unpacked beside itself.
        images: The folder of a scene's photos, where it is not the one that its files name.
        model: Number of the COLMAP model to look at, of several; -1: the one with most photos.
        strict: Refuse a file of splats of which one has a value that is not finite.
        json: Print it as one JSON object.
    """
    from splatstudio.cli.info import contents_of, print_contents

    found = contents_of(path, images, model, strict=strict)
    if json:
        return CommandResult(0, found.values)
    print_contents(found)
    return 0


def doctor(report: bool = False, run: Path | None = None, json: bool = False) -> int | CommandResult:
    """Check this machine and the installation.

    Args:
        report: Print it as a report to paste into an issue, with versions and the end of a run's log; paths,
            names and secrets are taken out.
        run: Folder of the run that failed, for the report; the newest below runs/ by default.
        json: Print what was found as one JSON object.
    """
    if run is not None and not report:
        raise ValueError("--run is for a report: add --report")
    if report and json:
        raise ValueError("a report is text: omit --json, or --report")
    from splatstudio.cli.terminal import print_findings, print_report

    if json:
        from splatstudio.cli.doctor import findings_values

        values = findings_values()
        return CommandResult(0 if values["good"] else 1, values)
    return print_report(run) if report else print_findings()


def attach_(
    address: Positional[str],
    /,
    token: str | None = None,
    token_file: Path | None = None,
    listen: OmitArgPrefixes[Listen] = THIS_MACHINE,
    terminal: bool = False,
    browser: bool = True,
) -> int:
    """Open the studio for a training that torchrun or Slurm started elsewhere. It continues when you leave.

    Args:
        address: HOST:PORT or tls://HOST:PORT, as the training printed it.
        token: The secret that it printed with it. Others of this machine may see what is typed here: the
            variable SPLATSTUDIO_TOKEN and --token-file hide it.
        token_file: A file that holds the secret alone.
        listen: Where the page can be reached.
        terminal: No page: print what happens, and steer it by typing.
        browser: Open the default browser, where there is a display.
    """
    secret = attach_token(token, token_file)
    say_starting()
    if terminal:
        from splatstudio.cli.attach import attach

        return attach(address, secret, sys.stdin)
    from splatstudio.gui.attached import open_attached

    open_attached(address, secret, network=listen, browser=browser).run_forever()
    return 0


def completion(shell: Positional[Literal["bash", "zsh", "fish"]], /) -> int:
    """Print a script that makes a shell complete commands, options, presets and paths.

    Args:
        shell: The shell that reads it, as: source <(splatstudio completion bash)
    """
    from splatstudio.cli.completion import completion_script

    print(completion_script(shell, COMMANDS))
    return 0


_ALL = (open_, demo, poses, train_, eval_, merge_, export, mesh, render, info, doctor, attach_, completion)
COMMANDS = {command.__name__.rstrip("_"): command for command in _ALL}
for _command in COMMANDS.values():
    # What --help says of an option is broken where the window ends, not where a line of this file does.
    _command.__doc__ = re.sub(r"\n {12,}", " ", _command.__doc__ or "")


def _with_preset(
    config: TrainConfig, preset: PresetName | None, given: frozenset[str]
) -> tuple[TrainConfig, frozenset[str]]:
    """Return the settings with those of the preset, and the names of all that were asked for by either."""
    check(config)
    if preset is None:
        return config, given
    chosen = PRESETS[preset]
    return chosen.apply(config, given), given | frozenset(chosen.settings)


def _whole(path: Path) -> Path:
    """Return the whole model of which `path` is a part, after merging where that is needed."""
    from splatstudio.cli.terminal import console
    from splatstudio.models.merging import merge_to_open

    whole = merge_to_open(path, lambda _done, _total, what: console.print(f"Merging: {what}"))
    console.print(f"Opening {whole}")
    return whole


def run_command(name: str, *arguments: str) -> int | CommandResult:
    """Run a command with its arguments and return the exit code; the options of all would take a while.

    Of a command that is asked for JSON it is what that tells. Raises ValueError where torch is missing or
    too old.
    """
    refuse_torch(installed_torch())
    if shutil.get_terminal_size().columns < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)
    return tyro.cli(COMMANDS[name], prog=f"splatstudio {name}", args=arguments)


def main() -> None:
    """Run the command that the arguments name; a user's mistake gives one sentence and exit code 2."""
    arguments = with_home_folders(with_fit_batch(sys.argv[1:]))
    if (told := answer(arguments)) is not None:
        sys.exit(tell(told))
    if arguments[0] in ("help", "--help", "-h"):
        arguments = [*arguments[1:2], "--help"]
    name, *rest = arguments
    helps = {"-h", "--help", "--help-all"} & set(rest)
    if not helps and "--json" in rest and name in COMMANDS and "json" in options_of(COMMANDS[name]):
        result = _run_for_json(arguments)
    else:
        result = _run(arguments)
    if result.at_once:
        os._exit(result.exit_code)
    sys.exit(result.exit_code)


def _run(arguments: Sequence[str]) -> CommandResult:
    """Run a command and return what it came to; an error that is told in a sentence is printed."""
    from splatstudio.cli.console import print_error

    try:
        refuse_lost_folder()
        if (mistake := mistake_in(arguments, COMMANDS)) is not None:
            raise ValueError(mistake)
        name, *rest = arguments
        if "--help-all" in rest:
            rest = ["--help"]
        elif name in SHORT_HELP and {"-h", "--help"} & set(rest):
            print(short_help(name, COMMANDS[name], shutil.get_terminal_size().columns), flush=True)
            return CommandResult(0, {})
        result = run_command(name, *rest)
        return CommandResult(result, {}) if isinstance(result, int) else result
    except (ValueError, OSError, MemoryError) as error:
        if isinstance(error, BrokenPipeError) and nobody_reads():
            leave_unread()
        print_error(in_words(error))
        return failed(in_words(error))


def with_home_folders(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with ~ replaced where a path begins with it, as in --run=~/runs/garden.

    Of that a shell leaves the ~ as it is, and it would become a folder of that name.
    """
    found = [(word, BEGINS_AT_HOME.fullmatch(word)) for word in arguments]
    return [word if at is None else (at[1] or "") + os.path.expanduser(at[2]) for word, at in found]


def _run_for_json(arguments: Sequence[str]) -> CommandResult:
    """Run a command, and print its result or its error as one JSON object."""
    try:
        with printed_to_stderr():
            result = _run(arguments)
    except BaseException as error:
        print_json(failed(_why_it_ended(error, arguments[0])).values)
        raise
    try:
        print_json(result.values)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and nobody_reads():
            leave_unread()
        if not leave_closed_terminal():
            return CommandResult(not_written(error), {})
    return result


def _why_it_ended(error: BaseException, name: str) -> str:
    """Return a sentence on what ended a command without a result."""
    if isinstance(error, SystemExit) and error.code == AS_SIGPIPE:
        return f"splatstudio {name} was ended, because nobody reads its output"
    if isinstance(error, SystemExit):  # by tyro, which has told more
        return f"the arguments are incomplete or wrong: splatstudio {name} --help explains them"
    if isinstance(error, KeyboardInterrupt):
        return f"splatstudio {name} was ended before it was done"
    return in_words(error) or type(error).__name__

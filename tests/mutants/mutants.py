"""The faults that the tests must find: what is broken, the text that is replaced, the tests that must fail.

Each stands for a mistake that somebody could make. See run.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A fault: `old`, which stands once in `file`, becomes `new`, and one of `tests` fails."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


# The kernels of the CPU.
KERNELS = (
    Mutant(
        "a map of exposures takes brighter for darker on its way back",
        "csrc/bilateral_grid.h",
        "v_color[column] + through + slope * v_place * luma[column];",
        "v_color[column] + through - slope * v_place * luma[column];",
        ("tests/kernels/test_bilateral_grid.py::test_colors_and_gradients_are_those_of_plain_torch",),
    ),
    Mutant(
        "the projection adds too little to colors",
        "csrc/cpu/project_lanes.cpp",
        "const F8 half = constant<F8>(0.5f);",
        "const F8 half = constant<F8>(0.4f);",
        ("tests/kernels/test_ops.py::test_project_equals_the_reference",),
    ),
    Mutant(
        "the projection's gradient of opacities lacks a factor",
        "csrc/cpu/project_lanes.cpp",
        "v_opacity = v_opacity * v.opacity * (constant<F8>(1.0f) - v.opacity);",
        "v_opacity = v_opacity * v.opacity;",
        ("tests/kernels/test_ops.py::test_projecting_raw_parameters_equals_activating_them_before",),
    ),
    Mutant(
        "the rasterizer takes green for blue",
        "csrc/cpu/raster_lanes.cpp",
        "const F8 blue = cell.blue + left * bg[2];",
        "const F8 blue = cell.green + left * bg[2];",
        ("tests/kernels/test_ops.py::test_rasterize_equals_the_reference",),
    ),
    Mutant(
        "the rasterizer's gradient of what lies behind has the wrong sign",
        "csrc/cpu/raster_lanes.cpp",
        "* cell.suffix - gain;",
        "* cell.suffix + gain;",
        ("tests/kernels/test_ops.py::test_rasterize_equals_the_reference",),
    ),
    Mutant(
        "SSIM has another constant",
        "csrc/cpu/loss_lanes.cpp",
        "kC2 = 0.03f * 0.03f",
        "kC2 = 0.04f * 0.04f",
        ("tests/optimization/test_losses.py::test_backends_agree_under_a_mask",),
    ),
    Mutant(
        "SSIM's gradient has a wrong sign",
        "csrc/cpu/loss_lanes.cpp",
        "two * (my * a2 - mx * value * b2)",
        "two * (my * a2 + mx * value * b2)",
        ("tests/optimization/test_losses.py::test_backends_agree_under_a_mask",),
    ),
    Mutant(
        "Adam adds the whole gradient to its mean",
        "csrc/cpu/adam_lanes.cpp",
        "r.rest1 * grad);",
        "grad);",
        ("tests/optimization/test_optim.py::test_ten_steps_equal_torch_adam",),
    ),
    Mutant(
        "rows of harmonics that are left behind make up one step too few",
        "csrc/cpu/adam_lanes.cpp",
        "make_up(r, late.history, done, late.num_steps",
        "make_up(r, late.history, done + 1, late.num_steps",
        ("tests/optimization/test_view_gradients.py::test_rows_left_behind_for_long_make_all_their_steps",),
    ),
    Mutant(
        "gradients on the screen are counted squared",
        "csrc/cpu/adam.cpp",
        "args.grad2d[i] += std::sqrt(gx * gx + gy * gy);",
        "args.grad2d[i] += gx * gx + gy * gy;",
        ("tests/optimization/test_view_gradients.py::test_counts_of_what_was_seen",),
    ),
    Mutant(
        "noise falls too slowly with the opacity",
        "csrc/mcmc.h",
        "constexpr float kNoiseSteepness = 100.0f;",
        "constexpr float kNoiseSteepness = 10.0f;",
        ("tests/kernels/test_mcmc_kernels.py::test_the_noise_is_that_of_the_reference",),
    ),
    Mutant(
        "the parts of a Gaussian are too large",
        "csrc/mcmc.h",
        "total += term / sqrt(n + 1.0);",
        "total += term / (n + 1.0);",
        ("tests/kernels/test_mcmc_kernels.py::test_parts_are_those_of_the_reference",),
    ),
    Mutant(
        "a camera turns twice as far",
        "csrc/pose.h",
        "spin = 0.5 * (w * v_axis",
        "spin = 1.0 * (w * v_axis",
        ("tests/kernels/test_pose_kernels.py::test_the_kernel_says_what_plain_torch_does",),
    ),
    Mutant(
        "the mean of an area counts its columns alone",
        "csrc/cpu/area.cpp",
        "num = (right - left) * (bottom - top);",
        "num = right - left;",
        ("tests/kernels/test_area_means.py::test_the_kernel_does_what_plain_torch_does",),
    ),
    Mutant(
        "of the points at a pixel the first alone says where it should be",
        "csrc/cpu/depth.cpp",
        "args.v_alpha[pixel] += side_of(args.codes[i]);",
        "args.v_alpha[pixel] = side_of(args.codes[i]);",
        ("tests/kernels/test_depth_error.py::test_it_is_that_of_the_reference",),
    ),
    Mutant(
        "who stays in a step has no more opacity",
        "csrc/dropout.h",
        "opacity_of(logit) * constant<F>(gain);",
        "opacity_of(logit) + constant<F>(0.0f * gain);",
        ("tests/optimization/test_dropout.py::test_the_kernel_draws_what_the_reference_does",),
    ),
    Mutant(
        "the median depth is that of a quarter",
        "csrc/cpu/modes_lanes.cpp",
        "half_left = constant<F8>(0.5f);",
        "half_left = constant<F8>(0.25f);",
        ("tests/kernels/test_modes.py::test_pictures_equal_the_reference",),
    ),
    Mutant(
        "the solid mode draws outside the picture's splats",
        "csrc/cpu/modes_lanes.cpp",
        "constant<F8>(rows.dy[cell % kTileSize]), cells[cell]);",
        "constant<F8>(rows.dy[cell / kTileSize]), cells[cell]);",
        ("tests/kernels/test_modes.py::test_a_solid_sphere_has_its_front_where_it_should_be",),
    ),
    Mutant(
        "bytes are rounded down",
        "csrc/cpu/modes_lanes.cpp",
        "args.bytes[i] = byte_of(args.values[i]);",
        "args.bytes[i] = static_cast<uint8_t>(254.99f * args.values[i]);",
        ("tests/kernels/test_modes.py::test_bytes_are_clamped_and_rounded_as_torch_does",),
    ),
)

# Strategies and the optimizer.
STRATEGIES = (
    Mutant(
        "opacities are never reset",
        "splatstudio/strategy/default.py",
        "return step > 0 and step % self.config.reset_every == 0",
        "return step < 0",
        ("tests/strategy/test_strategy.py::test_the_reset_lowers_opacities_at_step_3000_and_not_before",),
    ),
    Mutant(
        "a reset of opacities leaves Adam's moments",
        "splatstudio/strategy/default.py",
        'population.optimizer.forget("opacities")',
        "pass",
        ("tests/strategy/test_strategy.py::test_the_reset_lowers_opacities_at_step_3000_and_not_before",),
    ),
    Mutant(
        "a split keeps the old size",
        "splatstudio/strategy/default.py",
        "scales=parents.scales - math.log(SPLIT_SHRINK)",
        "scales=parents.scales",
        ("tests/strategy/test_strategy.py::test_a_large_gaussian_is_replaced_by_two_smaller_ones_inside_it",),
    ),
    Mutant(
        "the opaque are pruned",
        "splatstudio/strategy/default.py",
        "opacities_of(gaussians.opacities) >= config.prune_opacity",
        "opacities_of(gaussians.opacities) < config.prune_opacity",
        (
            "tests/strategy/test_strategy.py::test_a_small_gaussian_with_a_large_gradient_gets_an_identical_twin",
        ),
    ),
    Mutant(
        "the limit on the number is ignored",
        "splatstudio/strategy/default.py",
        "capped = max(int(ranks.all_reduce(grow.sum().cpu())) - room, 0)",
        "capped = 0",
        ("tests/strategy/test_strategy.py::test_the_limit_lets_the_largest_gradients_grow_first",),
    ),
    Mutant(
        "mcmc takes the opaque for dead",
        "splatstudio/strategy/mcmc.py",
        "alive = (opacities > self.config.mcmc.min_opacity)",
        "alive = (opacities < self.config.mcmc.min_opacity)",
        ("tests/strategy/test_mcmc.py::test_the_dead_move_to_the_living_and_nobody_else_does",),
    ),
    Mutant(
        "fast never thins out",
        "splatstudio/strategy/fast.py",
        "return self.config.densify.enabled and (step == self.thin_step or self.owes)",
        "return False",
        ("tests/strategy/test_fast.py::test_what_no_photo_of_all_needs_goes_when_all_are_asked",),
    ),
    Mutant(
        "counts go on after densification",
        "splatstudio/strategy/population.py",
        "            count.zero_()",
        "            pass",
        ("tests/strategy/test_strategy.py::test_counts_start_anew_after_a_densification",),
    ),
    Mutant(
        "random choices do not follow from the seed",
        "splatstudio/strategy/sampling.py",
        "return torch.Generator().manual_seed(number)",
        ("generator = torch.Generator().manual_seed(number)\n    generator.seed()\n    return generator"),
        ("tests/strategy/test_strategy.py::test_random_numbers_are_of_a_seed_and_a_step_and_of_no_other",),
    ),
    Mutant(
        "Adam does not correct its bias",
        "splatstudio/optimization/optim.py",
        "adam = _adam_of_batch(rates, batch_size, self.num_steps)",
        "adam = _adam_of_batch(rates, batch_size, self.num_steps + 1_000_000)",
        ("tests/optimization/test_optim.py::test_ten_steps_equal_torch_adam",),
    ),
    Mutant(
        "the learning rate of positions does not fall",
        "splatstudio/optimization/optim.py",
        "* haste * config.means_lr_decay**progress",
        "* haste",
        (
            "tests/optimization/test_optim.py::test_the_rate_of_the_means_falls_a_hundredfold_and_the_others_stay",
        ),
    ),
)

# Several ranks.
RANKS = (
    Mutant(
        "a rank skips the broadcast of a long command",
        "splatstudio/runtime/channel/broadcast.py",
        (
            "            body = torch.zeros(length, dtype=torch.uint8)\n"
            "            dist.broadcast(body, 0, group=self._group)"
        ),
        "            body = torch.zeros(length, dtype=torch.uint8)",
        (
            "tests/runtime/channel/test_broadcast.py::test_a_command_of_any_length_arrives_and_the_next_one_after_it",
        ),
    ),
    Mutant(
        "rows go to the wrong rank",
        "splatstudio/distributed/process_ranks.py",
        "dist.all_to_all_single(got, rows, list(received)",
        "dist.all_to_all_single(got, rows.flip(0), list(received)",
        (
            "tests/optimization/test_sharded_gradients.py::test_rank_0_gets_the_model_and_what_a_camera_sees_of_it",
        ),
    ),
    Mutant(
        "a rank counts its own Gaussians alone",
        "splatstudio/strategy/population.py",
        'return int(self.ranks.all_reduce(torch.tensor([len(self)], device="cpu")))',
        "return len(self)",
        ("tests/training/test_sharded_training.py::test_the_limit_holds_for_all_ranks_together",),
    ),
    Mutant(
        "the scores of one rank alone are counted",
        "splatstudio/evaluation/evaluate.py",
        "for text in ranks.all_gather_bytes(message) if text]",
        "for text in ranks.all_gather_bytes(message)[:1] if text]",
        ("tests/training/test_sharded_training.py::test_the_evaluation_is_that_of_the_merged_checkpoint",),
    ),
)

# The background process, its messages and its clients.
RUNTIME = (
    Mutant(
        "a full mailbox drops the newest message",
        "splatstudio/runtime/channel/mailbox.py",
        ("                self._waiting.popitem(last=False)\n                if not self._dropping"),
        ("                self._waiting.popitem(last=True)\n                if not self._dropping"),
        ("tests/runtime/channel/test_channel.py::test_an_outbox_that_nobody_empties_drops_the_oldest",),
    ),
    Mutant(
        "a newer message does not replace the one of its key",
        "splatstudio/runtime/channel/mailbox.py",
        'slot = ("serial", next(self._serial)) if key is None else ("key", key)',
        'slot = ("serial", next(self._serial))',
        ("tests/runtime/channel/test_channel.py::test_an_outbox_never_blocks_and_keeps_the_newest_of_a_key",),
    ),
    Mutant(
        "an outbox loses what waits behind a message",
        "splatstudio/runtime/channel/mailbox.py",
        ("                _, message = self._waiting.popitem(last=False)\n"),
        (
            "                _, message = self._waiting.popitem(last=False)\n"
            "                self._waiting.clear()\n"
        ),
        ("tests/runtime/channel/test_channel.py::test_an_outbox_never_blocks_and_keeps_the_newest_of_a_key",),
    ),
    Mutant(
        "a pause by itself is noted as training",
        "splatstudio/runtime/command_replay.py",
        'self._paused, self._stopped = event.state == "paused", False',
        'self._paused, self._stopped = event.state != "paused", False',
        ("tests/runtime/test_command_replay.py::test_a_new_process_is_told_what_still_holds",),
    ),
    Mutant(
        "an order that a later one replaced waits for ever",
        "splatstudio/runtime/command_replay.py",
        "if number > receipt.number}",
        "if number != receipt.number}",
        (
            "tests/runtime/test_command_replay.py::test_what_no_process_has_begun_with_is_given_to_the_next_in_order",
        ),
    ),
    Mutant(
        "restarts have no limit",
        "splatstudio/runtime/supervisor.py",
        "if self.count >= MAX_RESTARTS:",
        "if self.count >= 1000 * MAX_RESTARTS:",
        ("tests/runtime/test_supervisor.py::test_restarts_are_counted_over_ten_minutes",),
    ),
    Mutant(
        "the same error at the same step restarts again",
        "splatstudio/runtime/supervisor.py",
        "if before == self._last:",
        "if before == ():",
        ("tests/runtime/test_supervisor.py::test_the_same_end_at_the_same_step_is_not_tried_again",),
    ),
    Mutant(
        "a frame's slot is never returned",
        "splatstudio/runtime/view_renderer.py",
        ("            self._free.add(slot)\n"),
        ("            pass\n"),
        ("tests/runtime/test_worker_modes.py::test_a_wall_has_the_depth_and_the_normal_that_it_has",),
    ),
    Mutant(
        "a task's end is told to the first client",
        "splatstudio/runtime/channel/hub.py",
        "owner[0].client.receive(replace(event",
        "self._connections[0].client.receive(replace(event",
        ("tests/runtime/channel/test_remote.py::test_tasks_of_two_who_watch_are_told_apart",),
    ),
    Mutant(
        "a remote client may send any command",
        "splatstudio/runtime/channel/remote_server.py",
        "if type(command) not in REMOTE_COMMANDS:",
        "if not isinstance(command, Command):",
        (
            "tests/runtime/channel/test_remote_hostile.py::test_one_with_the_token_is_let_go_for_what_is_no_command",
        ),
    ),
    Mutant(
        "a remote client may write anywhere",
        "splatstudio/runtime/channel/remote_server.py",
        "if not any(folder in path.parents for folder in folders):",
        "if not folders:",
        (
            "tests/runtime/channel/test_remote_hostile.py::test_from_outside_nothing_is_written_but_into_two_folders",
        ),
    ),
    Mutant(
        "every proof of the token is right",
        "splatstudio/runtime/channel/remote_server.py",
        "return given.isascii() and hmac.compare_digest(given, expected)",
        "return given.isascii()",
        ("tests/runtime/channel/test_remote_hostile.py::test_a_proof_is_of_one_conversation_only",),
    ),
    Mutant(
        "the rank that lost its peer is blamed",
        "splatstudio/runtime/root_cause.py",
        "key=lambda report: (report.of_a_peer, report",
        "key=lambda report: (not report.of_a_peer, report",
        ("tests/runtime/test_supervisor.py::test_the_earliest_error_of_a_ranks_own_is_to_blame",),
    ),
    Mutant(
        "a frozen rank is not noticed",
        "splatstudio/runtime/heartbeat.py",
        "self._frozen_for[rank] += elapsed",
        "self._frozen_for[rank] += 0.0",
        (
            "tests/runtime/test_supervisor.py::test_a_rank_is_silent_when_its_process_or_its_main_thread_stands_still",
        ),
    ),
)

# Checkpoints and formats.
FILES = (
    Mutant(
        "a checkpoint's rows are not waited for on the disk",
        "splatstudio/checkpoints/manifest.py",
        ("        os.fsync(stream.fileno())\n"),
        "",
        (
            "tests/checkpoints/test_checkpoint.py::test_rows_are_on_the_disk_before_the_checkpoint_has_its_name",
        ),
    ),
    Mutant(
        "a file takes its name before it is on the disk",
        "splatstudio/files/durable.py",
        ("            file.flush()\n            os.fsync(file.fileno())"),
        "            file.flush()",
        (
            "tests/files/test_durable.py::test_content_is_on_the_disk_before_the_name_and_the_name_before_the_end",
        ),
    ),
    Mutant(
        "a checkpoint is there before its manifest",
        "splatstudio/checkpoints/checkpoint.py",
        (
            "    write_manifest(staging, checkpoint, shards)\n"
            "    if final.exists():\n"
            "        put_in_place(final, replaced)\n"
            "    try:\n"
            "        put_in_place(staging, final)\n"
        ),
        (
            "    if final.exists():\n"
            "        put_in_place(final, replaced)\n"
            "    try:\n"
            "        put_in_place(staging, final)\n"
            "        write_manifest(final, checkpoint, shards)\n"
        ),
        ("tests/checkpoints/test_checkpoint_faults.py::test_a_checkpoint_takes_its_name_when_it_is_whole",),
    ),
    Mutant(
        "a shard's hash is not compared",
        "splatstudio/checkpoints/manifest.py",
        "sha256_of(file) != sha256:",
        "not sha256_of(file):",
        ("tests/checkpoints/test_checkpoint.py::test_damage_gives_one_sentence_with_the_file",),
    ),
    Mutant(
        "parts of different steps are merged",
        "splatstudio/checkpoints/rank_parts.py",
        "    if len(steps) > 1:",
        "    if len(steps) > 99:",
        ("tests/models/test_merging.py::test_wrong_lists_are_named",),
    ),
    Mutant(
        "a manifest of another step is taken",
        "splatstudio/checkpoints/manifest.py",
        'if step_of(folder) not in (None, manifest["step"]):',
        "if step_of(folder) == -1:",
        ("tests/checkpoints/test_checkpoint.py::test_a_folder_of_another_step_is_named",),
    ),
    Mutant(
        "going on from a checkpoint forgets Adam's moments",
        "splatstudio/checkpoints/manifest.py",
        "SplatAdam(groups[1], groups[2])",
        "SplatAdam.zeros(groups[0])",
        ("tests/checkpoints/test_checkpoint.py::test_everything_comes_back",),
    ),
    Mutant(
        "a PLY holds opacities, not their logits",
        "splatstudio/formats/ply.py",
        "        if not all_finite(rows[:here]):",
        (
            '        views["opacities"][:] = 1.0 / (1.0 + np.exp(-views["opacities"]))\n'
            "        if not all_finite(rows[:here]):"
        ),
        ("tests/formats/test_ply.py::test_there_and_back",),
    ),
    Mutant(
        "a PLY's quaternions have another order",
        "splatstudio/formats/ply.py",
        'ROTATION = ["rot_0", "rot_1", "rot_2", "rot_3"]',
        'ROTATION = ["rot_0", "rot_3", "rot_2", "rot_1"]',
        ("tests/formats/test_ply.py::test_the_layout",),
    ),
    Mutant(
        "a PLY's harmonics stand in reverse order",
        "splatstudio/formats/ply.py",
        '"shN": rest.transpose(0, 2, 1),',
        '"shN": rest.transpose(0, 2, 1)[:, ::-1],',
        ("tests/formats/test_ply.py::test_there_and_back",),
    ),
    Mutant(
        "harmonics of degree 1 are turned in the order x, y, z",
        "splatstudio/formats/model_arrays.py",
        'ODD_AXES = ["y", "z", "x", ',
        'ODD_AXES = ["x", "y", "z", ',
        ("tests/formats/test_formats.py::test_a_reader_of_gltf_finds_every_value",),
    ),
    Mutant(
        "SPZ's sizes are off by one",
        "splatstudio/formats/spz.py",
        "rounded(LOG_SCALE_STEPS * (part.scales + LOG_SCALE_SHIFT), 0, 255)",
        "rounded(LOG_SCALE_STEPS * (part.scales + 9.0), 0, 255)",
        ("tests/formats/test_formats.py::test_there_and_back",),
    ),
    Mutant(
        "SOG takes the next entry of the codebook",
        "splatstudio/formats/sog.py",
        "return np.searchsorted(middles, values).astype(np.uint8)",
        "return np.minimum(np.searchsorted(middles, values) + 1, 255).astype(np.uint8)",
        ("tests/formats/test_sog.py::test_a_codebook_is_close_to_every_value",),
    ),
)

# Scenes, scores, settings and the page.
REST = (
    Mutant(
        "test photos are trained on",
        "splatstudio/scene/scene.py",
        "return tuple(i for i in range(len(self.views)) if i not in held_out)",
        "return tuple(range(len(self.views) + 0 * len(held_out)))",
        (
            "tests/training/test_trainer.py::test_every_training_photo_is_used_once_an_epoch_and_no_test_photo",
        ),
    ),
    Mutant(
        "photos are not turned upright",
        "splatstudio/scene/photo.py",
        "pixels = oriented(decode(view.image_path), view.orientation)",
        "pixels = decode(view.image_path)",
        ("tests/scene/test_photo.py::test_exif_orientation_is_decided_by_the_camera_size",),
    ),
    Mutant(
        "a lens bends the other way",
        "splatstudio/scene/lens_models.py",
        "bent = points * _polynomial(_squared(points), (k1, k2, k3, k4)) +",
        "bent = points * _polynomial(-_squared(points), (k1, k2, k3, k4)) +",
        ("tests/scene/test_photo.py::test_undistorted_photo_shows_what_its_camera_says",),
    ),
    Mutant(
        "a mask shows what it should hide",
        "splatstudio/scene/photo.py",
        "np.any(channels[..., :num_colors] > 0, axis=2)",
        "np.any(channels[..., :num_colors] == 0, axis=2)",
        ("tests/scene/test_photo.py::test_masks_beside_images_are_found_and_reduced_strictly",),
    ),
    Mutant(
        "PSNR counts colors beyond white",
        "splatstudio/optimization/losses.py",
        "error = (image.clamp(0.0, 1.0) - target.clamp(0.0, 1.0)) ** 2",
        "error = (image - target) ** 2",
        ("tests/optimization/test_losses.py::test_psnr",),
    ),
    Mutant(
        "a setting may be above its range",
        "splatstudio/settings/config.py",
        "if declared.high is not None and not number <= declared.high:",
        "if declared.high is not None and number != number:",
        ("tests/settings/test_config.py::test_a_wrong_value_is_refused_with_its_name",),
    ),
    Mutant(
        "no setting may change while it trains",
        "splatstudio/training/trainer.py",
        "if not declaration(TrainConfig, path).live:",
        'if path != "":',
        ("tests/training/test_trainer.py::test_a_live_setting_takes_effect_at_the_next_step",),
    ),
    Mutant(
        "a page under a foreign name is let in",
        "splatstudio/gui/server/access.py",
        'if match is None or not self._is_ours(match["name"].rstrip(".")):',
        "if match is None:",
        ("tests/gui/test_gate.py::test_strangers_stay_outside_and_are_counted",),
    ),
    Mutant(
        "the button that pauses resumes",
        "splatstudio/gui/state/controller.py",
        "self.send(messages.Pause())",
        "self.send(messages.Resume())",
        (
            "tests/gui/test_controller.py::test_a_training_that_comes_back_can_be_told_to_stand_still_and_to_go_on",
        ),
    ),
    Mutant(
        "panels are not told of events",
        "splatstudio/gui/app.py",
        "                panel.follow(event)",
        "                pass",
        (
            "tests/gui/test_app.py::test_a_second_model_of_the_same_step_is_drawn_and_a_bad_panel_stops_nothing",
        ),
    ),
    Mutant(
        "the stream does not wait for the browser",
        "splatstudio/gui/state/stream.py",
        "if self._acknowledged is None or",
        "if self._acknowledged is None or self._shown or",
        ("tests/gui/test_stream.py::test_the_next_picture_waits_for_the_browser",),
    ),
)

MUTANTS = (*KERNELS, *STRATEGIES, *RANKS, *RUNTIME, *FILES, *REST)

// The operators that Python calls; each backend brings its own code for them.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(splatstudio, m) {
  m.def(
      "project_fwd(Tensor means, Tensor quats, Tensor scales, Tensor opacities, Tensor sh0, "
      "Tensor shN, float[] view, int[] options, int num_threads) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "project_bwd(Tensor means, Tensor quats, Tensor scales, Tensor opacities, Tensor sh0, "
      "Tensor shN, Tensor radii, Tensor colors, Tensor v_means2d, Tensor v_conics, "
      "Tensor v_depths, Tensor v_opacities, Tensor v_colors, float[] view, int[] options, "
      "int num_threads) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "project_bwd_add(Tensor(a!)[] sums, Tensor means, Tensor quats, Tensor scales, Tensor "
      "opacities, Tensor sh0, "
      "Tensor shN, Tensor radii, Tensor colors, Tensor v_means2d, Tensor v_conics, "
      "Tensor v_depths, Tensor v_opacities, Tensor v_colors, float[] view, int[] options, "
      "int num_threads) -> ()");
  m.def(
      "bin(Tensor means2d, Tensor conics, Tensor depths, Tensor opacities, Tensor colors, "
      "Tensor radii, int width, int height, int num_threads) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "bin_within(Tensor means2d, Tensor conics, Tensor depths, Tensor opacities, Tensor colors, "
      "Tensor radii, int width, int height, int room) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "raster_fwd(Tensor splats, Tensor order, Tensor splat_starts, Tensor tile_starts, "
      "Tensor instances, Tensor slots, Tensor background, int width, int height, "
      "float max_alpha, int num_threads) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "raster_picture(Tensor splats, Tensor order, Tensor splat_starts, Tensor tile_starts, "
      "Tensor instances, Tensor slots, Tensor background, int width, int height, "
      "float max_alpha) -> (Tensor, Tensor, Tensor)");
  m.def(
      "raster_bwd(Tensor splats, Tensor order, Tensor splat_starts, Tensor tile_starts, "
      "Tensor instances, Tensor slots, Tensor masks, Tensor tile_ends, Tensor rgb, Tensor alpha, "
      "Tensor depth_sum, Tensor? v_rgb, Tensor? v_alpha, Tensor? v_depth_sum, int num, "
      "float max_alpha, bool absgrad, bool with_probe, int num_threads) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "raster_slab(Tensor splats, Tensor order, Tensor splat_starts, Tensor tile_starts, "
      "Tensor instances, Tensor slots, Tensor masks, Tensor tile_ends, Tensor rgb, Tensor alpha, "
      "Tensor depth_sum, Tensor? v_rgb, Tensor? v_alpha, Tensor? v_depth_sum, float max_alpha, "
      "bool absgrad) -> Tensor");
  m.def(
      "gather_slab(Tensor splats, Tensor order, Tensor splat_starts, Tensor slab, int num, "
      "bool absgrad, bool with_probe) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "image_loss(Tensor image, Tensor target, Tensor? mask, float l1_weight, "
      "float ssim_weight, bool same_padding, bool with_grad, int num_threads) "
      "-> (Tensor, Tensor)");
  m.def(
      "adam_step(Tensor(a!) param, Tensor grad, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, "
      "float[] rates, int step, int num_threads) -> ()");
  m.def(
      "adam_step_within(Tensor(a!) param, Tensor grad, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, "
      "float[] rates, int step, Tensor? visible, Tensor num_instances, int room, Tensor loss) "
      "-> ()");
  m.def(
      "project_adam(Tensor(a!)[] params, Tensor(b!)[] exp_avg, Tensor(c!)[] exp_avg_sq, "
      "Tensor radii, Tensor colors, Tensor[] v_projected, float[] view, int[] options, "
      "float[] rates, float[] regularization, int step, Tensor(d!) steps_done, "
      "Tensor(e!) history, int num_late, int used_columns, bool visible_only, int num_threads) "
      "-> ()");
  m.def(
      "project_adam_within(Tensor(a!)[] params, Tensor(b!)[] exp_avg, Tensor(c!)[] exp_avg_sq, "
      "Tensor radii, Tensor colors, Tensor[] v_projected, float[] view, int[] options, "
      "float[] rates, float[] regularization, int step, Tensor(d!) steps_done, "
      "Tensor(e!) history, int num_late, int used_columns, bool visible_only, "
      "Tensor num_instances, int room, Tensor loss) -> ()");
  m.def(
      "project_adam_views(Tensor(a!)[] params, Tensor(b!)[] exp_avg, Tensor(c!)[] exp_avg_sq, "
      "Tensor[] places, Tensor[] colors, Tensor[] v, float[] cameras, int[] options, "
      "float[] rates, float[] regularization, int step, int used_columns, bool visible_only, "
      "int num_threads) -> ()");
  m.def(
      "flush_lazy_adam(Tensor(a!) shN, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, "
      "Tensor(d!) steps_done, Tensor history, int num_late, int used_columns, float[] betas, "
      "int num_threads, Tensor? num_instances=None, int room=0, Tensor? loss=None) -> ()");
  m.def(
      "project_lazy(Tensor(a!)[] params, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, "
      "float[] view, int[] options, Tensor(d!) steps_done, Tensor history, int num_late, "
      "int used_columns, float[] betas, int num_threads, Tensor? num_instances=None, int room=0, "
      "Tensor? loss=None) -> Tensor[]");
  m.def(
      "count_seen(Tensor gradients2d, Tensor radii, int width, int height, Tensor(a!) grad2d, "
      "Tensor(b!) visible, Tensor(c!)? radius2d, int num_threads) -> ()");
  m.def(
      "count_seen_within(Tensor gradients2d, Tensor radii, int width, int height, "
      "Tensor(a!) grad2d, Tensor(b!) visible, Tensor(c!)? radius2d, Tensor num_instances, "
      "int room, Tensor loss) -> ()");
  m.def(
      "inject_noise_within(Tensor(a!) means, Tensor quats, Tensor scales, Tensor opacities, "
      "float amount, float min_opacity, int seed, Tensor num_instances, int room, Tensor loss, "
      "Tensor? places=None) -> ()");
  m.def(
      "inject_noise(Tensor(a!) means, Tensor quats, Tensor scales, Tensor opacities, float amount, "
      "float min_opacity, int seed, int num_threads, Tensor? places=None) -> ()");
  m.def(
      "pose_gradient(Tensor means, Tensor quats, Tensor shN, Tensor v_means, Tensor v_quats, "
      "Tensor? v_sh0, Tensor radii, float[] view, int sh_degree, int num_threads) -> Tensor");
  m.def(
      "depth_error(Tensor alpha, Tensor depth_sum, Tensor? mask, Tensor points, float[] view, "
      "float unit, int num_threads) -> (Tensor, Tensor, Tensor)");
  m.def(
      "depth_error_bwd(Tensor alpha, Tensor depth_sum, Tensor share, Tensor codes, Tensor v_error, "
      "int num_threads) -> (Tensor, Tensor)");
  m.def("drop_out(Tensor opacities, Tensor keys, int seed, float rate, int num_threads) -> Tensor");
  m.def("bilateral_grid(Tensor rgb, Tensor grid, int num_threads) -> Tensor");
  m.def(
      "bilateral_grid_bwd(Tensor rgb, Tensor grid, Tensor v_colors, int num_threads) -> (Tensor, "
      "Tensor)");
  m.def("area_means(Tensor image, int width, int height, int num_threads) -> Tensor");
  m.def("compute_relocation(Tensor opacities, Tensor copies, int num_threads) -> (Tensor, Tensor)");
  m.def(
      "splat_shapes(Tensor means, Tensor quats, Tensor scales, Tensor radii, float[] view, "
      "int[] options, int num_threads) -> (Tensor, Tensor)");
  m.def(
      "raster_median(Tensor splats, Tensor order, Tensor splat_starts, Tensor tile_starts, "
      "Tensor instances, Tensor slots, int width, int height, float max_alpha, int num_threads) "
      "-> (Tensor, Tensor)");
  m.def(
      "raster_solid(Tensor splats, Tensor order, Tensor splat_starts, Tensor tile_starts, "
      "Tensor instances, Tensor slots, Tensor surfaces, Tensor background, int width, int height, "
      "int num_threads) -> (Tensor, Tensor)");
  m.def("to_uint8(Tensor image, int num_threads) -> Tensor");
  m.def("instruction_set() -> str");
}

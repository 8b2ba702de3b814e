// The binding of what only a training needs: the fused optimizer, a strategy's counts, on the CPU.
#include <torch/csrc/stable/library.h>

#include <tuple>
#include <vector>

#include "binding_training.h"

namespace {

using namespace splat::binding;

constexpr char kNoGate[] = "the CPU knows whether a step was made";

void adam_step(const Tensor& param, const Tensor& grad, const Tensor& exp_avg,
               const Tensor& exp_avg_sq, const std::vector<double>& rates, int64_t step,
               int64_t num_threads) {
  splat::cpu::adam_step(adam_of(param, grad, exp_avg, exp_avg_sq, rates, step),
                        static_cast<int>(num_threads));
}

// Makes one step of Adam on all six tensors, from the gradients of the projected Gaussians.
// `rates`: six learning rates and beta1, beta2, eps. `regularization`: the weights of the mean
// opacity and of the mean scale. `late`: num_steps after this one; -1 if shN makes no step.
void project_adam(const Tensors& params, const Tensors& exp_avg, const Tensors& exp_avg_sq,
                  const Tensor& radii, const Tensor& colors, const Tensors& v_projected,
                  const std::vector<double>& view, const std::vector<int64_t>& options,
                  const std::vector<double>& rates, const std::vector<double>& regularization,
                  int64_t step, const Tensor& steps_done, const Tensor& history, int64_t num_late,
                  int64_t used_columns, bool visible_only, int64_t num_threads) {
  splat::ProjectAdam args = project_adam_of(params, exp_avg, exp_avg_sq, radii, colors, v_projected,
                                            view, options, rates, regularization, step);
  use_columns(args, used_columns, visible_only);
  leave_rows_behind(args, steps_done, history, num_late);
  splat::cpu::project_adam(args, static_cast<int>(num_threads));
}

// The same from the gradients of several views, of which each has rows for what it shows alone.
void project_adam_views(const Tensors& params, const Tensors& exp_avg, const Tensors& exp_avg_sq,
                        const Tensors& places, const Tensors& colors, const Tensors& v,
                        const std::vector<double>& cameras, const std::vector<int64_t>& options,
                        const std::vector<double>& rates, const std::vector<double>& regularization,
                        int64_t step, int64_t used_columns, bool visible_only,
                        int64_t num_threads) {
  splat::ViewsAdam args =
      views_adam_of(adam_of_model(params, exp_avg, exp_avg_sq, rates, regularization, step), places,
                    colors, v, cameras, options);
  use_columns(args.step, used_columns, visible_only);
  splat::cpu::project_adam_views(args, static_cast<int>(num_threads));
}

void flush_lazy_adam(const Tensor& shN, const Tensor& exp_avg, const Tensor& exp_avg_sq,
                     const Tensor& steps_done, const Tensor& history, int64_t num_late,
                     int64_t used_columns, const std::vector<double>& betas, int64_t num_threads,
                     const OptionalTensor& num_instances, int64_t /*room*/,
                     const OptionalTensor& /*loss*/) {
  STD_TORCH_CHECK(!num_instances.has_value(), kNoGate);
  const splat::SettleAdam late =
      settle_adam_of(shN, exp_avg, exp_avg_sq, steps_done, history, num_late, used_columns, betas);
  splat::cpu::flush_lazy_adam(late, static_cast<int>(num_threads));
}

// Projects as `project_fwd` does, but what is visible first makes up for the steps of its shN.
Tensors project_lazy(const Tensors& params, const Tensor& exp_avg, const Tensor& exp_avg_sq,
                     const std::vector<double>& view, const std::vector<int64_t>& options,
                     const Tensor& steps_done, const Tensor& history, int64_t num_late,
                     int64_t used_columns, const std::vector<double>& betas, int64_t num_threads,
                     const OptionalTensor& num_instances, int64_t /*room*/,
                     const OptionalTensor& /*loss*/) {
  STD_TORCH_CHECK(!num_instances.has_value(), kNoGate);
  const auto [bound, late] = project_lazy_of(params, exp_avg, exp_avg_sq, view, options, steps_done,
                                             history, num_late, used_columns, betas);
  splat::ProjectFwd args = bound.args;
  args.late = &late;
  splat::cpu::project_fwd(args, static_cast<int>(num_threads));
  return tensors_of(bound.outputs);
}

void count_seen(const Tensor& gradients2d, const Tensor& radii, int64_t width, int64_t height,
                const Tensor& grad2d, const Tensor& visible, const OptionalTensor& radius2d,
                int64_t num_threads) {
  const splat::SeenCounts args =
      seen_counts_of(gradients2d, radii, width, height, grad2d, visible, radius2d);
  splat::cpu::count_seen(args, static_cast<int>(num_threads));
}

void inject_noise(const Tensor& means, const Tensor& quats, const Tensor& scales,
                  const Tensor& opacities, double amount, double min_opacity, int64_t seed,
                  int64_t num_threads, const OptionalTensor& places) {
  const splat::InjectNoise args =
      inject_noise_of(means, quats, scales, opacities, places, amount, min_opacity, seed);
  splat::cpu::inject_noise(args, static_cast<int>(num_threads));
}

// Returns the gradient with respect to a twist of the camera, [6] float64: the shift, the turn.
Tensor pose_gradient(const Tensor& means, const Tensor& quats, const Tensor& shN,
                     const Tensor& v_means, const Tensor& v_quats, const OptionalTensor& v_sh0,
                     const Tensor& radii, const std::vector<double>& view, int64_t sh_degree,
                     int64_t num_threads) {
  const splat::PoseGradient args =
      pose_gradient_of(means, quats, shN, v_means, v_quats, v_sh0, radii, view, sh_degree);
  const Tensor twist = empty({splat::kTwist}, ScalarType::Double);
  splat::cpu::pose_gradient(args, static_cast<double*>(twist.data_ptr()),
                            static_cast<int>(num_threads));
  return twist;
}

// Returns `image`, floats or bytes, as floats of another size, [height, width, C].
Tensor area_means(const Tensor& image, int64_t width, int64_t height, int64_t num_threads) {
  const auto [args, means] = area_means_of(image, width, height);
  splat::cpu::area_means(args, static_cast<int>(num_threads));
  return means;
}

// Returns the colors under a grid of affine maps.
Tensor bilateral_grid(const Tensor& rgb, const Tensor& grid, int64_t num_threads) {
  const auto [args, colors] = bilateral_grid_colors_of(rgb, grid);
  splat::cpu::bilateral_grid(args, static_cast<int>(num_threads));
  return colors;
}

// Returns the gradients of rgb and grid.
std::tuple<Tensor, Tensor> bilateral_grid_bwd(const Tensor& rgb, const Tensor& grid,
                                              const Tensor& v_colors, int64_t num_threads) {
  const auto [args, v_rgb, v_grid] = bilateral_grid_gradient_of(rgb, grid, v_colors);
  splat::cpu::bilateral_grid_bwd(args, static_cast<int>(num_threads));
  return {v_rgb, v_grid};
}

// Returns the opacity of each part, and by what its size is multiplied.
std::tuple<Tensor, Tensor> compute_relocation(const Tensor& opacities, const Tensor& copies,
                                              int64_t num_threads) {
  const auto [args, each, factors] = parting_of(opacities, copies);
  splat::cpu::part(args, static_cast<int>(num_threads));
  return {each, factors};
}

// Returns the error, what each point that counts adds to it for 1 / scene unit, and codes.
std::tuple<Tensor, Tensor, Tensor> depth_error(const Tensor& alpha, const Tensor& depth_sum,
                                               const OptionalTensor& mask, const Tensor& points,
                                               const std::vector<double>& view, double unit,
                                               int64_t num_threads) {
  const auto [args, error, share, codes] =
      depth_error_of(alpha, depth_sum, mask, points, view, unit);
  splat::cpu::depth_error(args, static_cast<int>(num_threads));
  return {error, share, codes};
}

// Returns the gradients of alpha and depth_sum.
std::tuple<Tensor, Tensor> depth_error_bwd(const Tensor& alpha, const Tensor& depth_sum,
                                           const Tensor& share, const Tensor& codes,
                                           const Tensor& v_error, int64_t num_threads) {
  const auto bound = depth_gradient_of(alpha, depth_sum, share, codes, v_error);
  splat::cpu::depth_error_bwd(bound.args, static_cast<int>(num_threads));
  return {bound.v_alpha, bound.v_depth_sum};
}

// Returns the logits with which a step draws `opacities`.
Tensor drop_out(const Tensor& opacities, const Tensor& keys, int64_t seed, double rate,
                int64_t num_threads) {
  const auto [args, shown] = drop_out_of(opacities, keys, seed, rate);
  splat::cpu::drop_out(args, static_cast<int>(num_threads));
  return shown;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(splatstudio, CPU, m) {
  m.impl("adam_step", TORCH_BOX(&adam_step));
  m.impl("project_adam", TORCH_BOX(&project_adam));
  m.impl("project_adam_views", TORCH_BOX(&project_adam_views));
  m.impl("project_lazy", TORCH_BOX(&project_lazy));
  m.impl("flush_lazy_adam", TORCH_BOX(&flush_lazy_adam));
  m.impl("count_seen", TORCH_BOX(&count_seen));
  m.impl("inject_noise", TORCH_BOX(&inject_noise));
  m.impl("pose_gradient", TORCH_BOX(&pose_gradient));
  m.impl("area_means", TORCH_BOX(&area_means));
  m.impl("bilateral_grid", TORCH_BOX(&bilateral_grid));
  m.impl("bilateral_grid_bwd", TORCH_BOX(&bilateral_grid_bwd));
  m.impl("compute_relocation", TORCH_BOX(&compute_relocation));
  m.impl("depth_error", TORCH_BOX(&depth_error));
  m.impl("depth_error_bwd", TORCH_BOX(&depth_error_bwd));
  m.impl("drop_out", TORCH_BOX(&drop_out));
}

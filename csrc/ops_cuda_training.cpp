// The binding of what only a training needs, on a GPU: the fused optimizer, a strategy's counts.
#include <torch/csrc/stable/library.h>

#include <tuple>
#include <vector>

#include "binding_training.h"
#include "on_device.h"

namespace {

using namespace splat::binding;  // NOLINT

// Open where `num_instances` [1] of a picture are at most `room` and `loss` is a number.
splat::StepGate gate_of(const Tensor& num_instances, int64_t room, const Tensor& loss) {
  return {ints<int64_t>(num_instances, {1}, "num_instances"), room, floats(loss, {}, "loss")};
}

void adam_step(const Tensor& param, const Tensor& grad, const Tensor& exp_avg,
               const Tensor& exp_avg_sq, const std::vector<double>& rates, int64_t step,
               int64_t /*num_threads*/) {
  const OnDevice device(param);
  splat::cuda::adam_step(adam_of(param, grad, exp_avg, exp_avg_sq, rates, step), device.stream());
}

// As all that is `_within` with a gate: where it is shut nothing changes. `visible` [rows] bool
// leaves out rows, too.
void adam_step_within(const Tensor& param, const Tensor& grad, const Tensor& exp_avg,
                      const Tensor& exp_avg_sq, const std::vector<double>& rates, int64_t step,
                      const OptionalTensor& visible, const Tensor& num_instances, int64_t room,
                      const Tensor& loss) {
  const OnDevice device(param);
  const splat::Adam args = adam_of(param, grad, exp_avg, exp_avg_sq, rates, step);
  const int64_t rows = param.size(0);
  const uint8_t* chosen = nullptr;
  if (visible.has_value()) {
    check(*visible, ScalarType::Bool, {rows}, "visible");
    chosen = static_cast<const uint8_t*>(visible->data_ptr());
  }
  const int64_t width = rows > 0 ? args.num / rows : 1;
  splat::cuda::adam_step_within(args, chosen, width, gate_of(num_instances, room, loss),
                                device.stream());
}

// As in ops_training.cpp.
void project_adam(const Tensors& params, const Tensors& exp_avg, const Tensors& exp_avg_sq,
                  const Tensor& radii, const Tensor& colors, const Tensors& v_projected,
                  const std::vector<double>& view, const std::vector<int64_t>& options,
                  const std::vector<double>& rates, const std::vector<double>& regularization,
                  int64_t step, const Tensor& steps_done, const Tensor& history, int64_t num_late,
                  int64_t used_columns, bool visible_only, int64_t /*num_threads*/) {
  const OnDevice device(radii);
  splat::ProjectAdam args = project_adam_of(params, exp_avg, exp_avg_sq, radii, colors, v_projected,
                                            view, options, rates, regularization, step);
  use_columns(args, used_columns, visible_only);
  leave_rows_behind(args, steps_done, history, num_late);
  splat::cuda::project_adam(args, {}, device.stream());
}

// The same with a gate.
void project_adam_within(const Tensors& params, const Tensors& exp_avg, const Tensors& exp_avg_sq,
                         const Tensor& radii, const Tensor& colors, const Tensors& v_projected,
                         const std::vector<double>& view, const std::vector<int64_t>& options,
                         const std::vector<double>& rates,
                         const std::vector<double>& regularization, int64_t step,
                         const Tensor& steps_done, const Tensor& history, int64_t num_late,
                         int64_t used_columns, bool visible_only, const Tensor& num_instances,
                         int64_t room, const Tensor& loss) {
  const OnDevice device(radii);
  splat::ProjectAdam args = project_adam_of(params, exp_avg, exp_avg_sq, radii, colors, v_projected,
                                            view, options, rates, regularization, step);
  use_columns(args, used_columns, visible_only);
  leave_rows_behind(args, steps_done, history, num_late);
  splat::cuda::project_adam(args, gate_of(num_instances, room, loss), device.stream());
}

void project_adam_views(const Tensors& params, const Tensors& exp_avg, const Tensors& exp_avg_sq,
                        const Tensors& places, const Tensors& colors, const Tensors& v,
                        const std::vector<double>& cameras, const std::vector<int64_t>& options,
                        const std::vector<double>& rates, const std::vector<double>& regularization,
                        int64_t step, int64_t used_columns, bool visible_only,
                        int64_t /*num_threads*/) {
  const OnDevice device(first_of(params));
  splat::ViewsAdam args =
      views_adam_of(adam_of_model(params, exp_avg, exp_avg_sq, rates, regularization, step), places,
                    colors, v, cameras, options);
  use_columns(args.step, used_columns, visible_only);
  splat::cuda::project_adam_views(args, device.stream());
}

// The gate of the last step of a history; without one the step was made.
splat::StepGate gate_of_last(const OptionalTensor& num_instances, int64_t room,
                             const OptionalTensor& loss) {
  if (!num_instances.has_value()) return {};
  STD_TORCH_CHECK(loss.has_value(), "a gate has a number of instances and a loss");
  return gate_of(*num_instances, room, *loss);
}

Tensors project_lazy(const Tensors& params, const Tensor& exp_avg, const Tensor& exp_avg_sq,
                     const std::vector<double>& view, const std::vector<int64_t>& options,
                     const Tensor& steps_done, const Tensor& history, int64_t num_late,
                     int64_t used_columns, const std::vector<double>& betas,
                     int64_t /*num_threads*/, const OptionalTensor& num_instances, int64_t room,
                     const OptionalTensor& loss) {
  const OnDevice device(exp_avg);
  const auto [bound, late] = project_lazy_of(params, exp_avg, exp_avg_sq, view, options, steps_done,
                                             history, num_late, used_columns, betas);
  splat::cuda::project_lazy(bound.args, late, gate_of_last(num_instances, room, loss),
                            device.stream());
  return tensors_of(bound.outputs);
}

void flush_lazy_adam(const Tensor& shN, const Tensor& exp_avg, const Tensor& exp_avg_sq,
                     const Tensor& steps_done, const Tensor& history, int64_t num_late,
                     int64_t used_columns, const std::vector<double>& betas,
                     int64_t /*num_threads*/, const OptionalTensor& num_instances, int64_t room,
                     const OptionalTensor& loss) {
  const OnDevice device(shN);
  const splat::SettleAdam late =
      settle_adam_of(shN, exp_avg, exp_avg_sq, steps_done, history, num_late, used_columns, betas);
  splat::cuda::flush_lazy_adam(late, gate_of_last(num_instances, room, loss), device.stream());
}

void count_seen(const Tensor& gradients2d, const Tensor& radii, int64_t width, int64_t height,
                const Tensor& grad2d, const Tensor& visible, const OptionalTensor& radius2d,
                int64_t /*num_threads*/) {
  const OnDevice device(gradients2d);
  const splat::SeenCounts args =
      seen_counts_of(gradients2d, radii, width, height, grad2d, visible, radius2d);
  splat::cuda::count_seen(args, {}, device.stream());
}

void count_seen_within(const Tensor& gradients2d, const Tensor& radii, int64_t width,
                       int64_t height, const Tensor& grad2d, const Tensor& visible,
                       const OptionalTensor& radius2d, const Tensor& num_instances, int64_t room,
                       const Tensor& loss) {
  const OnDevice device(gradients2d);
  const splat::SeenCounts args =
      seen_counts_of(gradients2d, radii, width, height, grad2d, visible, radius2d);
  splat::cuda::count_seen(args, gate_of(num_instances, room, loss), device.stream());
}

void inject_noise(const Tensor& means, const Tensor& quats, const Tensor& scales,
                  const Tensor& opacities, double amount, double min_opacity, int64_t seed,
                  int64_t /*num_threads*/, const OptionalTensor& places) {
  const OnDevice device(means);
  const splat::InjectNoise args =
      inject_noise_of(means, quats, scales, opacities, places, amount, min_opacity, seed);
  splat::cuda::inject_noise(args, {}, device.stream());
}

void inject_noise_within(const Tensor& means, const Tensor& quats, const Tensor& scales,
                         const Tensor& opacities, double amount, double min_opacity, int64_t seed,
                         const Tensor& num_instances, int64_t room, const Tensor& loss,
                         const OptionalTensor& places) {
  const OnDevice device(means);
  const splat::InjectNoise args =
      inject_noise_of(means, quats, scales, opacities, places, amount, min_opacity, seed);
  splat::cuda::inject_noise(args, gate_of(num_instances, room, loss), device.stream());
}

// Returns the gradient with respect to a twist of the camera, [6] float64: the shift, the turn.
Tensor pose_gradient(const Tensor& means, const Tensor& quats, const Tensor& shN,
                     const Tensor& v_means, const Tensor& v_quats, const OptionalTensor& v_sh0,
                     const Tensor& radii, const std::vector<double>& view, int64_t sh_degree,
                     int64_t /*num_threads*/) {
  const OnDevice device(means);
  const splat::PoseGradient args =
      pose_gradient_of(means, quats, shN, v_means, v_quats, v_sh0, radii, view, sh_degree);
  const Tensor twist = empty({splat::kTwist}, ScalarType::Double);
  const Tensor scratch = empty({splat::cuda::pose_gradient_scratch(args.num)}, ScalarType::Byte);
  splat::cuda::pose_gradient(args, static_cast<double*>(twist.data_ptr()), scratch.data_ptr(),
                             device.stream());
  return twist;
}

// Returns `image`, floats or bytes, as floats of another size, [height, width, C].
Tensor area_means(const Tensor& image, int64_t width, int64_t height, int64_t /*num_threads*/) {
  const OnDevice device(image);
  const auto [args, means] = area_means_of(image, width, height);
  splat::cuda::area_means(args, device.stream());
  return means;
}

// Returns the colors under a grid of affine maps.
Tensor bilateral_grid(const Tensor& rgb, const Tensor& grid, int64_t /*num_threads*/) {
  const OnDevice device(rgb);
  const auto [args, colors] = bilateral_grid_colors_of(rgb, grid);
  splat::cuda::bilateral_grid(args, device.stream());
  return colors;
}

// Returns the gradients of rgb and grid.
std::tuple<Tensor, Tensor> bilateral_grid_bwd(const Tensor& rgb, const Tensor& grid,
                                              const Tensor& v_colors, int64_t /*num_threads*/) {
  const OnDevice device(rgb);
  const auto [args, v_rgb, v_grid] = bilateral_grid_gradient_of(rgb, grid, v_colors);
  const Tensor scratch = empty({splat::cuda::bilateral_grid_scratch(args.args)}, ScalarType::Byte);
  splat::cuda::bilateral_grid_bwd(args, scratch.data_ptr(), device.stream());
  return {v_rgb, v_grid};
}

// Returns the opacity of each part, and by what its size is multiplied.
std::tuple<Tensor, Tensor> compute_relocation(const Tensor& opacities, const Tensor& copies,
                                              int64_t /*num_threads*/) {
  const OnDevice device(opacities);
  const auto [args, each, factors] = parting_of(opacities, copies);
  splat::cuda::part(args, device.stream());
  return {each, factors};
}

// Returns the error, what each point that counts adds to it for 1 / scene unit, and codes.
std::tuple<Tensor, Tensor, Tensor> depth_error(const Tensor& alpha, const Tensor& depth_sum,
                                               const OptionalTensor& mask, const Tensor& points,
                                               const std::vector<double>& view, double unit,
                                               int64_t /*num_threads*/) {
  const OnDevice device(alpha);
  const auto [args, error, share, codes] =
      depth_error_of(alpha, depth_sum, mask, points, view, unit);
  const Tensor scratch = empty({splat::cuda::depth_error_scratch(args.num)}, ScalarType::Byte);
  splat::cuda::depth_error(args, scratch.data_ptr(), device.stream());
  return {error, share, codes};
}

// Returns the gradients of alpha and depth_sum.
std::tuple<Tensor, Tensor> depth_error_bwd(const Tensor& alpha, const Tensor& depth_sum,
                                           const Tensor& share, const Tensor& codes,
                                           const Tensor& v_error, int64_t /*num_threads*/) {
  const OnDevice device(alpha);
  const auto bound = depth_gradient_of(alpha, depth_sum, share, codes, v_error);
  splat::cuda::depth_error_bwd(bound.args, device.stream());
  return {bound.v_alpha, bound.v_depth_sum};
}

// Returns the logits with which a step draws `opacities`.
Tensor drop_out(const Tensor& opacities, const Tensor& keys, int64_t seed, double rate,
                int64_t /*num_threads*/) {
  const OnDevice device(opacities);
  const auto [args, shown] = drop_out_of(opacities, keys, seed, rate);
  splat::cuda::drop_out(args, device.stream());
  return shown;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(splatstudio, SPLAT_CUDA_KEY, m) {
  m.impl("adam_step", TORCH_BOX(&adam_step));
  m.impl("adam_step_within", TORCH_BOX(&adam_step_within));
  m.impl("project_adam", TORCH_BOX(&project_adam));
  m.impl("project_adam_views", TORCH_BOX(&project_adam_views));
  m.impl("project_adam_within", TORCH_BOX(&project_adam_within));
  m.impl("project_lazy", TORCH_BOX(&project_lazy));
  m.impl("flush_lazy_adam", TORCH_BOX(&flush_lazy_adam));
  m.impl("count_seen", TORCH_BOX(&count_seen));
  m.impl("count_seen_within", TORCH_BOX(&count_seen_within));
  m.impl("inject_noise", TORCH_BOX(&inject_noise));
  m.impl("inject_noise_within", TORCH_BOX(&inject_noise_within));
  m.impl("pose_gradient", TORCH_BOX(&pose_gradient));
  m.impl("area_means", TORCH_BOX(&area_means));
  m.impl("bilateral_grid", TORCH_BOX(&bilateral_grid));
  m.impl("bilateral_grid_bwd", TORCH_BOX(&bilateral_grid_bwd));
  m.impl("compute_relocation", TORCH_BOX(&compute_relocation));
  m.impl("depth_error", TORCH_BOX(&depth_error));
  m.impl("depth_error_bwd", TORCH_BOX(&depth_error_bwd));
  m.impl("drop_out", TORCH_BOX(&drop_out));
}

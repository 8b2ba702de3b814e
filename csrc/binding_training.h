// What the bindings of the training's operators share, whatever the backend.
#pragma once

#include <tuple>
#include <vector>

#include "area.h"
#include "bilateral_grid.h"
#include "binding.h"
#include "binding_stages.h"
#include "depth.h"
#include "dropout.h"
#include "kernels.h"
#include "mcmc.h"
#include "pose.h"

namespace splat::binding {

using Tensors = std::vector<Tensor>;

// The tensor of a list from which its device is taken.
inline const Tensor& first_of(const Tensors& tensors) {
  STD_TORCH_CHECK(!tensors.empty(), "there must be a tensor");
  return tensors.front();
}

inline AdamSettings adam_settings(const std::vector<double>& betas) {
  STD_TORCH_CHECK(betas.size() == 3, "Adam takes beta1, beta2 and eps");
  return {betas[0], betas[1], betas[2]};
}

inline AdamTensor adam_tensor(const Tensor& param, const Tensor& exp_avg,
                              const Tensor& exp_avg_sq) {
  Sizes sizes;
  for (int64_t i = 0; i < param.dim(); ++i) sizes.push_back(param.size(i));
  floats(param, sizes, "param");
  floats(exp_avg, sizes, "exp_avg");
  floats(exp_avg_sq, sizes, "exp_avg_sq");
  return {mutable_floats(param), mutable_floats(exp_avg), mutable_floats(exp_avg_sq)};
}

// One step of Adam on one tensor; `rates` are lr, beta1, beta2, eps.
inline Adam adam_of(const Tensor& param, const Tensor& grad, const Tensor& exp_avg,
                    const Tensor& exp_avg_sq, const std::vector<double>& rates, int64_t step) {
  STD_TORCH_CHECK(rates.size() == 4, "rates are lr, beta1, beta2, eps");
  STD_TORCH_CHECK(step >= 1, "steps count from 1");
  Sizes sizes;
  for (int64_t i = 0; i < param.dim(); ++i) sizes.push_back(param.size(i));
  const AdamTensor tensor = adam_tensor(param, exp_avg, exp_avg_sq);
  return {tensor.param,   floats(grad, sizes, "grad"),
          tensor.exp_avg, tensor.exp_avg_sq,
          param.numel(),  rates[0],
          rates[1],       rates[2],
          rates[3],       step};
}

// One step of Adam on all six tensors, but for their gradients and how many columns of shN take
// part.
inline ProjectAdam adam_of_model(const Tensors& params, const Tensors& exp_avg,
                                 const Tensors& exp_avg_sq, const std::vector<double>& rates,
                                 const std::vector<double>& regularization, int64_t step) {
  constexpr int kTensors = kNumTensors;
  STD_TORCH_CHECK(
      params.size() == kTensors && exp_avg.size() == kTensors && exp_avg_sq.size() == kTensors,
      "a model is six tensors");
  STD_TORCH_CHECK(rates.size() == kTensors + 3 && step >= 1, "nine rates, steps count from 1");
  STD_TORCH_CHECK(regularization.size() == 2, "two weights: of opacities and of scales");
  ProjectAdam args = {};
  args.projection.gaussians =
      gaussians_of(params[0], params[1], params[2], params[3], params[4], params[5]);
  const auto num = static_cast<double>(args.projection.gaussians.num);
  args.settings = adam_settings({rates.begin() + kTensors, rates.end()});
  args.regularization = {static_cast<float>(regularization[0] / num),
                         static_cast<float>(regularization[1] / (3.0 * num))};
  for (int k = 0; k < kTensors; ++k) {
    args.tensors[k] = adam_tensor(params[k], exp_avg[k], exp_avg_sq[k]);
    args.rates[k] = adam_rate(args.settings, rates[k], step);
  }
  return args;
}

// The same from the gradients of what one view shows.
inline ProjectAdam project_adam_of(const Tensors& params, const Tensors& exp_avg,
                                   const Tensors& exp_avg_sq, const Tensor& radii,
                                   const Tensor& colors, const Tensors& v_projected,
                                   const std::vector<double>& view,
                                   const std::vector<int64_t>& options,
                                   const std::vector<double>& rates,
                                   const std::vector<double>& regularization, int64_t step) {
  STD_TORCH_CHECK(v_projected.size() == 5, "a projected model is five tensors");
  ProjectAdam args = adam_of_model(params, exp_avg, exp_avg_sq, rates, regularization, step);
  ProjectBwd& bwd = args.projection;
  bwd.settings = settings_of(view, options, bwd.gaussians.num_rest);
  const int64_t num = bwd.gaussians.num;
  bwd.radii = ints<int32_t>(radii, {num, 2}, "radii");
  bwd.colors = floats(colors, {num, 3}, "colors");
  bwd.v_means2d = floats(v_projected[0], {num, 2}, "v_means2d");
  bwd.v_conics = floats(v_projected[1], {num, 3}, "v_conics");
  bwd.v_depths = floats(v_projected[2], {num}, "v_depths");
  bwd.v_out_opacities = floats(v_projected[3], {num}, "v_opacities");
  bwd.v_colors = floats(v_projected[4], {num, 3}, "v_colors");
  return args;
}

inline void use_columns(ProjectAdam& args, int64_t used_columns, bool visible_only) {
  const ProjectBwd& bwd = args.projection;
  STD_TORCH_CHECK(used_columns >= 0 && used_columns <= 3 * bwd.gaussians.num_rest &&
                      (bwd.settings.sh_degree > 0 || used_columns == 0),
                  "more coefficients used than stored");
  args.used_columns = used_columns;
  args.visible_only = visible_only;
}

// `history` [S, 2], in the host's memory whatever the backend: the first `num_steps` rows are the
// steps since all rows of shN were up to date.
inline LazyRows late_rows(const Tensor& steps_done, const Tensor& history, int64_t num_steps,
                          int64_t num, const AdamSettings& settings) {
  STD_TORCH_CHECK(history.is_cpu() && history.is_contiguous() &&
                      history.scalar_type() == ScalarType::Float && history.dim() == 2 &&
                      history.size(1) == 2,
                  "the history is a table of floats of the CPU with two columns");
  STD_TORCH_CHECK(num_steps >= 0 && num_steps <= history.size(0) && num_steps <= kMostLateSteps,
                  "the history is too short");
  const auto* rates = static_cast<const AdamRate*>(history.data_ptr());
  return {ints<int32_t>(steps_done, {num}, "steps_done"), rates, num_steps,
          moves_shrink(settings, rates, num_steps)};
}

// Makes this step the last of the history, for the rows of shN that are out of sight.
inline void leave_rows_behind(ProjectAdam& args, const Tensor& steps_done, const Tensor& history,
                              int64_t num_late) {
  if (args.used_columns == 0 || args.visible_only) return;
  STD_TORCH_CHECK(num_late >= 1 && num_late <= history.size(0), "the history is too short");
  mutable_floats(history)[2 * num_late - 2] = args.rates[kShN].size;
  mutable_floats(history)[2 * num_late - 1] = args.rates[kShN].root;
  args.late =
      late_rows(steps_done, history, num_late, args.projection.gaussians.num, args.settings);
}

// One step of Adam from the rows of several views: `places`, `colors` and `v` have a tensor for
// each, `cameras` and `options` what `settings_of` takes of each, one behind the other.
inline ViewsAdam views_adam_of(ProjectAdam step, const Tensors& places, const Tensors& colors,
                               const Tensors& v, const std::vector<double>& cameras,
                               const std::vector<int64_t>& options) {
  const size_t num_views = places.size();
  STD_TORCH_CHECK(num_views >= 1 && num_views <= kMostViews, "a step is of 1 to ", kMostViews,
                  " views, not of ", num_views);
  STD_TORCH_CHECK(colors.size() == num_views && v.size() == num_views &&
                      cameras.size() == 21 * num_views && options.size() == 6 * num_views,
                  "each view has places, colors, gradients and a camera");
  ViewsAdam args = {step, {}, static_cast<int>(num_views)};
  const GaussianArrays& gaussians = step.projection.gaussians;
  for (size_t j = 0; j < num_views; ++j) {
    const int64_t rows = v[j].size(0), stride = v[j].size(1);
    STD_TORCH_CHECK(stride >= 10, "a row has 10 numbers at least, not ", stride);
    args.views[j] = {
        settings_of({cameras.begin() + 21 * j, cameras.begin() + 21 * (j + 1)},
                    {options.begin() + 6 * j, options.begin() + 6 * (j + 1)}, gaussians.num_rest),
        ints<int32_t>(places[j], {gaussians.num}, "places"), floats(colors[j], {rows, 3}, "colors"),
        floats(v[j], {rows, stride}, "v"), stride};
  }
  for (int j = 1; j < args.num_views; ++j) {
    STD_TORCH_CHECK(args.views[j].settings.camera.model == args.views[0].settings.camera.model &&
                        args.views[j].settings.sh_degree == args.views[0].settings.sh_degree,
                    "the views of a step have cameras of one model, and one degree");
  }
  args.step.projection.settings = args.views[0].settings;
  return args;
}

inline SettleAdam settle_adam_of(const Tensor& shN, const Tensor& exp_avg, const Tensor& exp_avg_sq,
                                 const Tensor& steps_done, const Tensor& history, int64_t num_late,
                                 int64_t used_columns, const std::vector<double>& betas) {
  SettleAdam late = {};
  late.tensor = adam_tensor(shN, exp_avg, exp_avg_sq);
  late.num = shN.size(0);
  late.columns = shN.size(1) * shN.size(2);
  late.used_columns = used_columns;
  STD_TORCH_CHECK(used_columns > 0 && used_columns <= late.columns, "no coefficients used");
  late.settings = adam_settings(betas);
  late.late = late_rows(steps_done, history, num_late, late.num, late.settings);
  return late;
}

inline std::tuple<Bound<ProjectFwd, Six>, SettleAdam> project_lazy_of(
    const Tensors& params, const Tensor& exp_avg, const Tensor& exp_avg_sq,
    const std::vector<double>& view, const std::vector<int64_t>& options, const Tensor& steps_done,
    const Tensor& history, int64_t num_late, int64_t used_columns,
    const std::vector<double>& betas) {
  STD_TORCH_CHECK(params.size() == kNumTensors, "a model is six tensors");
  return {project_fwd_of(params[0], params[1], params[2], params[3], params[4], params[5], view,
                         options),
          settle_adam_of(params[kShN], exp_avg, exp_avg_sq, steps_done, history, num_late,
                         used_columns, betas)};
}

inline Tensors tensors_of(const Six& six) {
  const auto& [a, b, c, d, e, f] = six;
  return {a, b, c, d, e, f};
}

inline SeenCounts seen_counts_of(const Tensor& gradients2d, const Tensor& radii, int64_t width,
                                 int64_t height, const Tensor& grad2d, const Tensor& visible,
                                 const OptionalTensor& radius2d) {
  const int64_t num = gradients2d.size(0);
  SeenCounts args = {};
  args.gradients2d = floats(gradients2d, {num, 2}, "gradients2d");
  args.radii = ints<int32_t>(radii, {num, 2}, "radii");
  args.num = num;
  args.scale_x = 0.5f * static_cast<float>(width);
  args.scale_y = 0.5f * static_cast<float>(height);
  args.longer_side = static_cast<float>(width > height ? width : height);
  floats(grad2d, {num}, "grad2d");
  floats(visible, {num}, "visible");
  floats_or_null(radius2d, {num}, "radius2d");
  args.grad2d = mutable_floats(grad2d);
  args.visible = mutable_floats(visible);
  args.radius2d = radius2d.has_value() ? mutable_floats(*radius2d) : nullptr;
  return args;
}

inline InjectNoise inject_noise_of(const Tensor& means, const Tensor& quats, const Tensor& scales,
                                   const Tensor& opacities, const OptionalTensor& places,
                                   double amount, double min_opacity, int64_t seed) {
  const int64_t num = means.size(0);
  floats(means, {num, 3}, "means");
  return {mutable_floats(means),
          floats(quats, {num, 4}, "quats"),
          floats(scales, {num, 3}, "scales"),
          floats(opacities, {num}, "opacities"),
          places.has_value() ? ints<int64_t>(*places, {num}, "places") : nullptr,
          num,
          static_cast<float>(amount),
          static_cast<float>(min_opacity),
          static_cast<uint64_t>(seed)};
}

// `view`: 12 numbers of the world-to-camera matrix by rows, 3 of the camera's position.
inline PoseGradient pose_gradient_of(const Tensor& means, const Tensor& quats, const Tensor& shN,
                                     const Tensor& v_means, const Tensor& v_quats,
                                     const OptionalTensor& v_sh0, const Tensor& radii,
                                     const std::vector<double>& view, int64_t sh_degree) {
  const int64_t num = means.size(0), rest = shN.size(1);
  STD_TORCH_CHECK(view.size() == 15, "a camera's place is 15 numbers");
  STD_TORCH_CHECK(sh_degree >= 0 && sh_degree <= 3, "the SH degree is not in 0..3");
  STD_TORCH_CHECK((sh_degree + 1) * (sh_degree + 1) <= 1 + rest,
                  "the active SH degree is not stored");
  PoseGradient args = {floats(means, {num, 3}, "means"),
                       floats(quats, {num, 4}, "quats"),
                       floats(shN, {num, rest, 3}, "shN"),
                       floats(v_means, {num, 3}, "v_means"),
                       floats(v_quats, {num, 4}, "v_quats"),
                       floats_or_null(v_sh0, {num, 1, 3}, "v_sh0"),
                       ints<int32_t>(radii, {num, 2}, "radii"),
                       num,
                       static_cast<int>(rest),
                       static_cast<int>(sh_degree),
                       {},
                       {}};
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 3; ++column) args.rotation[row][column] = view[4 * row + column];
    args.position[row] = view[12 + row];
  }
  return args;
}

// The arguments, and the new tensors of opacities and of factors.
inline std::tuple<Parting, Tensor, Tensor> parting_of(const Tensor& opacities,
                                                      const Tensor& copies) {
  const int64_t num = opacities.size(0);
  const float* whole = floats(opacities, {num}, "opacities");
  const int64_t* parts = ints<int64_t>(copies, {num}, "copies");
  const Tensor each = empty({num}, ScalarType::Double);
  const Tensor factors = empty({num}, ScalarType::Double);
  const Parting args = {whole, parts, num, static_cast<double*>(each.data_ptr()),
                        static_cast<double*>(factors.data_ptr())};
  return {args, each, factors};
}

// The arguments, and the new picture.
inline std::tuple<AreaMeans, Tensor> area_means_of(const Tensor& image, int64_t width,
                                                   int64_t height) {
  STD_TORCH_CHECK(image.dim() == 3, "image must have 3 dimensions, has ", image.dim());
  STD_TORCH_CHECK(width > 0 && height > 0, "a picture of ", width, " x ", height, " pixels");
  const Sizes sizes = {image.size(0), image.size(1), image.size(2)};
  STD_TORCH_CHECK(sizes[0] > 0 && sizes[1] > 0, "image has no pixels");
  const bool has_bytes = image.scalar_type() == ScalarType::Byte;
  check(image, has_bytes ? ScalarType::Byte : ScalarType::Float, sizes, "image");
  const Tensor means = empty({height, width, sizes[2]});
  const AreaMeans args = {has_bytes ? nullptr : static_cast<const float*>(image.data_ptr()),
                          has_bytes ? static_cast<const uint8_t*>(image.data_ptr()) : nullptr,
                          sizes[0],
                          sizes[1],
                          sizes[2],
                          height,
                          width,
                          mutable_floats(means)};
  return {args, means};
}

// The arguments without the colors.
inline BilateralGrid bilateral_grid_of(const Tensor& rgb, const Tensor& grid) {
  STD_TORCH_CHECK(rgb.dim() == 3, "rgb must have 3 dimensions, has ", rgb.dim());
  STD_TORCH_CHECK(grid.dim() == 4, "grid must have 4 dimensions, has ", grid.dim());
  BilateralGrid args = {};
  args.height = rgb.size(0);
  args.width = rgb.size(1);
  args.depth = grid.size(1);
  args.rows = grid.size(2);
  args.columns = grid.size(3);
  STD_TORCH_CHECK(args.height > 0 && args.width > 0, "rgb has no pixels");
  STD_TORCH_CHECK(args.depth > 0 && args.rows > 0 && args.columns > 0, "grid has no nodes");
  args.rgb = floats(rgb, {args.height, args.width, 3}, "rgb");
  args.grid = floats(grid, {kMapNumbers, args.depth, args.rows, args.columns}, "grid");
  return args;
}

// The arguments, and the new colors.
inline std::tuple<BilateralGrid, Tensor> bilateral_grid_colors_of(const Tensor& rgb,
                                                                  const Tensor& grid) {
  BilateralGrid args = bilateral_grid_of(rgb, grid);
  const Tensor colors = empty({args.height, args.width, 3});
  args.colors = mutable_floats(colors);
  return {args, colors};
}

// The arguments, and the new gradients of colors and grid.
inline std::tuple<BilateralGridGradient, Tensor, Tensor> bilateral_grid_gradient_of(
    const Tensor& rgb, const Tensor& grid, const Tensor& v_colors) {
  const BilateralGrid of = bilateral_grid_of(rgb, grid);
  const Tensor v_rgb = empty({of.height, of.width, 3});
  const Tensor v_grid = empty({kMapNumbers, of.depth, of.rows, of.columns});
  const BilateralGridGradient args = {of, floats(v_colors, {of.height, of.width, 3}, "v_colors"),
                                      mutable_floats(v_rgb), mutable_floats(v_grid)};
  return {args, v_rgb, v_grid};
}

// The arguments, and the new tensors of the error, of a point's share in it, and of codes. `view`:
// 12 numbers of the world-to-camera matrix by rows, fx, fy, cx, cy.
inline std::tuple<DepthError, Tensor, Tensor, Tensor> depth_error_of(
    const Tensor& alpha, const Tensor& depth_sum, const OptionalTensor& mask, const Tensor& points,
    const std::vector<double>& view, double unit) {
  STD_TORCH_CHECK(alpha.dim() == 2, "alpha must have 2 dimensions, has ", alpha.dim());
  STD_TORCH_CHECK(view.size() == 16, "a camera is 16 numbers here");
  const int64_t height = alpha.size(0), width = alpha.size(1), num = points.size(0);
  DepthError args = {};
  args.alpha = floats(alpha, {height, width}, "alpha");
  args.depth_sum = floats(depth_sum, {height, width}, "depth_sum");
  if (mask.has_value()) {
    check(*mask, ScalarType::Bool, {height, width}, "mask");
    args.mask = static_cast<const uint8_t*>(mask->data_ptr());
  }
  args.points = floats(points, {num, 3}, "points");
  args.num = num;
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 3; ++column) args.rotation[row][column] = view[4 * row + column];
    args.translation[row] = view[4 * row + 3];
  }
  args.fx = view[12];
  args.fy = view[13];
  args.cx = view[14];
  args.cy = view[15];
  args.width = static_cast<int>(width);
  args.height = static_cast<int>(height);
  args.unit = unit;
  const Tensor error = empty({}), share = empty({}), codes = empty({num}, ScalarType::Long);
  args.error = mutable_floats(error);
  args.share = mutable_floats(share);
  args.codes = static_cast<int64_t*>(codes.data_ptr());
  return {args, error, share, codes};
}

// What its way back is told, the new gradients of alpha and depth_sum, and scratch memory.
struct BoundDepthGradient {
  DepthErrorGradient args;
  Tensor v_alpha, v_depth_sum, first;
};

inline BoundDepthGradient depth_gradient_of(const Tensor& alpha, const Tensor& depth_sum,
                                            const Tensor& share, const Tensor& codes,
                                            const Tensor& v_error) {
  STD_TORCH_CHECK(alpha.dim() == 2, "alpha must have 2 dimensions, has ", alpha.dim());
  const Sizes picture = {alpha.size(0), alpha.size(1)};
  const int64_t num = codes.size(0);
  const Tensor v_alpha = empty(picture), v_depth_sum = empty(picture);
  const Tensor first = empty({num}, ScalarType::Byte);
  const DepthErrorGradient args = {floats(alpha, picture, "alpha"),
                                   floats(depth_sum, picture, "depth_sum"),
                                   ints<int64_t>(codes, {num}, "codes"),
                                   num,
                                   picture[0] * picture[1],
                                   floats(share, {}, "share"),
                                   floats(v_error, {}, "v_error"),
                                   mutable_floats(v_alpha),
                                   mutable_floats(v_depth_sum),
                                   static_cast<uint8_t*>(first.data_ptr())};
  return {args, v_alpha, v_depth_sum, first};
}

// The arguments, and the new tensor of logits.
inline std::tuple<DropOut, Tensor> drop_out_of(const Tensor& opacities, const Tensor& keys,
                                               int64_t seed, double rate) {
  STD_TORCH_CHECK(rate >= 0.0 && rate < 1.0, "a share is from 0 to below 1, not ", rate);
  const int64_t num = opacities.size(0);
  const Tensor shown = empty({num});
  const DropOut args = {floats(opacities, {num}, "opacities"),
                        ints<int64_t>(keys, {num}, "keys"),
                        num,
                        static_cast<uint64_t>(seed),
                        static_cast<uint64_t>(rate * 4294967296.0),
                        static_cast<float>(1.0 / (1.0 - rate)),
                        mutable_floats(shown)};
  return {args, shown};
}

}  // namespace splat::binding

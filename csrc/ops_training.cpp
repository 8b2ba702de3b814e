// The binding of what only a training needs: the fused optimiser, a strategy's counts. CPU alone.
#include <torch/csrc/stable/library.h>

#include <vector>

#include "binding.h"
#include "kernels.h"

namespace {

using namespace splat::binding;
using Tensors = std::vector<Tensor>;

splat::AdamSettings adam_settings(const std::vector<double>& betas) {
  STD_TORCH_CHECK(betas.size() == 3, "Adam takes beta1, beta2 and eps");
  return {betas[0], betas[1], betas[2]};
}

splat::AdamTensor adam_tensor(const Tensor& param, const Tensor& exp_avg,
                              const Tensor& exp_avg_sq) {
  Sizes sizes;
  for (int64_t i = 0; i < param.dim(); ++i) sizes.push_back(param.size(i));
  floats(param, sizes, "param");
  floats(exp_avg, sizes, "exp_avg");
  floats(exp_avg_sq, sizes, "exp_avg_sq");
  return {mutable_floats(param), mutable_floats(exp_avg), mutable_floats(exp_avg_sq)};
}

// `history` [S, 2]: the first `num_steps` rows are the steps since all rows of shN were up to date.
splat::LateRows late_rows(const Tensor& steps_done, const Tensor& history, int64_t num_steps,
                          const splat::AdamSettings& settings) {
  STD_TORCH_CHECK(history.dim() == 2 && num_steps >= 0 && num_steps <= history.size(0),
                  "the history is too short");
  floats(history, {history.size(0), 2}, "history");
  const auto* rates = reinterpret_cast<const splat::AdamRate*>(history.data_ptr());
  return {ints<int32_t>(steps_done, {steps_done.size(0)}, "steps_done"), rates, num_steps,
          splat::moves_shrink(settings, rates, num_steps)};
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
  constexpr int kTensors = splat::kNumTensors;
  STD_TORCH_CHECK(params.size() == kTensors && exp_avg.size() == kTensors &&
                      exp_avg_sq.size() == kTensors && v_projected.size() == 5,
                  "a model is six tensors, a projected one five");
  STD_TORCH_CHECK(rates.size() == kTensors + 3 && step >= 1, "nine rates, steps count from 1");
  STD_TORCH_CHECK(regularization.size() == 2, "two weights: of opacities and of scales");
  splat::ProjectAdam args = {};
  splat::ProjectBwd& bwd = args.projection;
  bwd.gaussians = gaussians_of(params[0], params[1], params[2], params[3], params[4], params[5]);
  bwd.settings = settings_of(view, options, bwd.gaussians.num_rest);
  const int64_t num = bwd.gaussians.num;
  bwd.radii = ints<int32_t>(radii, {num, 2}, "radii");
  bwd.colors = floats(colors, {num, 3}, "colors");
  bwd.v_means2d = floats(v_projected[0], {num, 2}, "v_means2d");
  bwd.v_conics = floats(v_projected[1], {num, 3}, "v_conics");
  bwd.v_depths = floats(v_projected[2], {num}, "v_depths");
  bwd.v_out_opacities = floats(v_projected[3], {num}, "v_opacities");
  bwd.v_colors = floats(v_projected[4], {num, 3}, "v_colors");
  args.settings = adam_settings({rates.begin() + kTensors, rates.end()});
  args.regularization = {static_cast<float>(regularization[0] / static_cast<double>(num)),
                         static_cast<float>(regularization[1] / (3.0 * static_cast<double>(num)))};
  for (int k = 0; k < kTensors; ++k) {
    args.tensors[k] = adam_tensor(params[k], exp_avg[k], exp_avg_sq[k]);
    args.rates[k] = splat::adam_rate(args.settings, rates[k], step);
  }
  STD_TORCH_CHECK(used_columns >= 0 && used_columns <= 3 * bwd.gaussians.num_rest &&
                      (bwd.settings.sh_degree > 0 || used_columns == 0),
                  "more coefficients used than stored");
  args.used_columns = used_columns;
  args.visible_only = visible_only;
  if (used_columns > 0 && !visible_only) {
    STD_TORCH_CHECK(num_late >= 1 && num_late <= history.size(0), "the history is too short");
    check(steps_done, ScalarType::Int, {num}, "steps_done");
    mutable_floats(history)[2 * num_late - 2] = args.rates[splat::kShN].size;
    mutable_floats(history)[2 * num_late - 1] = args.rates[splat::kShN].root;
    args.late = late_rows(steps_done, history, num_late, args.settings);
  }
  splat::cpu::project_adam(args, static_cast<int>(num_threads));
}

splat::SettleAdam late_settings(const Tensor& shN, const Tensor& exp_avg, const Tensor& exp_avg_sq,
                                const Tensor& steps_done, const Tensor& history, int64_t num_late,
                                int64_t used_columns, const std::vector<double>& betas) {
  splat::SettleAdam late = {};
  late.tensor = adam_tensor(shN, exp_avg, exp_avg_sq);
  late.num = shN.size(0);
  late.columns = shN.size(1) * shN.size(2);
  late.used_columns = used_columns;
  STD_TORCH_CHECK(used_columns > 0 && used_columns <= late.columns, "no coefficients used");
  late.settings = adam_settings(betas);
  check(steps_done, ScalarType::Int, {late.num}, "steps_done");
  late.late = late_rows(steps_done, history, num_late, late.settings);
  return late;
}

void settle_adam(const Tensor& shN, const Tensor& exp_avg, const Tensor& exp_avg_sq,
                 const Tensor& steps_done, const Tensor& history, int64_t num_late,
                 int64_t used_columns, const std::vector<double>& betas, int64_t num_threads) {
  const splat::SettleAdam late =
      late_settings(shN, exp_avg, exp_avg_sq, steps_done, history, num_late, used_columns, betas);
  splat::cpu::settle_adam(late, static_cast<int>(num_threads));
}

// Projects as `project_fwd` does, but what is visible first makes up for the steps of its shN.
Tensors project_late(const Tensors& params, const Tensor& exp_avg, const Tensor& exp_avg_sq,
                     const std::vector<double>& view, const std::vector<int64_t>& options,
                     const Tensor& steps_done, const Tensor& history, int64_t num_late,
                     int64_t used_columns, const std::vector<double>& betas, int64_t num_threads) {
  STD_TORCH_CHECK(params.size() == splat::kNumTensors, "a model is six tensors");
  const splat::SettleAdam late = late_settings(params[splat::kShN], exp_avg, exp_avg_sq, steps_done,
                                               history, num_late, used_columns, betas);
  splat::ProjectFwd args = {};
  args.gaussians = gaussians_of(params[0], params[1], params[2], params[3], params[4], params[5]);
  args.settings = settings_of(view, options, args.gaussians.num_rest);
  args.late = &late;
  const int64_t num = args.gaussians.num;
  const Tensors out = {empty({num, 2}), empty({num, 3}), empty({num}),
                       empty({num}),    empty({num, 3}), empty({num, 2}, ScalarType::Int)};
  args.means2d = mutable_floats(out[0]);
  args.conics = mutable_floats(out[1]);
  args.depths = mutable_floats(out[2]);
  args.opacities = mutable_floats(out[3]);
  args.colors = mutable_floats(out[4]);
  args.radii = static_cast<int32_t*>(out[5].data_ptr());
  splat::cpu::project_fwd(args, static_cast<int>(num_threads));
  return out;
}

void count_seen(const Tensor& gradients2d, const Tensor& radii, int64_t width, int64_t height,
                const Tensor& grad2d, const Tensor& visible, const OptionalTensor& radius2d,
                int64_t num_threads) {
  const int64_t num = gradients2d.size(0);
  splat::SeenCounts args = {};
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
  splat::cpu::count_seen(args, static_cast<int>(num_threads));
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(splatstudio, CPU, m) {
  m.impl("project_adam", TORCH_BOX(&project_adam));
  m.impl("project_late", TORCH_BOX(&project_late));
  m.impl("settle_adam", TORCH_BOX(&settle_adam));
  m.impl("count_seen", TORCH_BOX(&count_seen));
}

// What the bindings of the stages share, whatever the backend: the checks of what an operator is
// given, and the tensors that it returns. A backend adds its own scratch and makes the call.
#pragma once

#include <limits>
#include <tuple>
#include <vector>

#include "binding.h"
#include "kernels.h"

namespace splat::binding {

using Six = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// The arguments of a stage, and what the operator returns or a part of it.
template <typename Args, typename Outputs>
struct Bound {
  Args args;
  Outputs outputs;
};

// Returns means2d, conics, depths, opacities, colors, radii.
inline Bound<ProjectFwd, Six> project_fwd_of(const Tensor& means, const Tensor& quats,
                                             const Tensor& scales, const Tensor& opacities,
                                             const Tensor& sh0, const Tensor& shN,
                                             const std::vector<double>& view,
                                             const std::vector<int64_t>& options) {
  ProjectFwd args = {};
  args.gaussians = gaussians_of(means, quats, scales, opacities, sh0, shN);
  args.settings = settings_of(view, options, shN.size(1));
  const int64_t num = args.gaussians.num;
  const Tensor means2d = empty({num, 2}), conics = empty({num, 3}), depths = empty({num});
  const Tensor effective = empty({num}), colors = empty({num, 3});
  const Tensor radii = empty({num, 2}, ScalarType::Int);
  args.means2d = mutable_floats(means2d);
  args.conics = mutable_floats(conics);
  args.depths = mutable_floats(depths);
  args.opacities = mutable_floats(effective);
  args.colors = mutable_floats(colors);
  args.radii = static_cast<int32_t*>(radii.data_ptr());
  return {args, {means2d, conics, depths, effective, colors, radii}};
}

// The way back of a projection, but for where its gradients go.
inline ProjectBwd way_back_of(const Tensor& means, const Tensor& quats, const Tensor& scales,
                              const Tensor& opacities, const Tensor& sh0, const Tensor& shN,
                              const Tensor& radii, const Tensor& colors, const Tensor& v_means2d,
                              const Tensor& v_conics, const Tensor& v_depths,
                              const Tensor& v_effective, const Tensor& v_colors,
                              const std::vector<double>& view,
                              const std::vector<int64_t>& options) {
  ProjectBwd args = {};
  args.gaussians = gaussians_of(means, quats, scales, opacities, sh0, shN);
  args.settings = settings_of(view, options, shN.size(1));
  const int64_t num = args.gaussians.num;
  args.radii = ints<int32_t>(radii, {num, 2}, "radii");
  args.colors = floats(colors, {num, 3}, "colors");
  args.v_means2d = floats(v_means2d, {num, 2}, "v_means2d");
  args.v_conics = floats(v_conics, {num, 3}, "v_conics");
  args.v_depths = floats(v_depths, {num}, "v_depths");
  args.v_out_opacities = floats(v_effective, {num}, "v_opacities");
  args.v_colors = floats(v_colors, {num, 3}, "v_colors");
  return args;
}

// Adds to `sums`, of the six tensors; that of shN is not looked at at degree 0.
inline ProjectBwd added_to(ProjectBwd args, const std::vector<Tensor>& sums) {
  STD_TORCH_CHECK(sums.size() == 6, "a model is six tensors");
  const int64_t num = args.gaussians.num, rest = args.gaussians.num_rest;
  const Sizes sizes[] = {{num, 3}, {num, 4}, {num, 3}, {num}, {num, 1, 3}, {num, rest, 3}};
  float** places[] = {&args.v_means,     &args.v_quats, &args.v_scales,
                      &args.v_opacities, &args.v_sh0,   &args.v_shN};
  for (int k = 0; k < (args.settings.sh_degree > 0 ? 6 : 5); ++k) {
    floats(sums[k], sizes[k], "sums");
    *places[k] = mutable_floats(sums[k]);
  }
  return args;
}

// Returns v_means, v_quats, v_scales, v_opacities, v_sh0, v_shN (empty at degree 0).
inline Bound<ProjectBwd, Six> new_gradients(ProjectBwd args) {
  const int64_t num = args.gaussians.num;
  const bool with_rest = args.settings.sh_degree > 0;
  const Tensor v_means = empty({num, 3}), v_quats = empty({num, 4}), v_scales = empty({num, 3});
  const Tensor v_opacities = empty({num}), v_sh0 = empty({num, 1, 3});
  const Tensor v_shN = empty(with_rest ? Sizes{num, args.gaussians.num_rest, 3} : Sizes{0});
  args.v_means = mutable_floats(v_means);
  args.v_quats = mutable_floats(v_quats);
  args.v_scales = mutable_floats(v_scales);
  args.v_opacities = mutable_floats(v_opacities);
  args.v_sh0 = mutable_floats(v_sh0);
  args.v_shN = with_rest ? mutable_floats(v_shN) : nullptr;
  return {args, {v_means, v_quats, v_scales, v_opacities, v_sh0, v_shN}};
}

inline ProjectedArrays projected_of(const Tensor& means2d, const Tensor& conics,
                                    const Tensor& depths, const Tensor& opacities,
                                    const Tensor& colors, const Tensor& radii) {
  const int64_t num = means2d.size(0);
  check_number(num);
  return {floats(means2d, {num, 2}, "means2d"),
          floats(conics, {num, 3}, "conics"),
          floats(depths, {num}, "depths"),
          floats(opacities, {num}, "opacities"),
          floats(colors, {num, 3}, "colors"),
          ints<int32_t>(radii, {num, 2}, "radii"),
          num};
}

// Of a picture; whoever lists them counts in 32 bits.
inline void check_num_instances(int64_t num) {
  STD_TORCH_CHECK(num < std::numeric_limits<int32_t>::max(),
                  "the Gaussians cover too much of the image (", num,
                  " tiles in all): render fewer, or fewer pixels");
}

// Returns rgb, alpha, depth_sum; the masks and ends are the backend's.
inline Bound<RasterFwd, std::tuple<Tensor, Tensor, Tensor>> raster_fwd_of(
    const Tensor& splats, const Tensor& order, const Tensor& splat_starts,
    const Tensor& tile_starts, const Tensor& instances, const Tensor& slots,
    const Tensor& background, int64_t width, int64_t height, double max_alpha) {
  RasterFwd args = {};
  args.grid = grid_of(width, height);
  args.splats = splats_of(splats, order);
  args.lists = lists_of(args.splats, args.grid, splat_starts, tile_starts, instances, slots);
  args.background = floats(background, {3}, "background");
  args.max_alpha = static_cast<float>(max_alpha);
  const Tensor rgb = empty({height, width, 3}), alpha = empty({height, width});
  const Tensor depth_sum = empty({height, width});
  args.rgb = mutable_floats(rgb);
  args.alpha = mutable_floats(alpha);
  args.depth_sum = mutable_floats(depth_sum);
  return {args, {rgb, alpha, depth_sum}};
}

// The lists of a picture.
struct Lists {
  const Tensor &splats, &order, &splat_starts, &tile_starts, &instances, &slots;
};

// What the way back is given of its picture, but for masks, ends and the slab, which are the
// backend's, and for its outputs.
inline RasterBwd raster_bwd_of(const Lists& lists, const Tensor& rgb, const Tensor& alpha,
                               const Tensor& depth_sum, const OptionalTensor& v_rgb,
                               const OptionalTensor& v_alpha, const OptionalTensor& v_depth_sum,
                               double max_alpha, bool absgrad) {
  const int64_t height = alpha.size(0), width = alpha.size(1);
  RasterBwd args = {};
  args.grid = grid_of(width, height);
  args.splats = splats_of(lists.splats, lists.order);
  args.lists = lists_of(args.splats, args.grid, lists.splat_starts, lists.tile_starts,
                        lists.instances, lists.slots);
  args.max_alpha = static_cast<float>(max_alpha);
  args.rgb = floats(rgb, {height, width, 3}, "rgb");
  args.alpha = floats(alpha, {height, width}, "alpha");
  args.depth_sum = floats(depth_sum, {height, width}, "depth_sum");
  args.v_rgb = floats_or_null(v_rgb, {height, width, 3}, "v_rgb");
  args.v_alpha = floats_or_null(v_alpha, {height, width}, "v_alpha");
  args.v_depth_sum = floats_or_null(v_depth_sum, {height, width}, "v_depth_sum");
  args.absgrad = absgrad;
  return args;
}

// Returns v_means2d, v_conics, v_depths, v_opacities, v_colors, v_probe (empty if not wanted), of
// `num` Gaussians.
inline Six gradients_of(RasterBwd& args, int64_t num, bool with_probe) {
  STD_TORCH_CHECK(args.splats.num <= num, "the lists are of ", args.splats.num,
                  " Gaussians, more than ", num);
  const Tensor v_means2d = empty({num, 2}), v_conics = empty({num, 3}), v_depths = empty({num});
  const Tensor v_opacities = empty({num}), v_colors = empty({num, 3});
  const Tensor v_probe = empty(with_probe ? Sizes{num, 2} : Sizes{0});
  args.num = num;
  args.v_means2d = mutable_floats(v_means2d);
  args.v_conics = mutable_floats(v_conics);
  args.v_depths = mutable_floats(v_depths);
  args.v_opacities = mutable_floats(v_opacities);
  args.v_colors = mutable_floats(v_colors);
  args.v_probe = with_probe ? mutable_floats(v_probe) : nullptr;
  return {v_means2d, v_conics, v_depths, v_opacities, v_colors, v_probe};
}

// Returns the value (a scalar) and, if wanted, its gradient with respect to the image (else empty).
inline Bound<ImageLoss, std::tuple<Tensor, Tensor>> image_loss_of(
    const Tensor& image, const Tensor& target, const OptionalTensor& mask, double l1_weight,
    double ssim_weight, bool same_padding, bool with_grad) {
  ImageLoss args = {};
  args.height = image.size(0);
  args.width = image.size(1);
  args.channels = image.size(2);
  const Sizes sizes = {args.height, args.width, args.channels};
  args.image = floats(image, sizes, "image");
  args.target = floats(target, sizes, "target");
  if (mask.has_value()) {
    check(*mask, ScalarType::Bool, {args.height, args.width}, "mask");
    args.mask = static_cast<const uint8_t*>(mask->data_ptr());
  }
  args.l1_weight = static_cast<float>(l1_weight);
  args.ssim_weight = static_cast<float>(ssim_weight);
  args.same_padding = same_padding;
  const Tensor grad = empty(with_grad ? sizes : Sizes{0});
  const Tensor value = empty({});
  args.grad = with_grad ? mutable_floats(grad) : nullptr;
  args.value = mutable_floats(value);
  return {args, {value, grad}};
}

}  // namespace splat::binding

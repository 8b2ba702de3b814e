// The binding of what training needs. It checks what it is given, allocates (so that torch accounts
// for all large memory) and calls a backend.
#include <torch/csrc/stable/library.h>

#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "binding.h"
#include "cpu/tile_walk.h"
#include "kernels.h"

namespace {

using namespace splat::binding;

using Six = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Six project_fwd(const Tensor& means, const Tensor& quats, const Tensor& scales,
                const Tensor& opacities, const Tensor& sh0, const Tensor& shN,
                const std::vector<double>& view, const std::vector<int64_t>& options,
                int64_t num_threads) {
  splat::ProjectFwd args = {};
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
  splat::cpu::project_fwd(args, static_cast<int>(num_threads));
  return {means2d, conics, depths, effective, colors, radii};
}

// Returns v_means, v_quats, v_scales, v_opacities, v_sh0, v_shN (empty at degree 0).
Six project_bwd(const Tensor& means, const Tensor& quats, const Tensor& scales,
                const Tensor& opacities, const Tensor& sh0, const Tensor& shN, const Tensor& radii,
                const Tensor& colors, const Tensor& v_means2d, const Tensor& v_conics,
                const Tensor& v_depths, const Tensor& v_effective, const Tensor& v_colors,
                const std::vector<double>& view, const std::vector<int64_t>& options,
                int64_t num_threads) {
  splat::ProjectBwd args = {};
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
  const bool with_rest = args.settings.sh_degree > 0;
  const Tensor v_means = empty({num, 3}), v_quats = empty({num, 4}), v_scales = empty({num, 3});
  const Tensor v_opacities = empty({num}), v_sh0 = empty({num, 1, 3});
  const Tensor v_shN = empty(with_rest ? Sizes{num, shN.size(1), 3} : Sizes{0});
  args.v_means = mutable_floats(v_means);
  args.v_quats = mutable_floats(v_quats);
  args.v_scales = mutable_floats(v_scales);
  args.v_opacities = mutable_floats(v_opacities);
  args.v_sh0 = mutable_floats(v_sh0);
  args.v_shN = with_rest ? mutable_floats(v_shN) : nullptr;
  splat::cpu::project_bwd(args, static_cast<int>(num_threads));
  return {v_means, v_quats, v_scales, v_opacities, v_sh0, v_shN};
}

// Returns splats, order, splat_starts, tile_starts, instances, slots.
Six bin(const Tensor& means2d, const Tensor& conics, const Tensor& depths, const Tensor& opacities,
        const Tensor& colors, const Tensor& radii, int64_t width, int64_t height,
        int64_t num_threads) {
  const int threads = static_cast<int>(num_threads);
  const splat::ImageGrid grid = grid_of(width, height);
  const int64_t num = means2d.size(0);
  const splat::ProjectedArrays projected = {floats(means2d, {num, 2}, "means2d"),
                                            floats(conics, {num, 3}, "conics"),
                                            floats(depths, {num}, "depths"),
                                            floats(opacities, {num}, "opacities"),
                                            floats(colors, {num, 3}, "colors"),
                                            ints<int32_t>(radii, {num, 2}, "radii"),
                                            num};
  const Tensor blocks = empty({splat::cpu::num_blocks(num)}, ScalarType::Int);
  int32_t* block_starts = static_cast<int32_t*>(blocks.data_ptr());
  splat::cpu::TileWalk walk;
  const int64_t visible = splat::cpu::count_visible(projected, grid, block_starts, walk, threads);
  const Tensor splats = empty({visible, splat::kSplatSize});
  const Tensor order = empty({visible}, ScalarType::Int);
  const splat::SplatList list = splats_of(splats, order);
  splat::cpu::pack_splats(projected, grid, block_starts, list, walk, threads);

  const Tensor splat_starts = empty({visible + 1}, ScalarType::Long);
  const int64_t num_instances = splat::cpu::count_instances(
      list, grid, static_cast<int64_t*>(splat_starts.data_ptr()), walk, threads);
  STD_TORCH_CHECK(num_instances < std::numeric_limits<int32_t>::max(),
                  "the Gaussians cover too much of the image (", num_instances,
                  " tiles in all): render fewer, or fewer pixels");
  const Tensor tile_starts = empty({grid.num_tiles() + 1}, ScalarType::Int);
  const Tensor instances = empty({num_instances}, ScalarType::Int);
  const Tensor slots = empty({num_instances}, ScalarType::Int);
  const Tensor counters =
      empty({splat::cpu::num_binning_counters(list, grid, threads)}, ScalarType::Int);
  splat::cpu::emit_instances(list, grid,
                             lists_of(list, grid, splat_starts, tile_starts, instances, slots),
                             static_cast<int32_t*>(counters.data_ptr()), walk, threads);
  return {splats, order, splat_starts, tile_starts, instances, slots};
}

// Returns rgb, alpha, depth_sum, masks, tile_ends.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> raster_fwd(
    const Tensor& splats, const Tensor& order, const Tensor& splat_starts,
    const Tensor& tile_starts, const Tensor& instances, const Tensor& slots,
    const Tensor& background, int64_t width, int64_t height, double max_alpha,
    int64_t num_threads) {
  splat::RasterFwd args = {};
  args.grid = grid_of(width, height);
  args.splats = splats_of(splats, order);
  args.lists = lists_of(args.splats, args.grid, splat_starts, tile_starts, instances, slots);
  args.background = floats(background, {3}, "background");
  args.max_alpha = static_cast<float>(max_alpha);
  const Tensor rgb = empty({height, width, 3}), alpha = empty({height, width});
  const Tensor depth_sum = empty({height, width});
  const Tensor masks = empty({args.lists.num}, ScalarType::Int);
  const Tensor tile_ends = empty({args.grid.num_tiles()}, ScalarType::Int);
  args.masks = static_cast<uint32_t*>(masks.data_ptr());
  args.tile_ends = static_cast<int32_t*>(tile_ends.data_ptr());
  args.rgb = mutable_floats(rgb);
  args.alpha = mutable_floats(alpha);
  args.depth_sum = mutable_floats(depth_sum);
  splat::cpu::raster_fwd(args, static_cast<int>(num_threads));
  return {rgb, alpha, depth_sum, masks, tile_ends};
}

// Returns v_means2d, v_conics, v_depths, v_opacities, v_colors, v_probe (empty if not wanted).
Six raster_bwd(const Tensor& splats, const Tensor& order, const Tensor& splat_starts,
               const Tensor& tile_starts, const Tensor& instances, const Tensor& slots,
               const Tensor& masks, const Tensor& tile_ends, const Tensor& rgb, const Tensor& alpha,
               const Tensor& depth_sum, const OptionalTensor& v_rgb, const OptionalTensor& v_alpha,
               const OptionalTensor& v_depth_sum, int64_t num, double max_alpha, bool absgrad,
               bool with_probe, int64_t num_threads) {
  const int64_t height = alpha.size(0), width = alpha.size(1);
  splat::RasterBwd args = {};
  args.grid = grid_of(width, height);
  args.splats = splats_of(splats, order);
  args.lists = lists_of(args.splats, args.grid, splat_starts, tile_starts, instances, slots);
  args.max_alpha = static_cast<float>(max_alpha);
  args.masks = reinterpret_cast<uint32_t*>(ints<int32_t>(masks, {args.lists.num}, "masks"));
  args.tile_ends = ints<int32_t>(tile_ends, {args.grid.num_tiles()}, "tile_ends");
  args.rgb = floats(rgb, {height, width, 3}, "rgb");
  args.alpha = floats(alpha, {height, width}, "alpha");
  args.depth_sum = floats(depth_sum, {height, width}, "depth_sum");
  args.v_rgb = floats_or_null(v_rgb, {height, width, 3}, "v_rgb");
  args.v_alpha = floats_or_null(v_alpha, {height, width}, "v_alpha");
  args.v_depth_sum = floats_or_null(v_depth_sum, {height, width}, "v_depth_sum");
  args.absgrad = absgrad;
  const Tensor slab = empty({args.lists.num, splat::slab_size_of(args)});
  const Tensor v_means2d = empty({num, 2}), v_conics = empty({num, 3}), v_depths = empty({num});
  const Tensor v_opacities = empty({num}), v_colors = empty({num, 3});
  const Tensor v_probe = empty(with_probe ? Sizes{num, 2} : Sizes{0});
  args.num = num;
  args.slab = mutable_floats(slab);
  args.v_means2d = mutable_floats(v_means2d);
  args.v_conics = mutable_floats(v_conics);
  args.v_depths = mutable_floats(v_depths);
  args.v_opacities = mutable_floats(v_opacities);
  args.v_colors = mutable_floats(v_colors);
  args.v_probe = with_probe ? mutable_floats(v_probe) : nullptr;
  splat::cpu::raster_bwd(args, static_cast<int>(num_threads));
  return {v_means2d, v_conics, v_depths, v_opacities, v_colors, v_probe};
}

// Returns the value (a scalar) and, if wanted, its gradient with respect to the image (else empty).
std::tuple<Tensor, Tensor> image_loss(const Tensor& image, const Tensor& target,
                                      const OptionalTensor& mask, double l1_weight,
                                      double ssim_weight, bool same_padding, bool with_grad,
                                      int64_t num_threads) {
  splat::ImageLoss args = {};
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
  const Tensor value = empty({}, ScalarType::Double);
  args.grad = with_grad ? mutable_floats(grad) : nullptr;
  args.value = static_cast<double*>(value.data_ptr());
  splat::cpu::image_loss(args, static_cast<int>(num_threads));
  return {value, grad};
}

void adam_step(const Tensor& param, const Tensor& grad, const Tensor& exp_avg,
               const Tensor& exp_avg_sq, const std::vector<double>& rates, int64_t step,
               int64_t num_threads) {
  STD_TORCH_CHECK(rates.size() == 4, "rates are lr, beta1, beta2, eps");
  STD_TORCH_CHECK(step >= 1, "steps count from 1");
  Sizes sizes;
  for (int64_t i = 0; i < param.dim(); ++i) sizes.push_back(param.size(i));
  floats(param, sizes, "param");
  floats(exp_avg, sizes, "exp_avg");
  floats(exp_avg_sq, sizes, "exp_avg_sq");
  const splat::Adam args = {mutable_floats(param),
                            floats(grad, sizes, "grad"),
                            mutable_floats(exp_avg),
                            mutable_floats(exp_avg_sq),
                            param.numel(),
                            rates[0],
                            rates[1],
                            rates[2],
                            rates[3],
                            step};
  splat::cpu::adam_step(args, static_cast<int>(num_threads));
}

std::string instruction_set() { return splat::cpu::instruction_set(); }

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(splatstudio, CPU, m) {
  m.impl("project_fwd", TORCH_BOX(&project_fwd));
  m.impl("project_bwd", TORCH_BOX(&project_bwd));
  m.impl("bin", TORCH_BOX(&bin));
  m.impl("raster_fwd", TORCH_BOX(&raster_fwd));
  m.impl("raster_bwd", TORCH_BOX(&raster_bwd));
  m.impl("image_loss", TORCH_BOX(&image_loss));
  m.impl("adam_step", TORCH_BOX(&adam_step));
}

STABLE_TORCH_LIBRARY_IMPL(splatstudio, CompositeExplicitAutograd, m) {
  m.impl("instruction_set", TORCH_BOX(&instruction_set));
}

// The binding of the stages on the CPU. What binding_stages.h has checked and allocated (through
// torch, which so accounts for all large memory) goes to the kernels.
#include <torch/csrc/stable/library.h>

#include <string>
#include <tuple>
#include <vector>

#include "binding_stages.h"
#include "cpu/tile_walk.h"
#include "kernels.h"

namespace {

using namespace splat::binding;

Six project_fwd(const Tensor& means, const Tensor& quats, const Tensor& scales,
                const Tensor& opacities, const Tensor& sh0, const Tensor& shN,
                const std::vector<double>& view, const std::vector<int64_t>& options,
                int64_t num_threads) {
  const auto [args, outputs] =
      project_fwd_of(means, quats, scales, opacities, sh0, shN, view, options);
  splat::cpu::project_fwd(args, static_cast<int>(num_threads));
  return outputs;
}

Six project_bwd(const Tensor& means, const Tensor& quats, const Tensor& scales,
                const Tensor& opacities, const Tensor& sh0, const Tensor& shN, const Tensor& radii,
                const Tensor& colors, const Tensor& v_means2d, const Tensor& v_conics,
                const Tensor& v_depths, const Tensor& v_effective, const Tensor& v_colors,
                const std::vector<double>& view, const std::vector<int64_t>& options,
                int64_t num_threads) {
  const auto [args, outputs] =
      new_gradients(way_back_of(means, quats, scales, opacities, sh0, shN, radii, colors, v_means2d,
                                v_conics, v_depths, v_effective, v_colors, view, options));
  splat::cpu::project_bwd(args, static_cast<int>(num_threads));
  return outputs;
}

// The same, but adds the gradients of what is visible to `sums`.
void project_bwd_add(const std::vector<Tensor>& sums, const Tensor& means, const Tensor& quats,
                     const Tensor& scales, const Tensor& opacities, const Tensor& sh0,
                     const Tensor& shN, const Tensor& radii, const Tensor& colors,
                     const Tensor& v_means2d, const Tensor& v_conics, const Tensor& v_depths,
                     const Tensor& v_effective, const Tensor& v_colors,
                     const std::vector<double>& view, const std::vector<int64_t>& options,
                     int64_t num_threads) {
  const splat::ProjectBwd args =
      added_to(way_back_of(means, quats, scales, opacities, sh0, shN, radii, colors, v_means2d,
                           v_conics, v_depths, v_effective, v_colors, view, options),
               sums);
  splat::cpu::project_bwd_add(args, static_cast<int>(num_threads));
}

// Returns splats, order, splat_starts, tile_starts, instances, slots.
Six bin(const Tensor& means2d, const Tensor& conics, const Tensor& depths, const Tensor& opacities,
        const Tensor& colors, const Tensor& radii, int64_t width, int64_t height,
        int64_t num_threads) {
  const int threads = static_cast<int>(num_threads);
  const splat::ImageGrid grid = grid_of(width, height);
  const splat::ProjectedArrays projected =
      projected_of(means2d, conics, depths, opacities, colors, radii);
  const Tensor blocks = empty({splat::cpu::num_blocks(projected.num)}, ScalarType::Int);
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
  check_num_instances(num_instances);
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
  auto [args, pictures] = raster_fwd_of(splats, order, splat_starts, tile_starts, instances, slots,
                                        background, width, height, max_alpha);
  const Tensor masks = empty({args.lists.num}, ScalarType::Int);
  const Tensor tile_ends = empty({args.grid.num_tiles()}, ScalarType::Int);
  args.masks = static_cast<uint32_t*>(masks.data_ptr());
  args.tile_ends = static_cast<int32_t*>(tile_ends.data_ptr());
  splat::cpu::raster_fwd(args, static_cast<int>(num_threads));
  return std::tuple_cat(pictures, std::make_tuple(masks, tile_ends));
}

Six raster_bwd(const Tensor& splats, const Tensor& order, const Tensor& splat_starts,
               const Tensor& tile_starts, const Tensor& instances, const Tensor& slots,
               const Tensor& masks, const Tensor& tile_ends, const Tensor& rgb, const Tensor& alpha,
               const Tensor& depth_sum, const OptionalTensor& v_rgb, const OptionalTensor& v_alpha,
               const OptionalTensor& v_depth_sum, int64_t num, double max_alpha, bool absgrad,
               bool with_probe, int64_t num_threads) {
  splat::RasterBwd args =
      raster_bwd_of({splats, order, splat_starts, tile_starts, instances, slots}, rgb, alpha,
                    depth_sum, v_rgb, v_alpha, v_depth_sum, max_alpha, absgrad);
  const Six outputs = gradients_of(args, num, with_probe);
  args.masks = reinterpret_cast<uint32_t*>(ints<int32_t>(masks, {args.lists.num}, "masks"));
  args.tile_ends = ints<int32_t>(tile_ends, {args.grid.num_tiles()}, "tile_ends");
  const Tensor slab = empty({args.lists.num, splat::slab_size_of(args)});
  args.slab = mutable_floats(slab);
  splat::cpu::raster_bwd(args, static_cast<int>(num_threads));
  return outputs;
}

std::tuple<Tensor, Tensor> image_loss(const Tensor& image, const Tensor& target,
                                      const OptionalTensor& mask, double l1_weight,
                                      double ssim_weight, bool same_padding, bool with_grad,
                                      int64_t num_threads) {
  const auto [args, outputs] =
      image_loss_of(image, target, mask, l1_weight, ssim_weight, same_padding, with_grad);
  splat::cpu::image_loss(args, static_cast<int>(num_threads));
  return outputs;
}

std::string instruction_set() { return splat::cpu::instruction_set(); }

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(splatstudio, CPU, m) {
  m.impl("project_fwd", TORCH_BOX(&project_fwd));
  m.impl("project_bwd", TORCH_BOX(&project_bwd));
  m.impl("project_bwd_add", TORCH_BOX(&project_bwd_add));
  m.impl("bin", TORCH_BOX(&bin));
  m.impl("raster_fwd", TORCH_BOX(&raster_fwd));
  m.impl("raster_bwd", TORCH_BOX(&raster_bwd));
  m.impl("image_loss", TORCH_BOX(&image_loss));
}

STABLE_TORCH_LIBRARY_IMPL(splatstudio, CompositeExplicitAutograd, m) {
  m.impl("instruction_set", TORCH_BOX(&instruction_set));
}

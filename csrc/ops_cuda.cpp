// The binding of the CUDA kernels: the same operators as ops.cpp gives to the CPU. Each begins with
// an OnDevice: the tensors' device is made current, every tensor must be there, and the kernels go
// to torch's stream of that device. `num_threads` means nothing here.
#include <torch/csrc/stable/library.h>

#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "kernels.h"
#include "on_device.h"

namespace {

using namespace splat::binding;  // NOLINT
using Six = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Tensor scratch_of(int64_t bytes) { return empty({bytes}, ScalarType::Byte); }

Six project_fwd(const Tensor& means, const Tensor& quats, const Tensor& scales,
                const Tensor& opacities, const Tensor& sh0, const Tensor& shN,
                const std::vector<double>& view, const std::vector<int64_t>& options,
                int64_t /*num_threads*/) {
  const OnDevice device(means);
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
  splat::cuda::project_fwd(args, device.stream());
  return {means2d, conics, depths, effective, colors, radii};
}

Six project_bwd(const Tensor& means, const Tensor& quats, const Tensor& scales,
                const Tensor& opacities, const Tensor& sh0, const Tensor& shN, const Tensor& radii,
                const Tensor& colors, const Tensor& v_means2d, const Tensor& v_conics,
                const Tensor& v_depths, const Tensor& v_effective, const Tensor& v_colors,
                const std::vector<double>& view, const std::vector<int64_t>& options,
                int64_t /*num_threads*/) {
  const OnDevice device(means);
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
  splat::cuda::project_bwd(args, device.stream());
  return {v_means, v_quats, v_scales, v_opacities, v_sh0, v_shN};
}

// The splats by depth and the first slot of each: all of a binning whose size the host knows.
struct SortedSplats {
  splat::ImageGrid grid;
  Tensor splats, order, splat_starts;

  const int64_t* num_instances() const {
    return static_cast<const int64_t*>(splat_starts.data_ptr()) + order.size(0);
  }
};

SortedSplats sorted_splats(const Tensor& means2d, const Tensor& conics, const Tensor& depths,
                           const Tensor& opacities, const Tensor& colors, const Tensor& radii,
                           const splat::ImageGrid& grid, splat::cuda::Stream stream) {
  const int64_t num = means2d.size(0);
  STD_TORCH_CHECK(num < std::numeric_limits<int32_t>::max(), "too many Gaussians: ", num);
  const splat::ProjectedArrays projected = {floats(means2d, {num, 2}, "means2d"),
                                            floats(conics, {num, 3}, "conics"),
                                            floats(depths, {num}, "depths"),
                                            floats(opacities, {num}, "opacities"),
                                            floats(colors, {num, 3}, "colors"),
                                            ints<int32_t>(radii, {num, 2}, "radii"),
                                            num};
  const SortedSplats sorted = {grid, empty({num, splat::kSplatSize}), empty({num}, ScalarType::Int),
                               empty({num + 1}, ScalarType::Long)};
  const Tensor scratch = scratch_of(splat::cuda::sort_splats_scratch(num));
  splat::cuda::sort_splats(projected, grid, splats_of(sorted.splats, sorted.order),
                           static_cast<int64_t*>(sorted.splat_starts.data_ptr()),
                           scratch.data_ptr(), stream);
  return sorted;
}

// Returns splats, order, splat_starts, tile_starts, instances, slots, the last two of `room`.
Six lists_within(const SortedSplats& sorted, int64_t room, splat::cuda::Stream stream) {
  const Tensor tile_starts = empty({sorted.grid.num_tiles() + 1}, ScalarType::Int);
  const Tensor instances = empty({room}, ScalarType::Int), slots = empty({room}, ScalarType::Int);
  const Tensor scratch = scratch_of(splat::cuda::emit_instances_scratch(room));
  const splat::SplatList list = splats_of(sorted.splats, sorted.order);
  splat::cuda::emit_instances(
      list, sorted.grid,
      lists_of(list, sorted.grid, sorted.splat_starts, tile_starts, instances, slots),
      scratch.data_ptr(), stream);
  return {sorted.splats, sorted.order, sorted.splat_starts, tile_starts, instances, slots};
}

// With room for as many instances as there are: the host waits for their number.
Six bin(const Tensor& means2d, const Tensor& conics, const Tensor& depths, const Tensor& opacities,
        const Tensor& colors, const Tensor& radii, int64_t width, int64_t height,
        int64_t /*num_threads*/) {
  const OnDevice device(means2d);
  const SortedSplats sorted = sorted_splats(means2d, conics, depths, opacities, colors, radii,
                                            grid_of(width, height), device.stream());
  const int64_t num_instances = splat::cuda::read_back(sorted.num_instances(), device.stream());
  STD_TORCH_CHECK(num_instances < std::numeric_limits<int32_t>::max(),
                  "the Gaussians cover too much of the image (", num_instances,
                  " tiles in all): render fewer, or fewer pixels");
  return lists_within(sorted, num_instances, device.stream());
}

// With room for `room` instances: the host does not wait. The last of splat_starts is their number;
// where that is larger, the picture lacks the farthest.
Six bin_within(const Tensor& means2d, const Tensor& conics, const Tensor& depths,
               const Tensor& opacities, const Tensor& colors, const Tensor& radii, int64_t width,
               int64_t height, int64_t room) {
  const OnDevice device(means2d);
  STD_TORCH_CHECK(room >= 0 && room < std::numeric_limits<int32_t>::max(), "no such room: ", room);
  const SortedSplats sorted = sorted_splats(means2d, conics, depths, opacities, colors, radii,
                                            grid_of(width, height), device.stream());
  return lists_within(sorted, room, device.stream());
}

// Returns rgb, alpha, depth_sum, checkpoints (in the place of the CPU's masks), ends.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> raster_fwd(
    const Tensor& splats, const Tensor& order, const Tensor& splat_starts,
    const Tensor& tile_starts, const Tensor& instances, const Tensor& slots,
    const Tensor& background, int64_t width, int64_t height, double max_alpha,
    int64_t /*num_threads*/) {
  const OnDevice device(splats);
  splat::RasterFwd args = {};
  args.grid = grid_of(width, height);
  check_aligned(splats, "splats");
  args.splats = splats_of(splats, order);
  args.lists = lists_of(args.splats, args.grid, splat_starts, tile_starts, instances, slots);
  args.background = floats(background, {3}, "background");
  args.max_alpha = static_cast<float>(max_alpha);
  const Tensor rgb = empty({height, width, 3}), alpha = empty({height, width});
  const Tensor depth_sum = empty({height, width});
  const Tensor checkpoints = empty({splat::cuda::num_checkpoints(args.grid, args.lists.num)});
  const Tensor ends = empty({splat::cuda::num_ends(args.grid)}, ScalarType::Int);
  args.tile_ends = static_cast<int32_t*>(ends.data_ptr());
  args.rgb = mutable_floats(rgb);
  args.alpha = mutable_floats(alpha);
  args.depth_sum = mutable_floats(depth_sum);
  splat::cuda::raster_fwd(args, mutable_floats(checkpoints), device.stream());
  return {rgb, alpha, depth_sum, checkpoints, ends};
}

// Returns v_means2d, v_conics, v_depths, v_opacities, v_colors, v_probe (empty if not wanted).
Six raster_bwd(const Tensor& splats, const Tensor& order, const Tensor& splat_starts,
               const Tensor& tile_starts, const Tensor& instances, const Tensor& slots,
               const Tensor& checkpoints, const Tensor& ends, const Tensor& rgb,
               const Tensor& alpha, const Tensor& depth_sum, const OptionalTensor& v_rgb,
               const OptionalTensor& v_alpha, const OptionalTensor& v_depth_sum, int64_t num,
               double max_alpha, bool absgrad, bool with_probe, int64_t /*num_threads*/) {
  const OnDevice device(splats);
  const int64_t height = alpha.size(0), width = alpha.size(1);
  splat::RasterBwd args = {};
  args.grid = grid_of(width, height);
  check_aligned(splats, "splats");
  args.splats = splats_of(splats, order);
  STD_TORCH_CHECK(args.splats.num == num, "the lists are of ", args.splats.num, " Gaussians, not ",
                  num);
  args.lists = lists_of(args.splats, args.grid, splat_starts, tile_starts, instances, slots);
  args.max_alpha = static_cast<float>(max_alpha);
  args.tile_ends = ints<int32_t>(ends, {splat::cuda::num_ends(args.grid)}, "ends");
  args.rgb = floats(rgb, {height, width, 3}, "rgb");
  args.alpha = floats(alpha, {height, width}, "alpha");
  args.depth_sum = floats(depth_sum, {height, width}, "depth_sum");
  args.v_rgb = floats_or_null(v_rgb, {height, width, 3}, "v_rgb");
  args.v_alpha = floats_or_null(v_alpha, {height, width}, "v_alpha");
  args.v_depth_sum = floats_or_null(v_depth_sum, {height, width}, "v_depth_sum");
  args.absgrad = absgrad;
  const Tensor slab = empty({args.lists.num, splat::kSlabSize});
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
  const Sizes sizes = {splat::cuda::num_checkpoints(args.grid, args.lists.num)};
  splat::cuda::raster_bwd(args, floats(checkpoints, sizes, "checkpoints"), device.stream());
  return {v_means2d, v_conics, v_depths, v_opacities, v_colors, v_probe};
}

// Returns the value (a scalar) and, if wanted, its gradient with respect to the image (else empty).
std::tuple<Tensor, Tensor> image_loss(const Tensor& image, const Tensor& target,
                                      const OptionalTensor& mask, double l1_weight,
                                      double ssim_weight, bool same_padding, bool with_grad,
                                      int64_t /*num_threads*/) {
  const OnDevice device(image);
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
  const Tensor scratch = scratch_of(splat::cuda::image_loss_scratch(args));
  splat::cuda::image_loss(args, scratch.data_ptr(), device.stream());
  return {value, grad};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(splatstudio, SPLAT_CUDA_KEY, m) {
  m.impl("project_fwd", TORCH_BOX(&project_fwd));
  m.impl("project_bwd", TORCH_BOX(&project_bwd));
  m.impl("bin", TORCH_BOX(&bin));
  m.impl("bin_within", TORCH_BOX(&bin_within));
  m.impl("raster_fwd", TORCH_BOX(&raster_fwd));
  m.impl("raster_bwd", TORCH_BOX(&raster_bwd));
  m.impl("image_loss", TORCH_BOX(&image_loss));
}

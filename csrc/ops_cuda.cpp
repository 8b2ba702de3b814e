// The binding of the CUDA kernels: the same operators as ops.cpp gives to the CPU. Each begins with
// an OnDevice: the tensors' device is made current, every tensor must be there, and the kernels go
// to torch's stream of that device. `num_threads` means nothing here.
#include <torch/csrc/stable/library.h>

#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "binding_stages.h"
#include "on_device.h"

namespace {

using namespace splat::binding;  // NOLINT

Tensor scratch_of(int64_t bytes) { return empty({bytes}, ScalarType::Byte); }

Six project_fwd(const Tensor& means, const Tensor& quats, const Tensor& scales,
                const Tensor& opacities, const Tensor& sh0, const Tensor& shN,
                const std::vector<double>& view, const std::vector<int64_t>& options,
                int64_t /*num_threads*/) {
  const OnDevice device(means);
  const auto [args, outputs] =
      project_fwd_of(means, quats, scales, opacities, sh0, shN, view, options);
  splat::cuda::project_fwd(args, device.stream());
  return outputs;
}

Six project_bwd(const Tensor& means, const Tensor& quats, const Tensor& scales,
                const Tensor& opacities, const Tensor& sh0, const Tensor& shN, const Tensor& radii,
                const Tensor& colors, const Tensor& v_means2d, const Tensor& v_conics,
                const Tensor& v_depths, const Tensor& v_effective, const Tensor& v_colors,
                const std::vector<double>& view, const std::vector<int64_t>& options,
                int64_t /*num_threads*/) {
  const OnDevice device(means);
  const auto [args, outputs] =
      new_gradients(way_back_of(means, quats, scales, opacities, sh0, shN, radii, colors, v_means2d,
                                v_conics, v_depths, v_effective, v_colors, view, options));
  splat::cuda::project_bwd(args, device.stream());
  return outputs;
}

// The same, but adds the gradients of what is visible to `sums`.
void project_bwd_add(const std::vector<Tensor>& sums, const Tensor& means, const Tensor& quats,
                     const Tensor& scales, const Tensor& opacities, const Tensor& sh0,
                     const Tensor& shN, const Tensor& radii, const Tensor& colors,
                     const Tensor& v_means2d, const Tensor& v_conics, const Tensor& v_depths,
                     const Tensor& v_effective, const Tensor& v_colors,
                     const std::vector<double>& view, const std::vector<int64_t>& options,
                     int64_t /*num_threads*/) {
  const OnDevice device(means);
  const splat::ProjectBwd args =
      added_to(way_back_of(means, quats, scales, opacities, sh0, shN, radii, colors, v_means2d,
                           v_conics, v_depths, v_effective, v_colors, view, options),
               sums);
  splat::cuda::project_bwd_add(args, device.stream());
}

// The splats by depth and the first slot of each: all of a binning whose size the host knows. The
// shapes are needed until the tiles are listed.
struct SortedSplats {
  splat::ImageGrid grid;
  Tensor splats, shapes, order, splat_starts;

  const int64_t* num_instances() const {
    return static_cast<const int64_t*>(splat_starts.data_ptr()) + order.size(0);
  }
};

SortedSplats sorted_splats(const Tensor& means2d, const Tensor& conics, const Tensor& depths,
                           const Tensor& opacities, const Tensor& colors, const Tensor& radii,
                           const splat::ImageGrid& grid, splat::cuda::Stream stream) {
  const splat::ProjectedArrays projected =
      projected_of(means2d, conics, depths, opacities, colors, radii);
  const int64_t num = projected.num;
  const SortedSplats sorted = {grid, empty({num, splat::cuda::kPackedSize}),
                               empty({num, splat::cuda::kShapeSize}), empty({num}, ScalarType::Int),
                               empty({num + 1}, ScalarType::Long)};
  const Tensor scratch = scratch_of(splat::cuda::sort_splats_scratch(num));
  splat::cuda::sort_splats(
      projected, grid, splats_of(sorted.splats, sorted.order), mutable_floats(sorted.shapes),
      static_cast<int64_t*>(sorted.splat_starts.data_ptr()), scratch.data_ptr(), stream);
  return sorted;
}

// Returns splats, order, splat_starts, tile_starts, instances, slots, the last two of `room`.
Six lists_within(const SortedSplats& sorted, int64_t room, splat::cuda::Stream stream) {
  const Tensor tile_starts = empty({sorted.grid.num_tiles() + 1}, ScalarType::Int);
  const Tensor instances = empty({room}, ScalarType::Int), slots = empty({room}, ScalarType::Int);
  const Tensor scratch = scratch_of(splat::cuda::emit_instances_scratch(sorted.grid, room));
  const splat::SplatList list = splats_of(sorted.splats, sorted.order);
  splat::cuda::emit_instances(
      mutable_floats(sorted.shapes), list.num, sorted.grid,
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
  check_num_instances(num_instances);
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
  check_aligned(splats, "splats");
  auto [args, pictures] = raster_fwd_of(splats, order, splat_starts, tile_starts, instances, slots,
                                        background, width, height, max_alpha);
  const Tensor checkpoints = empty({splat::cuda::num_checkpoints(args.grid, args.lists.num)});
  const Tensor ends = empty({splat::cuda::num_ends(args.grid)}, ScalarType::Int);
  args.tile_ends = static_cast<int32_t*>(ends.data_ptr());
  splat::cuda::raster_fwd(args, mutable_floats(checkpoints), device.stream());
  return std::tuple_cat(pictures, std::make_tuple(checkpoints, ends));
}

// The same pictures without what the way back needs: of most pictures that is more memory than all
// else that is made here.
std::tuple<Tensor, Tensor, Tensor> raster_picture(const Tensor& splats, const Tensor& order,
                                                  const Tensor& splat_starts,
                                                  const Tensor& tile_starts,
                                                  const Tensor& instances, const Tensor& slots,
                                                  const Tensor& background, int64_t width,
                                                  int64_t height, double max_alpha) {
  const OnDevice device(splats);
  check_aligned(splats, "splats");
  const auto [args, pictures] = raster_fwd_of(splats, order, splat_starts, tile_starts, instances,
                                              slots, background, width, height, max_alpha);
  splat::cuda::raster_fwd(args, nullptr, device.stream());
  return pictures;
}

// Returns a slab with what each instance says. Then neither checkpoints nor ends are needed any
// more, and the gradients may lie where they were.
Tensor slab_of(splat::RasterBwd& args, const Tensor& checkpoints, const Tensor& ends,
               splat::cuda::Stream stream) {
  args.tile_ends = ints<int32_t>(ends, {splat::cuda::num_ends(args.grid)}, "ends");
  args.slab_size = splat::slab_size_of(args);
  const Tensor slab = empty({args.lists.num, args.slab_size});
  args.slab = mutable_floats(slab);
  const Sizes sizes = {splat::cuda::num_checkpoints(args.grid, args.lists.num)};
  splat::cuda::raster_bwd(args, floats(checkpoints, sizes, "checkpoints"), stream);
  return slab;
}

// Adds up the slab that `args` has.
Six gathered(splat::RasterBwd& args, int64_t num, bool with_probe, splat::cuda::Stream stream) {
  STD_TORCH_CHECK(args.splats.num == num, "the lists are of ", args.splats.num, " Gaussians, not ",
                  num);
  const Six outputs = gradients_of(args, num, with_probe);
  splat::cuda::gather_slab(args, stream);
  return outputs;
}

Six raster_bwd(const Tensor& splats, const Tensor& order, const Tensor& splat_starts,
               const Tensor& tile_starts, const Tensor& instances, const Tensor& slots,
               const Tensor& checkpoints, const Tensor& ends, const Tensor& rgb,
               const Tensor& alpha, const Tensor& depth_sum, const OptionalTensor& v_rgb,
               const OptionalTensor& v_alpha, const OptionalTensor& v_depth_sum, int64_t num,
               double max_alpha, bool absgrad, bool with_probe, int64_t /*num_threads*/) {
  const OnDevice device(splats);
  check_aligned(splats, "splats");
  splat::RasterBwd args =
      raster_bwd_of({splats, order, splat_starts, tile_starts, instances, slots}, rgb, alpha,
                    depth_sum, v_rgb, v_alpha, v_depth_sum, max_alpha, absgrad);
  const Tensor slab = slab_of(args, checkpoints, ends, device.stream());
  return gathered(args, num, with_probe, device.stream());
}

// The same in two parts, for who lets go the checkpoints between them.
Tensor raster_slab(const Tensor& splats, const Tensor& order, const Tensor& splat_starts,
                   const Tensor& tile_starts, const Tensor& instances, const Tensor& slots,
                   const Tensor& checkpoints, const Tensor& ends, const Tensor& rgb,
                   const Tensor& alpha, const Tensor& depth_sum, const OptionalTensor& v_rgb,
                   const OptionalTensor& v_alpha, const OptionalTensor& v_depth_sum,
                   double max_alpha, bool absgrad) {
  const OnDevice device(splats);
  check_aligned(splats, "splats");
  splat::RasterBwd args =
      raster_bwd_of({splats, order, splat_starts, tile_starts, instances, slots}, rgb, alpha,
                    depth_sum, v_rgb, v_alpha, v_depth_sum, max_alpha, absgrad);
  return slab_of(args, checkpoints, ends, device.stream());
}

Six gather_slab(const Tensor& splats, const Tensor& order, const Tensor& splat_starts,
                const Tensor& slab, int64_t num, bool absgrad, bool with_probe) {
  const OnDevice device(splats);
  check_aligned(splats, "splats");
  check_aligned(slab, "slab");
  splat::RasterBwd args = {};
  args.splats = splats_of(splats, order);
  args.lists.splat_starts = ints<int64_t>(splat_starts, {num + 1}, "splat_starts");
  args.lists.num = slab.size(0);
  args.absgrad = absgrad;
  args.slab_size = static_cast<int>(slab.size(1));
  STD_TORCH_CHECK(
      args.slab_size == splat::kSlabSize || (args.slab_size == splat::kPlainSlabSize && !absgrad),
      "a slab has no rows of ", args.slab_size, " numbers");
  floats(slab, {args.lists.num, args.slab_size}, "slab");
  args.slab = mutable_floats(slab);
  return gathered(args, num, with_probe, device.stream());
}

std::tuple<Tensor, Tensor> image_loss(const Tensor& image, const Tensor& target,
                                      const OptionalTensor& mask, double l1_weight,
                                      double ssim_weight, bool same_padding, bool with_grad,
                                      int64_t /*num_threads*/) {
  const OnDevice device(image);
  const auto [args, outputs] =
      image_loss_of(image, target, mask, l1_weight, ssim_weight, same_padding, with_grad);
  const Tensor scratch = scratch_of(splat::cuda::image_loss_scratch(args));
  splat::cuda::image_loss(args, scratch.data_ptr(), device.stream());
  return outputs;
}

#if defined(SPLAT_CUDA)
std::string cuda_architectures() { return SPLAT_CUDA_ARCHITECTURES; }
#endif

}  // namespace

#if defined(SPLAT_CUDA)
// As CMake writes them, with commas between: "80-real,90"; without "-real" there is PTX, too.
STABLE_TORCH_LIBRARY_FRAGMENT(splatstudio, m) { m.def("cuda_architectures() -> str"); }
STABLE_TORCH_LIBRARY_IMPL(splatstudio, CompositeExplicitAutograd, m) {
  m.impl("cuda_architectures", TORCH_BOX(&cuda_architectures));
}
#endif

STABLE_TORCH_LIBRARY_IMPL(splatstudio, SPLAT_CUDA_KEY, m) {
  m.impl("project_fwd", TORCH_BOX(&project_fwd));
  m.impl("project_bwd", TORCH_BOX(&project_bwd));
  m.impl("project_bwd_add", TORCH_BOX(&project_bwd_add));
  m.impl("bin", TORCH_BOX(&bin));
  m.impl("bin_within", TORCH_BOX(&bin_within));
  m.impl("raster_fwd", TORCH_BOX(&raster_fwd));
  m.impl("raster_picture", TORCH_BOX(&raster_picture));
  m.impl("raster_bwd", TORCH_BOX(&raster_bwd));
  m.impl("raster_slab", TORCH_BOX(&raster_slab));
  m.impl("gather_slab", TORCH_BOX(&gather_slab));
  m.impl("image_loss", TORCH_BOX(&image_loss));
}

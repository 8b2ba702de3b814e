// The binding of the viewer's modes.
#include <torch/csrc/stable/library.h>

#include <tuple>
#include <vector>

#include "binding.h"
#include "modes.h"

namespace {

using namespace splat::binding;

// Returns normals, surfaces.
std::tuple<Tensor, Tensor> splat_shapes(const Tensor& means, const Tensor& quats,
                                        const Tensor& scales, const Tensor& radii,
                                        const std::vector<double>& view,
                                        const std::vector<int64_t>& options, int64_t num_threads) {
  const int64_t num = means.size(0);
  splat::Shapes args = {};
  args.gaussians.means = floats(means, {num, 3}, "means");
  args.gaussians.quats = floats(quats, {num, 4}, "quats");
  args.gaussians.scales = floats(scales, {num, 3}, "scales");
  args.gaussians.num = num;
  constexpr int64_t kAllDegrees = 15;  // no coefficients are read
  args.settings = settings_of(view, options, kAllDegrees);
  args.radii = ints<int32_t>(radii, {num, 2}, "radii");
  const Tensor normals = empty({num, 3}), surfaces = empty({num, splat::kSurfaceSize});
  args.normals = mutable_floats(normals);
  args.surfaces = mutable_floats(surfaces);
  splat::cpu::splat_shapes(args, static_cast<int>(num_threads));
  return {normals, surfaces};
}

// Returns depth, count.
std::tuple<Tensor, Tensor> raster_median(const Tensor& splats, const Tensor& order,
                                         const Tensor& splat_starts, const Tensor& tile_starts,
                                         const Tensor& instances, const Tensor& slots,
                                         int64_t width, int64_t height, double max_alpha,
                                         int64_t num_threads) {
  splat::RasterMedian args = {};
  args.grid = grid_of(width, height);
  args.splats = splats_of(splats, order);
  args.lists = lists_of(args.splats, args.grid, splat_starts, tile_starts, instances, slots);
  args.max_alpha = static_cast<float>(max_alpha);
  const Tensor depth = empty({height, width}), count = empty({height, width}, ScalarType::Int);
  args.depth = mutable_floats(depth);
  args.count = static_cast<int32_t*>(count.data_ptr());
  splat::cpu::raster_median(args, static_cast<int>(num_threads));
  return {depth, count};
}

// Returns rgb, depth.
std::tuple<Tensor, Tensor> raster_solid(const Tensor& splats, const Tensor& order,
                                        const Tensor& splat_starts, const Tensor& tile_starts,
                                        const Tensor& instances, const Tensor& slots,
                                        const Tensor& surfaces, const Tensor& background,
                                        int64_t width, int64_t height, int64_t num_threads) {
  splat::RasterSolid args = {};
  args.grid = grid_of(width, height);
  args.splats = splats_of(splats, order);
  args.lists = lists_of(args.splats, args.grid, splat_starts, tile_starts, instances, slots);
  args.surfaces = floats(surfaces, {surfaces.size(0), splat::kSurfaceSize}, "surfaces");
  args.background = floats(background, {3}, "background");
  const Tensor rgb = empty({height, width, 3}), depth = empty({height, width});
  args.rgb = mutable_floats(rgb);
  args.depth = mutable_floats(depth);
  splat::cpu::raster_solid(args, static_cast<int>(num_threads));
  return {rgb, depth};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(splatstudio, CPU, m) {
  m.impl("splat_shapes", TORCH_BOX(&splat_shapes));
  m.impl("raster_median", TORCH_BOX(&raster_median));
  m.impl("raster_solid", TORCH_BOX(&raster_solid));
}

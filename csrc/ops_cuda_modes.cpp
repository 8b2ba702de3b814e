// The binding of the viewer's modes, on a GPU.
#include <torch/csrc/stable/library.h>

#include <vector>

#include "binding_modes.h"
#include "on_device.h"

namespace {

using namespace splat::binding;  // NOLINT

// Returns normals, surfaces.
Pair splat_shapes(const Tensor& means, const Tensor& quats, const Tensor& scales,
                  const Tensor& radii, const std::vector<double>& view,
                  const std::vector<int64_t>& options, int64_t /*num_threads*/) {
  const OnDevice device(means);
  const auto [args, out] = shapes_call(means, quats, scales, radii, view, options);
  splat::cuda::splat_shapes(args, device.stream());
  return out;
}

// Returns depth, count.
Pair raster_median(const Tensor& splats, const Tensor& order, const Tensor& splat_starts,
                   const Tensor& tile_starts, const Tensor& instances, const Tensor& slots,
                   int64_t width, int64_t height, double max_alpha, int64_t /*num_threads*/) {
  const OnDevice device(splats);
  check_aligned(splats, "splats");
  const auto [args, out] = median_call({splats, order, splat_starts, tile_starts, instances, slots},
                                       width, height, max_alpha);
  splat::cuda::raster_median(args, device.stream());
  return out;
}

// Returns rgb, depth.
Pair raster_solid(const Tensor& splats, const Tensor& order, const Tensor& splat_starts,
                  const Tensor& tile_starts, const Tensor& instances, const Tensor& slots,
                  const Tensor& surfaces, const Tensor& background, int64_t width, int64_t height,
                  int64_t /*num_threads*/) {
  const OnDevice device(splats);
  check_aligned(splats, "splats");
  const auto [args, out] = solid_call({splats, order, splat_starts, tile_starts, instances, slots},
                                      surfaces, background, width, height);
  splat::cuda::raster_solid(args, device.stream());
  return out;
}

Tensor to_uint8(const Tensor& image, int64_t /*num_threads*/) {
  const OnDevice device(image);
  const auto [args, bytes] = bytes_call(image);
  splat::cuda::to_uint8(args, device.stream());
  return bytes;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(splatstudio, SPLAT_CUDA_KEY, m) {
  m.impl("splat_shapes", TORCH_BOX(&splat_shapes));
  m.impl("raster_median", TORCH_BOX(&raster_median));
  m.impl("raster_solid", TORCH_BOX(&raster_solid));
  m.impl("to_uint8", TORCH_BOX(&to_uint8));
}

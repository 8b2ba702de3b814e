// What the bindings of the viewer's modes share, whatever the backend: the operators' arguments,
// with new tensors for what they return.
#pragma once

#include <tuple>
#include <vector>

#include "binding.h"
#include "modes.h"

namespace splat::binding {

using Pair = std::tuple<Tensor, Tensor>;

// The arguments of a kernel, and the two tensors that it writes.
template <typename Args>
struct ModeCall {
  Args args;
  Pair out;
};

inline ModeCall<Shapes> shapes_call(const Tensor& means, const Tensor& quats, const Tensor& scales,
                                    const Tensor& radii, const std::vector<double>& view,
                                    const std::vector<int64_t>& options) {
  const int64_t num = means.size(0);
  Shapes args = {};
  args.gaussians.means = floats(means, {num, 3}, "means");
  args.gaussians.quats = floats(quats, {num, 4}, "quats");
  args.gaussians.scales = floats(scales, {num, 3}, "scales");
  args.gaussians.num = num;
  constexpr int64_t kAllDegrees = 15;  // no coefficients are read
  args.settings = settings_of(view, options, kAllDegrees);
  args.radii = ints<int32_t>(radii, {num, 2}, "radii");
  const Tensor normals = empty({num, 3}), surfaces = empty({num, kSurfaceSize});
  args.normals = mutable_floats(normals);
  args.surfaces = mutable_floats(surfaces);
  return {args, {normals, surfaces}};
}

// What `bin` returned, by its operator's names.
struct Lists {
  const Tensor &splats, &order, &splat_starts, &tile_starts, &instances, &slots;
};

template <typename Args>
void set_lists(Args& args, const Lists& l, int64_t width, int64_t height) {
  args.grid = grid_of(width, height);
  args.splats = splats_of(l.splats, l.order);
  args.lists =
      lists_of(args.splats, args.grid, l.splat_starts, l.tile_starts, l.instances, l.slots);
}

inline ModeCall<RasterMedian> median_call(const Lists& lists, int64_t width, int64_t height,
                                          double max_alpha) {
  RasterMedian args = {};
  set_lists(args, lists, width, height);
  args.max_alpha = static_cast<float>(max_alpha);
  const Tensor depth = empty({height, width}), count = empty({height, width}, ScalarType::Int);
  args.depth = mutable_floats(depth);
  args.count = static_cast<int32_t*>(count.data_ptr());
  return {args, {depth, count}};
}

inline ModeCall<RasterSolid> solid_call(const Lists& lists, const Tensor& surfaces,
                                        const Tensor& background, int64_t width, int64_t height) {
  RasterSolid args = {};
  set_lists(args, lists, width, height);
  args.surfaces = floats(surfaces, {surfaces.size(0), kSurfaceSize}, "surfaces");
  args.background = floats(background, {3}, "background");
  const Tensor rgb = empty({height, width, 3}), depth = empty({height, width});
  args.rgb = mutable_floats(rgb);
  args.depth = mutable_floats(depth);
  return {args, {rgb, depth}};
}

// The arguments, and the bytes in the shape of the image.
inline std::tuple<ToBytes, Tensor> bytes_call(const Tensor& image) {
  Sizes sizes;
  for (int64_t i = 0; i < image.dim(); ++i) sizes.push_back(image.size(i));
  const float* values = floats(image, sizes, "image");
  const Tensor bytes = empty(sizes, ScalarType::Byte);
  return {{values, static_cast<uint8_t*>(bytes.data_ptr()), image.numel()}, bytes};
}

}  // namespace splat::binding

// What the binding's files share: tensors checked and turned into the kernels' structs of pointers.
// With ops*.cpp this is all that sees a torch header, through torch's stable ABI.
#pragma once

#include <torch_device.h>

#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"

// Of torch 2.13 and newer: null where we are loaded in an older one. A library of Windows may lack
// nothing that it names: there torch's is asked for it.
#if defined(_WIN32)
extern "C" __declspec(dllimport) void* GetModuleHandleA(const char* name);
extern "C" __declspec(dllimport) void* GetProcAddress(void* module, const char* name);
inline const char* (*const torch_exception_get_what_without_backtrace)() =
    reinterpret_cast<const char* (*)()>(GetProcAddress(
        GetModuleHandleA("torch_cpu.dll"), "torch_exception_get_what_without_backtrace"));
#else
extern "C" __attribute__((weak)) const char* torch_exception_get_what_without_backtrace();
#endif

namespace splat::binding {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Sizes = std::vector<int64_t>;

inline std::string device_name(int32_t device) {
  return device == kCpu ? "the CPU" : "cuda:" + std::to_string(device);
}

// Where the call at work on this thread wants its tensors; a GPU's binding sets it for its
// duration.
inline int32_t& required_device() {
  thread_local int32_t device = kCpu;
  return device;
}

// How many numbers the splats of a list have there.
inline int64_t& splat_size() {
  thread_local int64_t size = kSplatSize;
  return size;
}

inline void check(const Tensor& t, ScalarType type, const Sizes& sizes, const char* name) {
  const int32_t required = required_device(), actual = device_of(t);
  STD_TORCH_CHECK(actual == required, name, " must be on ", device_name(required), ", is on ",
                  device_name(actual));
  STD_TORCH_CHECK(t.scalar_type() == type, name, " has the wrong data type");
  STD_TORCH_CHECK(t.is_contiguous(), name, " must be contiguous");
  STD_TORCH_CHECK(t.dim() == static_cast<int64_t>(sizes.size()), name, " must have ", sizes.size(),
                  " dimensions, has ", t.dim());
  for (int64_t i = 0; i < t.dim(); ++i) {
    STD_TORCH_CHECK(t.size(i) == sizes[i], name, " must have size ", sizes[i], " in dimension ", i,
                    ", has ", t.size(i));
  }
}

inline const float* floats(const Tensor& t, const Sizes& sizes, const char* name) {
  check(t, ScalarType::Float, sizes, name);
  return static_cast<const float*>(t.data_ptr());
}

inline const float* floats_or_null(const OptionalTensor& t, const Sizes& sizes, const char* name) {
  return t.has_value() ? floats(*t, sizes, name) : nullptr;
}

inline float* mutable_floats(const Tensor& t) { return static_cast<float*>(t.data_ptr()); }

template <typename T>
T* ints(const Tensor& t, const Sizes& sizes, const char* name) {
  check(t, sizeof(T) == 8 ? ScalarType::Long : ScalarType::Int, sizes, name);
  return static_cast<T*>(t.data_ptr());
}

// What torch says of the call that has failed last on this thread; nothing before torch 2.13.
inline std::string torch_says() {
  return torch_exception_get_what_without_backtrace == nullptr
             ? std::string()
             : std::string(": ") + torch_exception_get_what_without_backtrace();
}

// Torch's own error has to pass an interface in C, behind which it is no more than a failed call:
// whoever survives a lack of memory must be able to read that it was one.
inline Tensor empty(const Sizes& sizes, ScalarType type = ScalarType::Float) {
  try {
    return empty_on(required_device(), sizes, type);
  } catch (const std::runtime_error&) {
    std::string shape;
    for (const int64_t size : sizes) shape += (shape.empty() ? "" : " x ") + std::to_string(size);
    throw std::runtime_error("can't allocate memory on " + device_name(required_device()) +
                             " for " + shape + " numbers" + torch_says());
  }
}

inline void check_number(int64_t num_gaussians) {
  STD_TORCH_CHECK(num_gaussians < std::numeric_limits<int32_t>::max(),
                  "too many Gaussians: ", num_gaussians);
}

inline GaussianArrays gaussians_of(const Tensor& means, const Tensor& quats, const Tensor& scales,
                                   const Tensor& opacities, const Tensor& sh0, const Tensor& shN) {
  const int64_t num = means.size(0), rest = shN.size(1);
  check_number(num);
  STD_TORCH_CHECK(rest <= 15, "shN has ", rest, " coefficients, more than those of degree 3");
  return {floats(means, {num, 3}, "means"),
          floats(quats, {num, 4}, "quats"),
          floats(scales, {num, 3}, "scales"),
          floats(opacities, {num}, "opacities"),
          floats(sh0, {num, 1, 3}, "sh0"),
          floats(shN, {num, rest, 3}, "shN"),
          num,
          static_cast<int>(rest)};
}

// `view`: 12 numbers of the world-to-camera matrix by rows, 3 of the camera's position, fx, fy, cx,
// cy, near, far. `options`: width, height, camera model, SH degree, antialiased, raw.
inline ProjectSettings settings_of(const std::vector<double>& view,
                                   const std::vector<int64_t>& options, int64_t num_rest) {
  STD_TORCH_CHECK(view.size() == 21 && options.size() == 6, "a camera is 21 numbers and 6 options");
  ProjectSettings s = {};
  Camera& camera = s.camera;
  const auto at = [&](int i) { return static_cast<float>(view[i]); };
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 3; ++column) camera.rotation[row][column] = at(4 * row + column);
    camera.translation[row] = at(4 * row + 3);
    camera.position[row] = at(12 + row);
  }
  camera.fx = at(15);
  camera.fy = at(16);
  camera.cx = at(17);
  camera.cy = at(18);
  camera.near_plane = at(19);
  camera.far_plane = at(20);
  camera.width = static_cast<int>(options[0]);
  camera.height = static_cast<int>(options[1]);
  STD_TORCH_CHECK(options[2] >= 0 && options[2] <= 2, "unknown camera model");
  camera.model = static_cast<CameraModel>(options[2]);
  s.sh_degree = static_cast<int>(options[3]);
  STD_TORCH_CHECK(s.sh_degree >= 0 && s.sh_degree <= 3, "the SH degree is not in 0..3");
  STD_TORCH_CHECK((s.sh_degree + 1) * (s.sh_degree + 1) <= 1 + num_rest,
                  "the active SH degree is not stored");
  s.antialiased = options[4] != 0;
  s.raw = options[5] != 0;
  return s;
}

inline ImageGrid grid_of(int64_t width, int64_t height) {
  STD_TORCH_CHECK(width > 0 && height > 0 && width <= 65536 && height <= 65536,
                  "an image has 1 to 65536 pixels a side, not ", width, " x ", height);
  const int tile = kTileSize;
  return {static_cast<int>(width), static_cast<int>(height),
          static_cast<int>((width + tile - 1) / tile),
          static_cast<int>((height + tile - 1) / tile)};
}

inline SplatList splats_of(const Tensor& splats, const Tensor& order) {
  const int64_t num = order.size(0);
  floats(splats, {num, splat_size()}, "splats");
  return {mutable_floats(splats), ints<int32_t>(order, {num}, "order"), num};
}

inline TileLists lists_of(const SplatList& splats, const ImageGrid& grid,
                          const Tensor& splat_starts, const Tensor& tile_starts,
                          const Tensor& instances, const Tensor& slots) {
  const int64_t num = instances.size(0);
  return {ints<int64_t>(splat_starts, {splats.num + 1}, "splat_starts"),
          ints<int32_t>(tile_starts, {grid.num_tiles() + 1}, "tile_starts"),
          ints<int32_t>(instances, {num}, "instances"), ints<int32_t>(slots, {num}, "slots"), num};
}

}  // namespace splat::binding

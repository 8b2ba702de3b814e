// What the viewer's modes ask of a backend, beside kernels.h: pictures that need no way back.
#pragma once

#include "kernels.h"

namespace splat {

constexpr int kSurfaceSize = 4;  // floats of a splat's surface

// How a Gaussian's hull lies in the view, for those that are seen; 0 for the others.
struct Shapes {
  GaussianArrays gaussians;  // opacities and coefficients are not read
  ProjectSettings settings;
  const int32_t* radii;  // [N, 2] 0: not seen
  float* normals;        // [N, 3] the shortest axis, turned to the camera, in its axes
  // [N, 4] the depth along the ellipsoid's waist grows by (ux, uy) a pixel; its thickness before
  // and behind it, one standard deviation; pixels a world unit.
  float* surfaces;
};

struct RasterMedian {
  ImageGrid grid;
  SplatList splats;
  TileLists lists;
  float max_alpha;
  float* depth;    // [H, W] of the splat that takes the transmittance below 1/2; 0: none does
  int32_t* count;  // [H, W] splats blended
};

struct RasterSolid {
  ImageGrid grid;
  SplatList splats;
  TileLists lists;
  const float* surfaces;    // [N, kSurfaceSize]
  const float* background;  // [3]
  float* rgb;               // [H, W, 3]
  float* depth;             // [H, W] of the nearest surface; 0: none
};

// Range 0..1 as bytes, beyond it clamped; NaN gives 0.
struct ToBytes {
  const float* values;  // [num]
  uint8_t* bytes;       // [num]
  int64_t num;
};

// Halves go to the even byte; compiled without implicit fusing, which would round ties otherwise.
SPLAT_HD uint8_t byte_of(float x) {
  constexpr float kWhole = 12582912.0f;  // 1.5 * 2^23: a sum of this size has no fraction
  const float scaled = minimum(maximum(x, 0.0f), 1.0f) * 255.0f;
  return static_cast<uint8_t>(static_cast<int32_t>((scaled + kWhole) - kWhole));
}

namespace cpu {

void splat_shapes(const Shapes& args, int num_threads);
void raster_median(const RasterMedian& args, int num_threads);
void raster_solid(const RasterSolid& args, int num_threads);
void to_uint8(const ToBytes& args, int num_threads);

}  // namespace cpu

// The same on a GPU, on the caller's device and stream (see kernels.h).
namespace cuda {

void splat_shapes(const Shapes& args, Stream stream);
void raster_median(const RasterMedian& args, Stream stream);
void raster_solid(const RasterSolid& args, Stream stream);
void to_uint8(const ToBytes& args, Stream stream);

}  // namespace cuda
}  // namespace splat

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

namespace cpu {

void splat_shapes(const Shapes& args, int num_threads);
void raster_median(const RasterMedian& args, int num_threads);
void raster_solid(const RasterSolid& args, int num_threads);

}  // namespace cpu
}  // namespace splat

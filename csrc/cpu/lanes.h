// The inner loops: each is compiled once for any machine and once for AVX2 (see CMakeLists.txt),
// and `lanes()` gives the set that this machine runs. These files use no standard containers,
// because the linker keeps one copy of an inline function and could keep the one with AVX2
// instructions.
#pragma once

#include <cstdint>

#include "../kernels.h"

namespace splat::cpu {

// Rows [begin, end) of an ImageLoss, and what is added up over them.
struct ImageRows {
  int64_t begin, end;
  float ssim_scale;   // weight of one counted value of the SSIM map
  float l1_scale;     // weight of one counted pixel component
  float* scratch;     // image_scratch_size(args) floats
  double* l1_rows;    // [H] sum of |image - target| in a row
  double* ssim_rows;  // [H] sum of 1 - SSIM in a row
};

struct Lanes {
  const char* name;
  void (*project_fwd)(const ProjectFwd&, int64_t begin, int64_t end);
  void (*project_bwd)(const ProjectBwd&, int64_t begin, int64_t end);
  void (*raster_fwd_tile)(const RasterFwd&, int64_t tile);
  void (*raster_bwd_tile)(const RasterBwd&, int64_t tile);
  void (*ssim_rows)(const ImageLoss&, const ImageRows&);
  void (*grad_rows)(const ImageLoss&, const ImageRows&);
  void (*adam)(const Adam&, int64_t begin, int64_t end);
};

#define SPLAT_DECLARE_LANES(isa)                                        \
  namespace isa {                                                       \
  void project_fwd(const ProjectFwd& args, int64_t begin, int64_t end); \
  void project_bwd(const ProjectBwd& args, int64_t begin, int64_t end); \
  void raster_fwd_tile(const RasterFwd& args, int64_t tile);            \
  void raster_bwd_tile(const RasterBwd& args, int64_t tile);            \
  void ssim_rows(const ImageLoss& args, const ImageRows& rows);         \
  void grad_rows(const ImageLoss& args, const ImageRows& rows);         \
  void adam(const Adam& args, int64_t begin, int64_t end);              \
  }

SPLAT_DECLARE_LANES(portable)
#if defined(__x86_64__)
SPLAT_DECLARE_LANES(avx2)
#endif
#undef SPLAT_DECLARE_LANES

// Chosen at the first call; SPLATSTUDIO_CPU=portable in the environment asks for the portable set.
const Lanes& lanes();

constexpr int kSsimHalf = 5;  // the window has 11 x 11 px

inline int64_t image_scratch_size(const ImageLoss& args) {
  const int64_t row = args.width * args.channels;
  const int64_t padded = row + 2 * kSsimHalf * args.channels;
  return 5 * padded + 5 * (2 * kSsimHalf + 1) * row + 7 * row;
}

}  // namespace splat::cpu

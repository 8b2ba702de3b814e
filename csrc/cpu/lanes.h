// The inner loops: each is compiled once for any machine, once for AVX2 and once for AVX-512 (see
// CMakeLists.txt), and `lanes()` gives the set that this machine runs. These files use no standard
// containers, because the linker keeps one copy of an inline function and could keep the one with
// wider instructions.
#pragma once

#include <cstdint>

#include "../dropout.h"
#include "../kernels.h"
#include "splat.h"

namespace splat::cpu {

constexpr int kSsimHalf = 5;  // the window has 11 x 11 px
constexpr int kLossMoments = 4, kLossPartials = 3, kRingRows = 2 * kSsimHalf + 2;

// A part of an image for the loss, and where what is added up over its rows goes.
struct LossBlock {
  int64_t row_begin, row_end, column_begin, column_end;  // px
  float ssim_scale;             // weight of one counted value of the SSIM map
  float l1_scale;               // weight of one counted pixel component
  float* scratch;               // loss_scratch_size(args, columns) floats
  double *l1_sums, *ssim_sums;  // of |image - target| and of 1 - SSIM; row y at y * sum_stride
  int64_t sum_stride;
};

// `num` floats filled up to whole vectors of eight.
constexpr int64_t whole_vectors(int64_t num) { return (num + 7) / 8 * 8; }

inline int64_t loss_scratch_size(const ImageLoss& args, int64_t columns) {
  const int64_t num = columns * args.channels, halo = kSsimHalf * args.channels;
  const int64_t in_size = whole_vectors(num + 4 * halo) + 8;
  const int64_t map_size = whole_vectors(num + 2 * halo) + 8, out_size = whole_vectors(num);
  return kLossMoments * in_size + (2 + kLossPartials) * map_size +
         (kRingRows + 2) * (kLossMoments * map_size + kLossPartials * out_size);
}

constexpr int64_t kAdamChunk = 32;  // Gaussians whose gradients stay in the first-level cache

struct AdamPass {
  AdamTensor tensor;
  const float* grad;
  AdamSettings settings;
  AdamRate rate;
};

// The gradients of rows [begin, end), tensor by tensor; the first row is that of `begin`. There is
// room for kAdamChunk rows.
struct AdamGradients {
  float* of[kNumTensors];
};

struct TileBuffer {
  int32_t* tiles;
  int64_t num, capacity;  // whole images and kMostWritten more at least
};

constexpr int kMostWritten =
    4;  // tiles that `walk_tiles` writes at once, whether there are as many

struct Lanes {
  const char* name;
  void (*project_fwd)(const ProjectFwd&, int64_t begin, int64_t end);
  void (*project_bwd)(const ProjectBwd&, int64_t begin, int64_t end);
  // Appends the tiles of the splats from `begin` on as long as there is room for the most that the
  // next may have, writes their numbers to counts[i], and returns where it stopped.
  int64_t (*walk_tiles)(const Splat*, int64_t begin, int64_t end, const ImageGrid&, int64_t* counts,
                        TileBuffer&);
  void (*raster_fwd_tile)(const RasterFwd&, int64_t tile);
  void (*raster_bwd_tile)(const RasterBwd&, int64_t tile);
  void (*loss_block)(const ImageLoss&, const LossBlock&);
  void (*adam)(const AdamPass&, int64_t begin, int64_t end);
  void (*adam_rows)(const ProjectAdam&, const AdamGradients&, int64_t begin, int64_t end);
  void (*settle_rows)(const SettleAdam&, int64_t begin, int64_t end);
  void (*drop_out)(const DropOut&, int64_t begin, int64_t end);
};

#define SPLAT_DECLARE_LANES(isa)                                                                   \
  namespace isa {                                                                                  \
  void project_fwd(const ProjectFwd& args, int64_t begin, int64_t end);                            \
  void project_bwd(const ProjectBwd& args, int64_t begin, int64_t end);                            \
  int64_t walk_tiles(const Splat* splats, int64_t begin, int64_t end, const ImageGrid& grid,       \
                     int64_t* counts, TileBuffer& buffer);                                         \
  void raster_fwd_tile(const RasterFwd& args, int64_t tile);                                       \
  void raster_bwd_tile(const RasterBwd& args, int64_t tile);                                       \
  void loss_block(const ImageLoss& args, const LossBlock& block);                                  \
  void adam(const AdamPass& args, int64_t begin, int64_t end);                                     \
  void adam_rows(const ProjectAdam& args, const AdamGradients& grads, int64_t begin, int64_t end); \
  void settle_rows(const SettleAdam& args, int64_t begin, int64_t end);                            \
  void drop_out(const DropOut& args, int64_t begin, int64_t end);                                  \
  }

SPLAT_DECLARE_LANES(portable)
#if defined(__x86_64__)
SPLAT_DECLARE_LANES(avx2)
SPLAT_DECLARE_LANES(avx512)
#endif
#undef SPLAT_DECLARE_LANES

// Chosen at the first call: the widest that this machine runs. SPLATSTUDIO_CPU=portable or =avx2 in
// the environment asks for one that is narrower.
const Lanes& lanes();

}  // namespace splat::cpu

// What the binding (ops.cpp) asks of a backend: plain structs of pointers, no torch header.
// All arrays are contiguous float32 unless said otherwise; N Gaussians, V visible ones, M instances
// (visible Gaussian, tile) in the order of the tiles and by depth within a tile.
#pragma once

#include <cmath>
#include <cstdint>

#include "camera.h"
#include "gate.h"

namespace splat {

constexpr int kTileSize = 16;      // px
constexpr int kSplatSize = 16;     // floats of a packed splat on the CPU, one cache line
constexpr int kSlabSize = 12;      // floats of an instance's gradient, at most
constexpr int kPlainSlabSize = 9;  // without depth and absgrad

struct GaussianArrays {
  const float* means;      // [N, 3]
  const float* quats;      // [N, 4] wxyz, any length
  const float* scales;     // [N, 3] standard deviations, or their logarithms
  const float* opacities;  // [N] in 0..1, or logits
  const float* sh0;        // [N, 1, 3]
  const float* shN;        // [N, num_rest, 3]
  int64_t num;
  int num_rest;
};

struct ProjectSettings {
  Camera camera;
  int sh_degree;
  bool antialiased;
  bool raw;  // scales are logarithms, opacities logits, and so are their gradients
};

struct SettleAdam;

struct ProjectFwd {
  GaussianArrays gaussians;
  ProjectSettings settings;
  const SettleAdam* late;  // what rows of shN make up for before they are read, or null
  float* means2d;          // [N, 2]
  float* conics;           // [N, 3]
  float* depths;           // [N]
  float* opacities;        // [N]
  float* colors;           // [N, 3]
  int32_t* radii;          // [N, 2]
};

struct ProjectBwd {
  GaussianArrays gaussians;
  ProjectSettings settings;
  const int32_t* radii;  // [N, 2]
  const float* colors;   // [N, 3] as the forward pass gave them: 0 where they were clamped
  const float *v_means2d, *v_conics, *v_depths, *v_out_opacities, *v_colors;
  // Every row is written, 0 where the Gaussian is not visible; the first row of the arrays is that
  // of Gaussian v_begin. v_shN: null at degree 0.
  int64_t v_begin;
  float *v_means, *v_quats, *v_scales, *v_opacities, *v_sh0, *v_shN;
};

struct ImageGrid {
  int width, height;  // px
  int tiles_x, tiles_y;
  SPLAT_HD int64_t num_tiles() const { return static_cast<int64_t>(tiles_x) * tiles_y; }
};

struct ProjectedArrays {
  const float* means2d;    // [N, 2]
  const float* conics;     // [N, 3]
  const float* depths;     // [N]
  const float* opacities;  // [N]
  const float* colors;     // [N, 3]
  const int32_t* radii;    // [N, 2]
  int64_t num;
};

// Visible splats: on the CPU in the order of the Gaussians, on a GPU by depth.
struct SplatList {
  float* splats;   // [V, kSplatSize] packed, see cpu/splat.h; on a GPU [V, cuda::kPackedSize]
  int32_t* order;  // [V] index of the Gaussian
  int64_t num;
};

// Who covers which tile; what `count_instances` and `emit_instances` make.
struct TileLists {
  int64_t* splat_starts;  // [V + 1] a splat's first slot in the slab
  int32_t* tile_starts;   // [num_tiles + 1] a tile's first instance
  int32_t* instances;     // [M] position in the SplatList
  int32_t* slots;         // [M] where the instance's gradient goes in the slab
  int64_t num;
};

struct RasterFwd {
  ImageGrid grid;
  SplatList splats;
  TileLists lists;
  const float* background;  // [3]
  float max_alpha;
  uint32_t* masks;     // [M] the cells that the backward pass must visit
  int32_t* tile_ends;  // [num_tiles] one behind the last instance that was looked at
  float* rgb;          // [H, W, 3]
  float* alpha;        // [H, W]
  float* depth_sum;    // [H, W]
};

struct RasterBwd {
  ImageGrid grid;
  SplatList splats;
  TileLists lists;
  float max_alpha;
  const uint32_t* masks;
  const int32_t* tile_ends;
  const float *rgb, *alpha, *depth_sum;        // as the forward pass gave them
  const float *v_rgb, *v_alpha, *v_depth_sum;  // null: zero
  bool absgrad;   // v_probe is the sum of absolute contributions to v_means2d
  float* slab;    // [M, slab_size_of(*this)] scratch
  int slab_size;  // on a GPU, for who adds it up
  int64_t num;    // Gaussians; every row below is written
  float *v_means2d, *v_conics, *v_depths, *v_opacities, *v_colors;
  float* v_probe;  // [N, 2] or null
};

inline int slab_size_of(const RasterBwd& args) {
  return args.v_depth_sum != nullptr || args.absgrad ? kSlabSize : kPlainSlabSize;
}

// value = l1_weight * mean |image - target| + ssim_weight * mean SSIM over the counted pixels.
struct ImageLoss {
  const float *image, *target;  // [H, W, C]
  const uint8_t* mask;          // [H, W] 0 or 1, or null: all
  int64_t height, width, channels;
  float l1_weight, ssim_weight;
  bool same_padding;  // else only windows that lie inside the image count
  float* grad;        // [H, W, C] or null
  float* value;       // [1]
};

// The tensors of a model in the order of GaussianArrays.
constexpr int kNumTensors = 6, kScales = 2, kOpacities = 3, kShN = 5;
constexpr int kColumns[kNumTensors] = {3, 4, 3, 1, 3, 45};  // floats a Gaussian, at most
constexpr int kFloatsOfGaussian = 59;

struct AdamTensor {
  float *param, *exp_avg, *exp_avg_sq;
};

struct AdamSettings {
  double beta1, beta2, eps;
};

// What changes from step to step: the parameter moves by size * m / (sqrt(v) * root + eps).
struct AdamRate {
  float size, root;
};

// The step `step` (from 1 on) at a learning rate, with the corrections of the moments' bias.
inline AdamRate adam_rate(const AdamSettings& s, double lr, int64_t step) {
  const double t = static_cast<double>(step);
  return {static_cast<float>(lr / (1.0 - std::pow(s.beta1, t))),
          static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(s.beta2, t)))};
}

// Whether without gradients each of these steps moves a parameter less than the one before.
inline bool moves_shrink(const AdamSettings& s, const AdamRate* rates, int64_t num_steps) {
  // From one step to the next m falls by beta1, sqrt(v) by sqrt(beta2); a tenth of a percent is for
  // what rounding may do.
  const double fall = s.beta1 / std::sqrt(s.beta2);
  for (int64_t i = 0; i + 1 < num_steps; ++i) {
    const double before = static_cast<double>(rates[i].size) / rates[i].root;
    const double after = static_cast<double>(rates[i + 1].size) / rates[i + 1].root;
    if (!(after * fall <= 0.999 * before)) return false;
  }
  return true;
}

struct Adam {
  float* param;
  const float* grad;
  float *exp_avg, *exp_avg_sq;
  int64_t num;
  double lr, beta1, beta2, eps;
  int64_t step;  // counts from 1
};

constexpr int kMostLateSteps = 128;

// The steps of shN since it was last up to date everywhere. A row that is out of sight has no
// gradient and its color is not asked for: it makes up for its steps when it is seen again.
struct LazyRows {
  int32_t* steps_done;      // [N] how many of the steps a row has made
  const AdamRate* history;  // [num_steps]
  int64_t num_steps;
  bool moves_shrink;  // see there
};

// What the gradients grow by, in sight or not: weight * d mean(opacity), weight * d mean(scale).
// For a logit o and a log scale s that is `opacity` o' (1 - o'), o' = sigmoid(o), and `scale`
// exp(s).
struct Regularization {
  float opacity, scale;  // the weights divided by the number of values: N and 3 N
};

// The way back of the projection and a step of Adam in one pass; gradients stay in the cache, on a
// GPU in registers and shared memory.
struct ProjectAdam {
  ProjectBwd projection;  // without its outputs
  AdamTensor tensors[kNumTensors];
  AdamRate rates[kNumTensors];
  AdamSettings settings;
  Regularization regularization;
  LazyRows late;         // the last entry of the history is this step
  int64_t used_columns;  // of shN; the others have neither gradients nor moments
  bool visible_only;  // rows out of sight stay as they are; else they make the step, of shN later
};

// What one of several views of a step gives: a row for each Gaussian that it shows, and no others.
struct ViewRows {
  ProjectSettings settings;
  const int32_t* places;  // [N] the row of a Gaussian; below 0: out of sight
  const float* colors;    // [M, 3] as the forward pass gave them: 0 where they were clamped
  const float* v;  // [M, stride] of means2d, conics, depths, opacities, colors, and perhaps more
  int64_t stride;
};

// Of a step, with cameras of one model: all are arguments of one kernel.
constexpr int kMostViews = 8;

// The way back of several views and a step of Adam on the sum of their gradients, in one pass: the
// views of a Gaussian are added in their order. In sight is what any of the views shows.
struct ViewsAdam {
  ProjectAdam step;  // of its projection the Gaussians alone; no rows are left behind
  ViewRows views[kMostViews];
  int num_views;
};

// Rows of shN that make up for all their steps.
struct SettleAdam {
  AdamTensor tensor;
  int64_t num, columns, used_columns;
  AdamSettings settings;
  LazyRows late;
};

// What a strategy counts of one step, added to what it has.
struct SeenCounts {
  const float* gradients2d;  // [N, 2]
  const int32_t* radii;      // [N, 2]
  int64_t num;
  float scale_x, scale_y, longer_side;
  float *grad2d, *visible;  // [N] sum of the scaled gradients' lengths; how often seen
  float* radius2d;          // [N] largest radius over the longer side, or null
};

namespace cpu {

void project_fwd(const ProjectFwd& args, int num_threads);
void project_bwd(const ProjectBwd& args, int num_threads);
// Adds the gradients of what is visible to what is there, and writes nothing else.
void project_bwd_add(const ProjectBwd& sums, int num_threads);

// Each of these needs what the one before has left in `walk` (cpu/tile_walk.h).
struct TileWalk;

// Visible Gaussians are counted in blocks of consecutive ones, so that the next step can list them
// in parallel; `block_starts` [num_blocks(num)] holds each block's first place in the list.
int64_t num_blocks(int64_t num);
int64_t count_visible(const ProjectedArrays& projected, const ImageGrid& grid,
                      int32_t* block_starts, TileWalk& walk, int num_threads);

// The list is in the order of the tiles that hold the centers; `walk` gets the order by depth, then
// the tiles.
void pack_splats(const ProjectedArrays& projected, const ImageGrid& grid,
                 const int32_t* block_starts, const SplatList& out, TileWalk& walk,
                 int num_threads);
int64_t count_instances(const SplatList& splats, const ImageGrid& grid, int64_t* splat_starts,
                        TileWalk& walk, int num_threads);
// `counters` [num_binning_counters()] is scratch: instances a tile, by chunks of splats.
int64_t num_binning_counters(const SplatList& splats, const ImageGrid& grid, int num_threads);
void emit_instances(const SplatList& splats, const ImageGrid& grid, const TileLists& out,
                    int32_t* counters, const TileWalk& walk, int num_threads);

void raster_fwd(const RasterFwd& args, int num_threads);
void raster_bwd(const RasterBwd& args, int num_threads);

void image_loss(const ImageLoss& args, int num_threads);
void adam_step(const Adam& args, int num_threads);
void project_adam(const ProjectAdam& args, int num_threads);
void project_adam_views(const ViewsAdam& args, int num_threads);
void flush_lazy_adam(const SettleAdam& args, int num_threads);
void count_seen(const SeenCounts& args, int num_threads);

// The instruction set in use: "avx2" or "portable".
const char* instruction_set();

}  // namespace cpu

// The same on a GPU: the caller has made the device current, passes its stream (a cudaStream_t) and
// allocates scratch memory of the sizes that the functions named so return. All Gaussians stay in
// the SplatList, those out of sight behind the others.
namespace cuda {

using Stream = void*;

// Makes a device current for the launches of this thread; torch's own guard knows only torch's
// runtime.
void make_current(int32_t device);

void project_fwd(const ProjectFwd& args, Stream stream);
void project_bwd(const ProjectBwd& args, Stream stream);
void project_bwd_add(const ProjectBwd& sums, Stream stream);

constexpr int kPackedSize = 12;  // floats of a splat as it is drawn
constexpr int kShapeSize = 8;    // of what says which tiles it covers, until they are listed

int64_t sort_splats_scratch(int64_t num);
// Writes the list, `shapes` [num, kShapeSize] in its order, and `splat_starts` [num + 1], the last
// of which is the number of instances.
void sort_splats(const ProjectedArrays& projected, const ImageGrid& grid, const SplatList& out,
                 float* shapes, int64_t* splat_starts, void* scratch, Stream stream);
// One number of the device's memory, when the stream has come so far: the host waits.
int64_t read_back(const int64_t* number, Stream stream);
int64_t emit_instances_scratch(const ImageGrid& grid, int64_t num);
// `out.num` is how many instances there is room for. Where there are more (`splat_starts` tells),
// the lists hold the nearest of them, and nothing is written or read beyond.
void emit_instances(const float* shapes, int64_t num_splats, const ImageGrid& grid,
                    const TileLists& out, void* scratch, Stream stream);

// `checkpoints` [num_checkpoints] takes the place of the masks, `tile_ends` has num_ends entries;
// both may be null where nobody will go back.
int64_t num_checkpoints(const ImageGrid& grid, int64_t num_instances);
int64_t num_ends(const ImageGrid& grid);
void raster_fwd(const RasterFwd& args, float* checkpoints, Stream stream);
// The way back in two parts: it fills the slab, from which the gradients are added up.
void raster_bwd(const RasterBwd& args, const float* checkpoints, Stream stream);
void gather_slab(const RasterBwd& args, Stream stream);

int64_t image_loss_scratch(const ImageLoss& args);  // bytes
void image_loss(const ImageLoss& args, void* scratch, Stream stream);
void adam_step(const Adam& args, Stream stream);
// Where the gate says no, nothing is written. `visible` [rows] 0 or 1, or null: all, says which of
// the rows of `width` numbers make the step.
void adam_step_within(const Adam& args, const uint8_t* visible, int64_t width, const StepGate& gate,
                      Stream stream);
void project_adam(const ProjectAdam& args, const StepGate& gate, Stream stream);
void project_adam_views(const ViewsAdam& args, Stream stream);
// Both as on the CPU; the last step of the history counts only where its gate is open.
void project_lazy(const ProjectFwd& args, const SettleAdam& late, const StepGate& last,
                  Stream stream);
void flush_lazy_adam(const SettleAdam& late, const StepGate& last, Stream stream);
void count_seen(const SeenCounts& args, const StepGate& gate, Stream stream);

}  // namespace cuda
}  // namespace splat

// What the way back of the rasterizer writes for each instance, until a splat's are added up.
#pragma once

#include "../kernels.h"
#include "launch.cuh"

namespace splat::cuda {

// What one splat collects over its tile: a row of the slab; q = d loss / d sigma.
struct alignas(16) Collected {
  float red, green, blue, q, qx, qy, qxx, qxy, qyy, depth, abs_x, abs_y;
};
static_assert(sizeof(Collected) == kSlabSize * sizeof(float), "one slab row");

// Where nobody asks for the last three, a row has eight numbers, and the ninth of all rows lies
// behind them. There a mark says that the others were not written: the rows of instances that
// light does not reach are neither filled with zeros nor read.
struct alignas(16) PlainRow {
  float red, green, blue, q, qx, qy, qxx, qxy;
};
static_assert(sizeof(PlainRow) == (kPlainSlabSize - 1) * sizeof(float), "one slab row but qyy");

template <bool plain>
__device__ __forceinline__ void store_row(const RasterBwd& args, int64_t slot, const Collected& c) {
  if constexpr (plain) {
    const PlainRow row = {c.red, c.green, c.blue, c.q, c.qx, c.qy, c.qxx, c.qxy};
    reinterpret_cast<PlainRow*>(args.slab)[slot] = row;
    args.slab[(kPlainSlabSize - 1) * args.lists.num + slot] = c.qyy;
  } else {
    reinterpret_cast<Collected*>(args.slab)[slot] = c;
  }
}

// No number that arithmetic gives: a GPU's own NaN is another one.
union ReachMark {
  uint32_t bits;
  float value;
};
constexpr uint32_t kNotReached = 0xffffdeadu;

template <bool plain>
__device__ __forceinline__ void mark_not_reached(const RasterBwd& args, int64_t slot) {
  if constexpr (plain) {
    const ReachMark mark = {kNotReached};
    args.slab[(kPlainSlabSize - 1) * args.lists.num + slot] = mark.value;
  } else {
    reinterpret_cast<Collected*>(args.slab)[slot] = {};
  }
}

// Whether a row was written, and the number of it that lies apart.
struct RowState {
  bool reached;
  float qyy;
};

template <bool plain>
__device__ __forceinline__ RowState row_state(const RasterBwd& args, int64_t slot) {
  if constexpr (!plain) return {true, 0.0f};
  ReachMark mark;
  mark.value = args.slab[(kPlainSlabSize - 1) * args.lists.num + slot];
  return {mark.bits != kNotReached, mark.value};
}

// A row of which `state` is known; zeros where it was not written.
template <bool plain>
__device__ __forceinline__ Collected load_row(const RasterBwd& args, int64_t slot,
                                              const RowState& state) {
  if (!state.reached) return {};
  if constexpr (plain) {
    const PlainRow row = reinterpret_cast<const PlainRow*>(args.slab)[slot];
    return {row.red, row.green, row.blue,  row.q, row.qx, row.qy,
            row.qxx, row.qxy,   state.qyy, 0.0f,  0.0f,   0.0f};
  } else {
    return reinterpret_cast<const Collected*>(args.slab)[slot];
  }
}

__device__ __forceinline__ void add(Collected& sum, const Collected& row) {
  sum.red += row.red;
  sum.green += row.green;
  sum.blue += row.blue;
  sum.q += row.q;
  sum.qx += row.qx;
  sum.qy += row.qy;
  sum.qxx += row.qxx;
  sum.qxy += row.qxy;
  sum.qyy += row.qyy;
  sum.depth += row.depth;
  sum.abs_x += row.abs_x;
  sum.abs_y += row.abs_y;
}

}  // namespace splat::cuda

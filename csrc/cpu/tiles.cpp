// Which splats are visible, in which order, and which tiles they cover.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "../blend.h"
#include "../kernels.h"
#include "pool.h"
#include "splat.h"
#include "tile_walk.h"

namespace splat::cpu {
namespace {

constexpr int64_t kBlock = 8192;  // consecutive Gaussians that one task lists

bool is_visible(const ProjectedArrays& p, int64_t i) {
  const float sum = p.means2d[2 * i] + p.means2d[2 * i + 1] + p.conics[3 * i] +
                    p.conics[3 * i + 1] + p.conics[3 * i + 2] + p.depths[i] + p.opacities[i] +
                    p.colors[3 * i] + p.colors[3 * i + 1] + p.colors[3 * i + 2];
  return p.radii[2 * i] > 0 && p.radii[2 * i + 1] > 0 && p.opacities[i] >= kAlphaThreshold &&
         std::isfinite(sum);
}

Splat pack(const ProjectedArrays& p, int64_t i) {
  const float a = p.conics[3 * i], b = p.conics[3 * i + 1], c = p.conics[3 * i + 2];
  const float opacity = p.opacities[i];
  const float extent = 2.0f * std::log(opacity / kAlphaThreshold) + kExtentMargin;
  const double det = static_cast<double>(a) * c - static_cast<double>(b) * b;
  Splat s = {};
  s.x = p.means2d[2 * i];
  s.y = p.means2d[2 * i + 1];
  s.half_a = 0.5f * a;
  s.b = b;
  s.half_c = 0.5f * c;
  s.opacity = opacity;
  s.red = p.colors[3 * i];
  s.green = p.colors[3 * i + 1];
  s.blue = p.colors[3 * i + 2];
  s.depth = p.depths[i];
  s.sigma_limit = 0.5f * extent;
  s.radius_x = static_cast<float>(p.radii[2 * i]);
  s.radius_y = static_cast<float>(p.radii[2 * i + 1]);
  if (det > 1e-6 * static_cast<double>(a) * c && a > 0) {
    s.slope = b / a;
    s.w2 = extent / a;
    s.v2 = static_cast<float>(det / (static_cast<double>(a) * a));
  } else {
    // Rounding has eaten the determinant (a needle of thousands of pixels): spans would be
    // arbitrary, so every row is taken whole, within the box.
    s.w2 = std::numeric_limits<float>::infinity();
  }
  return s;
}

// Gaussians by depth lie scattered in memory.
void fetch_ahead(const ProjectedArrays& p, int64_t i) {
  __builtin_prefetch(p.means2d + 2 * i);
  __builtin_prefetch(p.conics + 3 * i);
  __builtin_prefetch(p.depths + i);
  __builtin_prefetch(p.opacities + i);
  __builtin_prefetch(p.colors + 3 * i);
  __builtin_prefetch(p.radii + 2 * i);
}

// Ascending with the depth, also below 0.
uint32_t sort_key(float depth) {
  uint32_t bits;
  std::memcpy(&bits, &depth, sizeof(bits));
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

struct Keyed {
  uint32_t key;
  int32_t index;
};

// One stable pass of a radix sort by the 11 bits from `shift` on.
void radix_pass(const std::vector<Keyed>& in, std::vector<Keyed>& out, int shift, int num_threads) {
  constexpr int kBuckets = 1 << 11;
  const int64_t num = static_cast<int64_t>(in.size());
  const int64_t num_chunks = std::clamp<int64_t>(num / 16384, 1, 2 * num_threads);
  const int64_t grain = std::max<int64_t>(1, (num + num_chunks - 1) / num_chunks);
  std::vector<int64_t> counters(num_chunks * kBuckets, 0);
  const auto bucket_of = [&](const Keyed& keyed) { return (keyed.key >> shift) & (kBuckets - 1); };
  parallel_ranges(num_threads, num, grain, [&](int64_t begin, int64_t end) {
    int64_t* count = &counters[begin / grain * kBuckets];
    for (int64_t i = begin; i < end; ++i) ++count[bucket_of(in[i])];
  });
  int64_t position = 0;
  for (int bucket = 0; bucket < kBuckets; ++bucket) {
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
      int64_t& counter = counters[chunk * kBuckets + bucket];
      const int64_t count = counter;
      counter = position;
      position += count;
    }
  }
  parallel_ranges(num_threads, num, grain, [&](int64_t begin, int64_t end) {
    int64_t* next = &counters[begin / grain * kBuckets];
    for (int64_t i = begin; i < end; ++i) out[next[bucket_of(in[i])]++] = in[i];
  });
}

// Calls visit(tile) for each tile that holds a pixel centre of the ellipse, row by row.
template <typename Visit>
inline void for_each_tile(const Splat& s, const ImageGrid& grid, const Visit& visit) {
  const float width = static_cast<float>(grid.width), height = static_cast<float>(grid.height);
  // NaN (0 / 0 of a whole-row splat) loses against the radius.
  const float half_height = std::min(s.radius_y, std::sqrt(s.w2 / s.v2) + kPixelMargin);
  const float low = std::clamp(s.y - half_height - 0.5f, -1.0f, height);
  const float high = std::clamp(s.y + half_height - 0.5f, -1.0f, height - 1.0f);
  const int row_begin = std::max(0, static_cast<int>(std::ceil(low)));
  const int row_end = static_cast<int>(std::floor(high)) + 1;
  if (row_begin >= row_end) return;
  // The line on which the ellipse reaches farthest right; farthest left is its mirror image.
  const float extreme =
      s.v2 > 0 ? -s.slope * std::sqrt(s.w2 / ((s.v2 + s.slope * s.slope) * s.v2)) : 0.0f;
  for (int ty = row_begin / kTileSize; ty <= (row_end - 1) / kTileSize; ++ty) {
    const float top = std::max(ty * kTileSize + 0.5f - s.y, -half_height);
    const float bottom = std::min(ty * kTileSize + (kTileSize - 0.5f) - s.y, half_height);
    const float at_right = std::clamp(extreme, top, std::max(top, bottom));
    const float at_left = std::clamp(-extreme, top, std::max(top, bottom));
    float right = s.radius_x, left = -s.radius_x;
    if (s.v2 > 0) {
      const float right2 = s.w2 - s.v2 * at_right * at_right;
      const float left2 = s.w2 - s.v2 * at_left * at_left;
      right =
          std::min(right, std::sqrt(std::max(right2, 0.0f)) - s.slope * at_right + kPixelMargin);
      left = std::max(left, -std::sqrt(std::max(left2, 0.0f)) - s.slope * at_left - kPixelMargin);
    }
    const float first = std::clamp(s.x + left - 0.5f, -1.0f, width);
    const float last = std::clamp(s.x + right - 0.5f, -1.0f, width - 1.0f);
    const int column_begin = std::max(0, static_cast<int>(std::ceil(first)));
    const int column_last = static_cast<int>(std::floor(last));
    if (column_begin > column_last) continue;
    const int64_t row = static_cast<int64_t>(ty) * grid.tiles_x;
    for (int tx = column_begin / kTileSize; tx <= column_last / kTileSize; ++tx) visit(row + tx);
  }
}

// Splats are binned in chunks, each with its own counter a tile, so that threads share nothing.
struct Chunks {
  int64_t num, grain;
};

Chunks chunks_of(const SplatList& splats, int num_threads) {
  const int64_t num = std::clamp<int64_t>(splats.num / 2048, 1, 4 * num_threads);
  return {num, std::max<int64_t>(1, (splats.num + num - 1) / num)};
}

const Splat* packed(const SplatList& list) { return reinterpret_cast<const Splat*>(list.splats); }

}  // namespace

int64_t num_blocks(int64_t num) { return (num + kBlock - 1) / kBlock; }

int64_t count_visible(const ProjectedArrays& projected, int32_t* block_starts, int num_threads) {
  parallel_ranges(num_threads, projected.num, kBlock, [&](int64_t begin, int64_t end) {
    int32_t num = 0;
    for (int64_t i = begin; i < end; ++i) num += is_visible(projected, i) ? 1 : 0;
    block_starts[begin / kBlock] = num;
  });
  int32_t total = 0;
  for (int64_t block = 0; block < num_blocks(projected.num); ++block) {
    const int32_t num = block_starts[block];
    block_starts[block] = total;
    total += num;
  }
  return total;
}

void sort_splats(const ProjectedArrays& projected, const int32_t* block_starts,
                 const SplatList& out, int num_threads) {
  std::vector<Keyed> keyed(out.num), other(out.num);
  parallel_ranges(num_threads, projected.num, kBlock, [&](int64_t begin, int64_t end) {
    int32_t at = block_starts[begin / kBlock];
    for (int64_t i = begin; i < end; ++i) {
      if (!is_visible(projected, i)) continue;
      keyed[at++] = {sort_key(projected.depths[i]), static_cast<int32_t>(i)};
    }
  });
  radix_pass(keyed, other, 0, num_threads);
  radix_pass(other, keyed, 11, num_threads);
  radix_pass(keyed, other, 22, num_threads);
  Splat* splats = reinterpret_cast<Splat*>(out.splats);
  parallel_ranges(num_threads, out.num, 4096, [&](int64_t begin, int64_t end) {
    constexpr int64_t kAhead = 12;
    for (int64_t i = begin; i < end; ++i) {
      if (i + kAhead < end) fetch_ahead(projected, other[i + kAhead].index);
      out.order[i] = other[i].index;
      splats[i] = pack(projected, other[i].index);
    }
  });
}

int64_t num_binning_counters(const SplatList& splats, const ImageGrid& grid, int num_threads) {
  return chunks_of(splats, num_threads).num * grid.num_tiles();
}

int64_t count_instances(const SplatList& splats, const ImageGrid& grid, int64_t* splat_starts,
                        int32_t* counters, TileWalk& walk, int num_threads) {
  const Chunks chunks = chunks_of(splats, num_threads);
  const Splat* list = packed(splats);
  walk.tiles.resize(chunks.num);
  std::fill(counters, counters + chunks.num * grid.num_tiles(), 0);
  parallel_ranges(num_threads, splats.num, chunks.grain, [&](int64_t begin, int64_t end) {
    int32_t* counter = counters + begin / chunks.grain * grid.num_tiles();
    std::vector<int32_t> tiles;
    tiles.reserve(2 * (end - begin));
    for (int64_t i = begin; i < end; ++i) {
      const size_t before = tiles.size();
      for_each_tile(list[i], grid, [&](int64_t tile) {
        ++counter[tile];
        tiles.push_back(static_cast<int32_t>(tile));
      });
      splat_starts[i] = static_cast<int64_t>(tiles.size() - before);
    }
    walk.tiles[begin / chunks.grain] = std::move(tiles);
  });
  int64_t total = 0;
  for (int64_t i = 0; i < splats.num; ++i) {
    const int64_t num = splat_starts[i];
    splat_starts[i] = total;
    total += num;
  }
  splat_starts[splats.num] = total;
  return total;
}

void emit_instances(const SplatList& splats, const ImageGrid& grid, const TileLists& out,
                    int32_t* counters, const TileWalk& walk, int num_threads) {
  const Chunks chunks = chunks_of(splats, num_threads);
  const int64_t num_tiles = grid.num_tiles();
  int32_t position = 0;
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    out.tile_starts[tile] = position;
    for (int64_t chunk = 0; chunk < chunks.num; ++chunk) {
      int32_t& counter = counters[chunk * num_tiles + tile];
      const int32_t count = counter;
      counter = position;
      position += count;
    }
  }
  out.tile_starts[num_tiles] = position;
  parallel_ranges(num_threads, splats.num, chunks.grain, [&](int64_t begin, int64_t end) {
    int32_t* next = counters + begin / chunks.grain * num_tiles;
    const int32_t* tile = walk.tiles[begin / chunks.grain].data();
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t slot = out.splat_starts[i]; slot < out.splat_starts[i + 1]; ++slot, ++tile) {
        const int32_t at = next[*tile]++;
        out.instances[at] = static_cast<int32_t>(i);
        out.slots[at] = static_cast<int32_t>(slot);
      }
    }
  });
}

}  // namespace splat::cpu

// Which splats are visible, in which order, and which tiles they cover.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "../cover.h"
#include "../kernels.h"
#include "lanes.h"
#include "pool.h"
#include "splat.h"
#include "tile_walk.h"

namespace splat::cpu {
namespace {

constexpr int64_t kBlock = 8192;  // consecutive Gaussians that one task lists

double determinant(float a, float b, float c) {
  return static_cast<double>(a) * c - static_cast<double>(b) * b;
}

// One stable pass of a radix sort by the 11 bits from `shift` on.
void radix_pass(const Keyed* in, Keyed* out, int64_t num, int shift, int num_threads) {
  constexpr int kBuckets = 1 << 11;
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

// Of what is sorted by depth.
void order_ties(Keyed* sorted, int64_t num, const Splat* splats) {
  const auto mean_of = [splats](const Keyed& keyed) { return &splats[keyed.position].x; };
  for (int64_t first = 0, end; first < num; first = end) {
    end = first + 1;
    while (end < num && sorted[end].key == sorted[first].key) ++end;
    if (end - first <= kLongestTie) {
      order_tied(sorted + first, static_cast<int>(end - first), mean_of);
    }
  }
}

// Of a counting sort: turns the numbers [num_chunks, num_buckets] into each chunk's first place in
// each bucket, and returns the sum. `bucket_starts` [num_buckets] may be null.
int32_t start_positions(int32_t* counters, int64_t num_buckets, int64_t num_chunks,
                        int32_t* bucket_starts) {
  int32_t total = 0;
  for (int64_t bucket = 0; bucket < num_buckets; ++bucket) {
    if (bucket_starts != nullptr) bucket_starts[bucket] = total;
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
      int32_t& counter = counters[chunk * num_buckets + bucket];
      const int32_t count = counter;
      counter = total;
      total += count;
    }
  }
  return total;
}

// The tile that holds a splat's center, or the nearest.
int32_t home_tile(const ProjectedArrays& p, const ImageGrid& grid, int64_t i) {
  const auto tile = [](float x, int num) {
    return static_cast<int>(clamped(x * (1.0f / kTileSize), 0.0f, static_cast<float>(num - 1)));
  };
  return tile(p.means2d[2 * i + 1], grid.tiles_y) * grid.tiles_x +
         tile(p.means2d[2 * i], grid.tiles_x);
}

// Instances are put in place in chunks of the order by depth, each with its own counter a tile, so
// that threads share nothing.
struct Chunks {
  int64_t num, grain;
};

Chunks chunks_of(const SplatList& splats, int num_threads) {
  const int64_t num = std::clamp<int64_t>(splats.num / 2048, 1, 4 * num_threads);
  return {num, std::max<int64_t>(1, (splats.num + num - 1) / num)};
}

const Splat* packed(const SplatList& list) { return reinterpret_cast<const Splat*>(list.splats); }

// Calls visit(position, slot, tile) for the tiles of the splats [begin, end) of the order by depth.
// Those splats lie scattered in memory.
template <typename Visit>
void for_each_instance(const TileWalk& walk, const int64_t* splat_starts, int64_t begin,
                       int64_t end, const Visit& visit) {
  constexpr int64_t kAhead = 16;
  const auto tiles_of = [&](int32_t position) {
    const int64_t first = position / kBlock * kBlock;
    return walk.tiles[position / kBlock].data() + (splat_starts[position] - splat_starts[first]);
  };
  for (int64_t i = begin; i < end; ++i) {
    if (i + 2 * kAhead < end)
      __builtin_prefetch(splat_starts + walk.by_depth[i + 2 * kAhead].position);
    if (i + kAhead < end) __builtin_prefetch(tiles_of(walk.by_depth[i + kAhead].position));
    const int32_t position = walk.by_depth[i].position;
    const int32_t* tile = tiles_of(position);
    for (int64_t slot = splat_starts[position]; slot < splat_starts[position + 1]; ++slot) {
      visit(position, slot, *tile++);
    }
  }
}

}  // namespace

int64_t num_blocks(int64_t num) { return (num + kBlock - 1) / kBlock; }

int64_t count_visible(const ProjectedArrays& projected, const ImageGrid& grid,
                      int32_t* block_starts, TileWalk& walk, int num_threads) {
  walk.homes.reset(new int32_t[projected.num]);
  parallel_ranges(num_threads, projected.num, kBlock, [&](int64_t begin, int64_t end) {
    int32_t num = 0;
    for (int64_t i = begin; i < end; ++i) {
      const bool visible = is_visible(projected, i);
      walk.homes[i] = visible ? home_tile(projected, grid, i) : -1;
      num += visible ? 1 : 0;
    }
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

void pack_splats(const ProjectedArrays& projected, const ImageGrid& grid,
                 const int32_t* block_starts, const SplatList& out, TileWalk& walk,
                 int num_threads) {
  const int64_t num_tiles = grid.num_tiles();
  const int64_t blocks_a_chunk =
      (num_blocks(projected.num) + 2 * num_threads - 1) / (2 * num_threads);
  const int64_t grain = std::max<int64_t>(1, blocks_a_chunk) * kBlock;
  const int64_t num_chunks = (projected.num + grain - 1) / grain;
  std::vector<int32_t> counters(num_chunks * num_tiles, 0);
  parallel_ranges(num_threads, projected.num, grain, [&](int64_t begin, int64_t end) {
    int32_t* count = &counters[begin / grain * num_tiles];
    for (int64_t i = begin; i < end; ++i) {
      if (walk.homes[i] >= 0) ++count[walk.homes[i]];
    }
  });
  start_positions(counters.data(), num_tiles, num_chunks, nullptr);
  std::unique_ptr<Keyed[]> keyed(new Keyed[out.num]), other(new Keyed[out.num]);
  Splat* splats = reinterpret_cast<Splat*>(out.splats);
  fetch_pages(num_threads, splats, out.num * sizeof(Splat));
  parallel_ranges(num_threads, projected.num, grain, [&](int64_t begin, int64_t end) {
    int32_t* next = &counters[begin / grain * num_tiles];
    int32_t number = block_starts[begin / kBlock];
    for (int64_t i = begin; i < end; ++i) {
      if (walk.homes[i] < 0) continue;
      const int32_t at = next[walk.homes[i]]++;
      keyed[number++] = {depth_key(projected.depths[i]), at};
      out.order[at] = static_cast<int32_t>(i);
      splats[at] = pack_splat(projected, i, determinant);
    }
  });
  radix_pass(keyed.get(), other.get(), out.num, 0, num_threads);
  radix_pass(other.get(), keyed.get(), out.num, 11, num_threads);
  radix_pass(keyed.get(), other.get(), out.num, 22, num_threads);
  order_ties(other.get(), out.num, splats);
  walk.by_depth = std::move(other);
}

int64_t num_binning_counters(const SplatList& splats, const ImageGrid& grid, int num_threads) {
  return chunks_of(splats, num_threads).num * grid.num_tiles();
}

int64_t count_instances(const SplatList& splats, const ImageGrid& grid, int64_t* splat_starts,
                        TileWalk& walk, int num_threads) {
  const Splat* list = packed(splats);
  walk.tiles.resize(num_blocks(splats.num));
  parallel_ranges(num_threads, splats.num, kBlock, [&](int64_t begin, int64_t end) {
    const int64_t capacity = grid.num_tiles() + kMostWritten + 4 * kBlock;
    const std::unique_ptr<int32_t[]> room(new int32_t[capacity]);
    std::vector<int32_t> tiles;
    for (int64_t i = begin; i < end;) {
      TileBuffer buffer = {room.get(), 0, capacity};
      i = lanes().walk_tiles(list, i, end, grid, splat_starts, buffer);
      tiles.insert(tiles.end(), room.get(), room.get() + buffer.num);
    }
    walk.tiles[begin / kBlock] = std::move(tiles);
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
  parallel_ranges(num_threads, splats.num, chunks.grain, [&](int64_t begin, int64_t end) {
    int32_t* count = counters + begin / chunks.grain * num_tiles;
    std::fill(count, count + num_tiles, 0);
    for_each_instance(walk, out.splat_starts, begin, end,
                      [&](int32_t, int64_t, int32_t tile) { ++count[tile]; });
  });
  const int64_t num_chunks = splats.num == 0 ? 0 : (splats.num + chunks.grain - 1) / chunks.grain;
  out.tile_starts[num_tiles] = start_positions(counters, num_tiles, num_chunks, out.tile_starts);
  parallel_ranges(num_threads, splats.num, chunks.grain, [&](int64_t begin, int64_t end) {
    int32_t* next = counters + begin / chunks.grain * num_tiles;
    for_each_instance(walk, out.splat_starts, begin, end,
                      [&](int32_t position, int64_t slot, int32_t tile) {
                        const int32_t at = next[tile]++;
                        out.instances[at] = position;
                        out.slots[at] = static_cast<int32_t>(slot);
                      });
  });
}

}  // namespace splat::cpu

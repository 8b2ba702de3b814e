// Which splats are visible, in which order, and which tiles they cover. All Gaussians stay in the
// lists, those out of sight behind the others and with no tile, so that only the number of
// instances is a number that the host does not know. The lists may have room for more than there
// are, and hold what fits where there are more: then the farthest splats are missing.
#include <cub/cub.cuh>

#include "../cover.h"
#include "launch.cuh"
#include "packed_splat.cuh"

namespace splat::cuda {
namespace {

constexpr uint32_t kOutOfSight = 0xffffffffu;  // no depth's key: that bit pattern is a NaN's

__global__ void __launch_bounds__(kThreads)
    depth_keys_kernel(ProjectedArrays projected, uint32_t* keys, int32_t* order) {
  const int64_t i = global_index();
  if (i >= projected.num) return;
  keys[i] = is_visible(projected, i) ? depth_key(projected.depths[i]) : kOutOfSight;
  order[i] = static_cast<int32_t>(i);
}

// Of what is sorted by depth: the thread at the first of those that are tied orders them.
__global__ void __launch_bounds__(kThreads)
    order_ties_kernel(ProjectedArrays projected, const uint32_t* keys, int32_t* order) {
  const int64_t first = global_index();
  if (first + 1 >= projected.num) return;
  const uint32_t key = keys[first];
  if (key == kOutOfSight || key != keys[first + 1] || (first > 0 && key == keys[first - 1])) return;
  int64_t end = first + 2;
  while (end < projected.num && end - first <= kLongestTie && keys[end] == key) ++end;
  if (end - first > kLongestTie) return;
  order_tied(order + first, static_cast<int>(end - first),
             [&](int32_t i) { return projected.means2d + 2 * static_cast<int64_t>(i); });
}

// a c - b b within 1.5 units in the last place (Kahan's difference of products): an FP64 unit is
// shared by many threads of a GPU.
__device__ __forceinline__ float determinant(float a, float b, float c) {
  const float square = b * b;
  return multiply_add(a, c, -square) + multiply_add(-b, b, square);
}

// Packs the splats by depth and counts the tiles of each.
__global__ void __launch_bounds__(kThreads)
    pack_kernel(ProjectedArrays projected, ImageGrid grid, const uint32_t* keys, SplatList out,
                TileShape* shapes, int64_t* counts) {
  const int64_t i = global_index();
  if (i > out.num) return;
  int64_t count = 0;
  if (i < out.num && keys[i] != kOutOfSight) {
    const cpu::Splat s = pack_splat(projected, out.order[i], determinant);
    reinterpret_cast<PackedSplat*>(out.splats)[i] = packed(s);
    const TileShape shape = tile_shape(s);
    shapes[i] = shape;
    const CoveredRows covered = covered_rows(shape, grid);
    for (int ty = covered.rows.begin; ty < covered.rows.end; ++ty) {
      const TileRange columns = covered_columns(shape, grid, covered, ty);
      count += columns.end - columns.begin;
    }
  }
  counts[i] = count;
}

// The last splat that starts at or before the slot: whose instance it is.
__device__ int64_t splat_of_slot(const int64_t* splat_starts, int64_t num_splats, int64_t slot) {
  int64_t low = 0, high = num_splats;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (splat_starts[middle + 1] <= slot) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

__device__ int64_t tile_of(const TileShape& s, const ImageGrid& grid, int64_t number) {
  const CoveredRows covered = covered_rows(s, grid);
  for (int ty = covered.rows.begin; ty < covered.rows.end; ++ty) {
    const TileRange columns = covered_columns(s, grid, covered, ty);
    const int64_t width = columns.end - columns.begin;
    if (number < width) return static_cast<int64_t>(ty) * grid.tiles_x + columns.begin + number;
    number -= width;
  }
  return grid.num_tiles();
}

// One thread an instance: a splat that covers the whole image costs no thread more than another.
// `Tile` holds the number of tiles, too; the fewer bytes it has, the fewer a sort moves.
template <typename Tile>
__global__ void __launch_bounds__(kThreads)
    emit_kernel(const TileShape* shapes, int64_t num_splats, ImageGrid grid, TileLists lists,
                Tile* tiles, int32_t* slots, int32_t* owners) {
  const int64_t slot = global_index();
  if (slot >= lists.num) return;
  slots[slot] = static_cast<int32_t>(slot);
  if (slot >= lists.splat_starts[num_splats]) {  // room that is left: sorted behind the last tile
    tiles[slot] = static_cast<Tile>(grid.num_tiles());
    return;
  }
  const int64_t splat = splat_of_slot(lists.splat_starts, num_splats, slot);
  owners[slot] = static_cast<int32_t>(splat);
  const int64_t tile = tile_of(shapes[splat], grid, slot - lists.splat_starts[splat]);
  tiles[slot] = static_cast<Tile>(tile);
}

// After the sort by tile: whose instance each is, and where the tiles begin.
template <typename Tile>
__global__ void __launch_bounds__(kThreads)
    tile_starts_kernel(ImageGrid grid, TileLists lists, const Tile* tiles, const int32_t* owners) {
  const int64_t i = global_index();
  if (i > lists.num) return;
  const int64_t num_tiles = grid.num_tiles();
  const int64_t before = i == 0 ? -1 : static_cast<int64_t>(tiles[i - 1]);
  const int64_t here = i == lists.num ? num_tiles : static_cast<int64_t>(tiles[i]);
  for (int64_t tile = before + 1; tile <= here; ++tile) {
    lists.tile_starts[tile] = static_cast<int32_t>(i);
  }
  if (here < num_tiles) lists.instances[i] = owners[lists.slots[i]];
}

// Takes pieces off a block of scratch memory; with a null block it only adds up their sizes.
class Pieces {
 public:
  explicit Pieces(void* block) : block_(static_cast<char*>(block)) {}

  template <typename T>
  T* take(int64_t num) {
    T* piece = reinterpret_cast<T*>(block_ == nullptr ? nullptr : block_ + used_);
    used_ += (num * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return piece;
  }

  int64_t used() const { return used_; }

 private:
  char* block_;
  int64_t used_ = 0;
};

// Fewer than 2^31, as the binding asks: CUB counts in the type that it is given, and in 64 bits its
// tables are twice as large.
int num_items(int64_t num) { return static_cast<int>(num); }

// What `ask` says of so many items, which depends on nothing but them and the device. Each picture
// needs as much as the one before, and every question to CUB takes the host as long as a launch.
template <typename Ask>
size_t remembered(int64_t num, const Ask& ask) {
  struct Answer {
    int device;
    int64_t num;
    size_t bytes;
  };
  thread_local Answer last = {-1, -1, 0};  // one for each kind of question
  int device = 0;
  check(cudaGetDevice(&device), "the name of the device");
  if (last.device != device || last.num != num) last = {device, num, ask()};
  return last.bytes;
}

template <typename Key>
size_t sort_bytes(int64_t num) {
  return remembered(num, [num] {
    size_t bytes = 0;
    const Key* keys = nullptr;
    const int32_t* values = nullptr;
    check(cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, static_cast<Key*>(nullptr), values,
                                          static_cast<int32_t*>(nullptr), num_items(num)),
          "the size of a sort");
    return bytes;
  });
}

size_t scan_bytes(int64_t num) {
  return remembered(num, [num] {
    size_t bytes = 0;
    const int64_t* in = nullptr;
    check(cub::DeviceScan::ExclusiveSum(nullptr, bytes, in, static_cast<int64_t*>(nullptr),
                                        num_items(num)),
          "the size of a scan");
    return bytes;
  });
}

struct SplatScratch {
  uint32_t *keys, *sorted_keys;
  int32_t* order;
  int64_t* counts;
  char* cub;
  size_t cub_bytes;
};

SplatScratch splat_scratch(Pieces& pieces, int64_t num) {
  const size_t sort = sort_bytes<uint32_t>(num), scan = scan_bytes(num + 1);
  const size_t cub_bytes = sort > scan ? sort : scan;
  return {pieces.take<uint32_t>(num),    pieces.take<uint32_t>(num),   pieces.take<int32_t>(num),
          pieces.take<int64_t>(num + 1), pieces.take<char>(cub_bytes), cub_bytes};
}

template <typename Tile>
struct InstanceScratch {
  Tile *tiles, *sorted_tiles;
  int32_t *slots, *owners;  // in the order of the slots: whose instance each is
  char* cub;
  size_t cub_bytes;
};

template <typename Tile>
InstanceScratch<Tile> instance_scratch(Pieces& pieces, int64_t num) {
  const size_t cub_bytes = sort_bytes<Tile>(num);
  return {pieces.take<Tile>(num),    pieces.take<Tile>(num),       pieces.take<int32_t>(num),
          pieces.take<int32_t>(num), pieces.take<char>(cub_bytes), cub_bytes};
}

bool has_narrow_tiles(const ImageGrid& grid) { return grid.num_tiles() <= UINT16_MAX; }

int num_bits(int64_t largest) {
  int bits = 1;
  while (largest >> bits != 0) ++bits;
  return bits;
}

template <typename Tile>
void emit_and_sort(const TileShape* shapes, int64_t num_splats, const ImageGrid& grid,
                   const TileLists& out, void* scratch, Stream stream) {
  Pieces pieces(scratch);
  const InstanceScratch<Tile> s = instance_scratch<Tile>(pieces, out.num);
  size_t cub_bytes = s.cub_bytes;
  launch("emit", emit_kernel<Tile>, blocks_for(out.num), kThreads, stream, shapes, num_splats, grid,
         out, s.tiles, s.slots, s.owners);
  if (out.num > 0) {
    // Stable: within a tile the instances stay in the order of their slots, which is by depth.
    check(cub::DeviceRadixSort::SortPairs(
              s.cub, cub_bytes, s.tiles, s.sorted_tiles, s.slots, out.slots, num_items(out.num), 0,
              num_bits(grid.num_tiles()), static_cast<cudaStream_t>(stream)),
          "the sort by tile");
  }
  launch("tile_starts", tile_starts_kernel<Tile>, blocks_for(out.num + 1), kThreads, stream, grid,
         out, s.sorted_tiles, s.owners);
}

}  // namespace

int64_t sort_splats_scratch(int64_t num) {
  Pieces pieces(nullptr);
  splat_scratch(pieces, num);
  return pieces.used();
}

void sort_splats(const ProjectedArrays& projected, const ImageGrid& grid, const SplatList& out,
                 float* shapes, int64_t* splat_starts, void* scratch, Stream stream) {
  Pieces pieces(scratch);
  const int64_t num = projected.num;
  SplatScratch s = splat_scratch(pieces, num);
  const auto queue = static_cast<cudaStream_t>(stream);
  launch("depth_keys", depth_keys_kernel, blocks_for(num), kThreads, stream, projected, s.keys,
         s.order);
  if (num > 0) {
    check(cub::DeviceRadixSort::SortPairs(s.cub, s.cub_bytes, s.keys, s.sorted_keys, s.order,
                                          out.order, num_items(num), 0, 32, queue),
          "the sort by depth");
    launch("order_ties", order_ties_kernel, blocks_for(num), kThreads, stream, projected,
           s.sorted_keys, out.order);
  }
  launch("pack", pack_kernel, blocks_for(num + 1), kThreads, stream, projected, grid, s.sorted_keys,
         out, reinterpret_cast<TileShape*>(shapes), s.counts);
  check(cub::DeviceScan::ExclusiveSum(s.cub, s.cub_bytes, s.counts, splat_starts,
                                      num_items(num + 1), queue),
        "the sum of instances");
}

int64_t read_back(const int64_t* number, Stream stream) {
  int64_t value = 0;
  const auto queue = static_cast<cudaStream_t>(stream);
  check(cudaMemcpyAsync(&value, number, sizeof(value), cudaMemcpyDeviceToHost, queue),
        "reading the number of instances");
  check(cudaStreamSynchronize(queue), "waiting for the number of instances");
  return value;
}

int64_t emit_instances_scratch(const ImageGrid& grid, int64_t num) {
  Pieces pieces(nullptr);
  if (has_narrow_tiles(grid)) {
    instance_scratch<uint16_t>(pieces, num);
  } else {
    instance_scratch<uint32_t>(pieces, num);
  }
  return pieces.used();
}

void emit_instances(const float* shapes, int64_t num_splats, const ImageGrid& grid,
                    const TileLists& out, void* scratch, Stream stream) {
  const auto emit = has_narrow_tiles(grid) ? emit_and_sort<uint16_t> : emit_and_sort<uint32_t>;
  emit(reinterpret_cast<const TileShape*>(shapes), num_splats, grid, out, scratch, stream);
}

}  // namespace splat::cuda

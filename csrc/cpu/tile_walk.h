// What the steps of binning share: the order by depth, and an ellipse's tiles, found once and read
// twice.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace splat::cpu {

struct Keyed {
  uint32_t key;      // ascending with the depth
  int32_t position;  // in the SplatList
};

struct TileWalk {
  std::unique_ptr<int32_t[]> homes;         // [N] the tile that holds the center; -1: not visible
  std::unique_ptr<Keyed[]> by_depth;        // left without values where they are written anyway
  std::vector<std::vector<int32_t>> tiles;  // for each block of the list, splat by splat
};

}  // namespace splat::cpu

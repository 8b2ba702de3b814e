// What the two steps of binning share: an ellipse's tiles are found once and read twice.
#pragma once

#include <cstdint>
#include <vector>

namespace splat::cpu {

struct TileWalk {
  std::vector<std::vector<int32_t>> tiles;  // for each chunk of splats, splat by splat
};

}  // namespace splat::cpu

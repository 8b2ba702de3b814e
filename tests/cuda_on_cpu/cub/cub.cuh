// The calls of CUB that csrc/cuda uses: a stable radix sort of pairs and an
// exclusive sum.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "../cuda_runtime.h"

namespace cub {

struct DeviceRadixSort {
  // With a null `scratch` only its size is asked for.
  template <typename Key, typename Value>
  static cudaError_t SortPairs(void *scratch, size_t &bytes, const Key *keys,
                               Key *sorted_keys, const Value *values,
                               Value *sorted_values, int64_t num,
                               int begin_bit = 0, int end_bit = 8 * sizeof(Key),
                               cudaStream_t stream = nullptr) {
    if (scratch == nullptr) {
      bytes = 256 + 16 * static_cast<size_t>(num);
      return cudaSuccess;
    }
    emulator::run_on_device("DeviceRadixSort::SortPairs", stream, [&] {
      // The real one writes into its scratch too.
      std::fill_n(static_cast<char *>(scratch), bytes, static_cast<char>(0x5a));
      const uint64_t mask = end_bit - begin_bit >= 64
                                ? ~0ull
                                : (1ull << (end_bit - begin_bit)) - 1;
      const auto digits = [&](Key key) {
        return static_cast<uint64_t>(key) >> begin_bit & mask;
      };
      std::vector<int64_t> order(num);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return digits(keys[a]) < digits(keys[b]);
      });
      for (int64_t i = 0; i < num; ++i) {
        sorted_keys[i] = keys[order[i]];
        sorted_values[i] = values[order[i]];
      }
    });
    return cudaSuccess;
  }
};

struct DeviceScan {
  template <typename T>
  static cudaError_t ExclusiveSum(void *scratch, size_t &bytes, const T *in,
                                  T *out, int64_t num,
                                  cudaStream_t stream = nullptr) {
    if (scratch == nullptr) {
      bytes = 256 + 4 * static_cast<size_t>(num);
      return cudaSuccess;
    }
    emulator::run_on_device("DeviceScan::ExclusiveSum", stream, [&] {
      std::fill_n(static_cast<char *>(scratch), bytes, static_cast<char>(0x5a));
      T sum = 0;
      for (int64_t i = 0; i < num; ++i) {
        const T value = in[i];
        out[i] = sum;
        sum += value;
      }
    });
    return cudaSuccess;
  }
};

} // namespace cub

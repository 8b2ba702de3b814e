// An array in shared memory by its address there. Through a pointer a Hopper works the address out
// anew at every access, with four instructions.
#pragma once

#include <cstring>

#include "launch.cuh"

namespace splat::cuda {

// Of elements of 8 or 16 bytes, aligned to that.
template <typename T>
class SharedArray {
  static_assert(sizeof(T) == 8 || sizeof(T) == 16, "one access");

 public:
#if defined(__CUDA_ARCH__)
  __device__ __forceinline__ explicit SharedArray(T* first)
      : first_(static_cast<uint32_t>(__cvta_generic_to_shared(first))) {
    asm volatile("" : "+r"(first_));
  }

  __device__ __forceinline__ T load(int i) const {
    uint32_t words[sizeof(T) / 4];
    if constexpr (sizeof(T) == 8) {
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                   : "=r"(words[0]), "=r"(words[1])
                   : "r"(address(i))
                   : "memory");
    } else {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                   : "r"(address(i))
                   : "memory");
    }
    T value;
    memcpy(&value, words, sizeof(T));
    return value;
  }

  __device__ __forceinline__ void store(int i, const T& value) const {
    uint32_t words[sizeof(T) / 4];
    memcpy(words, &value, sizeof(T));
    if constexpr (sizeof(T) == 8) {
      asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address(i)), "r"(words[0]),
                   "r"(words[1])
                   : "memory");
    } else {
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address(i)), "r"(words[0]),
                   "r"(words[1]), "r"(words[2]), "r"(words[3])
                   : "memory");
    }
  }

 private:
  __device__ __forceinline__ uint32_t address(int i) const {
    return first_ + static_cast<uint32_t>(i) * static_cast<uint32_t>(sizeof(T));
  }

  uint32_t first_;
#else
  explicit SharedArray(T* first) : first_(first) {}
  T load(int i) const { return first_[i]; }
  void store(int i, const T& value) const { first_[i] = value; }

 private:
  T* first_;
#endif
};

}  // namespace splat::cuda

// SPDX-License-Identifier: Apache-2.0
// checksum() (common/checksum.h) of a page in shared memory, by the 32 threads of a warp: XXH3-64 with its
// default secret and seed 0 (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md).
//
// 1. The input consists of blocks of 16 stripes of 64 bytes, and there are eight 64-bit
//    accumulators. Thread i of a group of four has accumulators 2 i and 2 i + 1, and so 16 bytes of
//    each stripe.
// 2. A block adds to the accumulators a sum that does not depend on them. So the warp's eight
//    groups sum eight blocks at once.
// 3. All groups then add these sums one after the other, because the accumulators are scrambled
//    between two blocks.
// 4. The eight accumulators are merged into the checksum.
//
// For CUDA compilers: the ranks' kernels and the client's (kvclient/device/gather.cu) include it. After a change:
// tools/check_ptx.py --write.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace {

inline constexpr int kChecksumBlockBytes = 1024;

namespace page_checksum_detail {

// The secret's words of 8 bytes, little-endian.
static __constant__ const uint64_t kSecret[24] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
    0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
    0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
    0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
    0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af};
// The secret from byte 121 on, for the last stripe, and from byte 11 on, for the end.
static __constant__ const uint64_t kLastSecret[8] = {
    0xea647378d9c97e9f, 0xc5c3ebd33483acc5, 0x17eb6313faffa081, 0xd349daf0b751dd0d,
    0x2b9e68d429265516, 0x8ffca1477d58be16, 0x45ce31d07ad1b8f8, 0xaf280416958f3acb};
static __constant__ const uint64_t kMergeSecret[8] = {
    0x6dd4de1cad21f72c, 0xa44072db979083e9, 0xe679cb1f67b3b7a4, 0xd05a8278e5c0cc4e,
    0x4608b82172ffcc7d, 0x9035e08e2443f774, 0x52283c4c263a81e6, 0x65d088cb00c391bb};
// Initial values of the accumulators.
static __constant__ const uint64_t kFirst[8] = {
    0x00000000c2b2ae3d, 0x9e3779b185ebca87, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9,
    0x85ebca77c2b2ae63, 0x0000000085ebca77, 0x27d4eb2f165667c5, 0x000000009e3779b1};

constexpr uint64_t kPrime1 = 0x9e3779b185ebca87;  // PRIME64_1
constexpr uint32_t kScramble = 0x9e3779b1;        // PRIME32_1
constexpr uint64_t kAvalanche = 0x165667919e3779f9;

__device__ inline uint64_t product_of_halves(uint64_t x) {
  return (x & 0xffffffffu) * (x >> 32);
}

}  // namespace page_checksum_detail

// `page`: 16-byte aligned, num_blocks of kChecksumBlockBytes, in shared memory. Called by all
// threads of the warp; all get the checksum. kUnrolled: the secret is in registers and loops are unrolled;
// otherwise the code is small.
template <bool kUnrolled>
__device__ inline uint64_t page_checksum(const std::byte* page, int num_blocks) {
  namespace detail = page_checksum_detail;
  constexpr int kStripes = 16;
  constexpr unsigned kWarp = 0xffffffff;
  const int thread = static_cast<int>(threadIdx.x) % 32;
  const int group = thread / 4, place = thread % 4;

  uint64_t registers[kStripes + 1];
  if constexpr (kUnrolled) {
#pragma unroll
    for (int i = 0; i <= kStripes; ++i) registers[i] = detail::kSecret[2 * place + i];
  }
  const auto secret = [&](int i) {
    if constexpr (kUnrolled) return registers[i];
    return detail::kSecret[2 * place + i];
  };
  const uint64_t last_secret[2] = {detail::kLastSecret[2 * place],
                                   detail::kLastSecret[2 * place + 1]};
  // Between blocks: the secret's last eight words.
  const uint64_t scramble[2] = {detail::kSecret[16 + 2 * place], detail::kSecret[17 + 2 * place]};

  uint64_t accumulators[2] = {detail::kFirst[2 * place], detail::kFirst[2 * place + 1]};
#pragma unroll 1
  for (int first = 0; first < num_blocks; first += 8) {
    uint64_t sums[2] = {};
    const int block = first + group;
    if (block < num_blocks) {
      const auto* words =
          reinterpret_cast<const ulonglong2*>(page + block * kChecksumBlockBytes) + place;
#pragma unroll kUnrolled ? kStripes : 4
      for (int stripe = 0; stripe < kStripes; ++stripe) {
        const ulonglong2 data = words[4 * stripe];
        const bool is_last = stripe == kStripes - 1 && block == num_blocks - 1;
        const uint64_t keys[2] = {is_last ? last_secret[0] : secret(stripe),
                                  is_last ? last_secret[1] : secret(stripe + 1)};
        sums[0] += data.y + detail::product_of_halves(data.x ^ keys[0]);
        sums[1] += data.x + detail::product_of_halves(data.y ^ keys[1]);
      }
    }
    for (int i = 0; i < 8 && first + i < num_blocks; ++i) {
      const bool is_last = first + i == num_blocks - 1;
#pragma unroll
      for (int a = 0; a < 2; ++a) {
        const uint64_t sum = accumulators[a] + __shfl_sync(kWarp, sums[a], 4 * i + place);
        accumulators[a] =
            is_last ? sum : (sum ^ (sum >> 47) ^ scramble[a]) * uint64_t{detail::kScramble};
      }
    }
  }

  const uint64_t left = accumulators[0] ^ detail::kMergeSecret[2 * place];
  const uint64_t right = accumulators[1] ^ detail::kMergeSecret[2 * place + 1];
  uint64_t merged = (left * right) ^ __umul64hi(left, right);
  merged += __shfl_xor_sync(kWarp, merged, 1);
  merged += __shfl_xor_sync(kWarp, merged, 2);
  merged += static_cast<uint64_t>(num_blocks) * kChecksumBlockBytes * detail::kPrime1;
  merged = (merged ^ (merged >> 37)) * detail::kAvalanche;
  return merged ^ (merged >> 32);
}

}  // namespace millrace

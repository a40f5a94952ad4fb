// SPDX-License-Identifier: Apache-2.0
// The kernel that copies pages from a rank's pool in GPU memory (of another GPU, over NVLink or the bus) into
// the blocks of an engine. Each thread block takes one page. It reads the whole page into shared memory and
// compares it with its checksum, XXH3-64 (kernels/cuda/sm90/rows/page_checksum.cuh says how a warp computes
// that). Only a correct page is written, and from shared memory, so later writes of the rank to its pool do no
// harm.
//
// The build does not compile this file, so that the client needs no nvcc: gather_ptx.cc has nvcc's output.
// After a change: tools/check_ptx.py --write.

struct Page {
  unsigned long long offset;
  unsigned long long checksum;
  unsigned int first_piece;
  unsigned int num_pieces;
};

struct Piece {
  unsigned long long to;
  unsigned int from;
  unsigned int bytes;
};

typedef unsigned long long u64;

// XXH3's secret as words, its parts for the last stripe and for the end, and the initial accumulators.
__constant__ const u64 kSecret[24] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072,
    0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0,
    0xcb00c391bb52283c, 0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
    0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a, 0x647378d9c97e9fc8,
    0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af};
__constant__ const u64 kLastSecret[8] = {0xea647378d9c97e9f, 0xc5c3ebd33483acc5, 0x17eb6313faffa081,
                                         0xd349daf0b751dd0d, 0x2b9e68d429265516, 0x8ffca1477d58be16,
                                         0x45ce31d07ad1b8f8, 0xaf280416958f3acb};
__constant__ const u64 kMergeSecret[8] = {
    0x6dd4de1cad21f72c, 0xa44072db979083e9, 0xe679cb1f67b3b7a4, 0xd05a8278e5c0cc4e,
    0x4608b82172ffcc7d, 0x9035e08e2443f774, 0x52283c4c263a81e6, 0x65d088cb00c391bb};
__constant__ const u64 kFirst[8] = {0x00000000c2b2ae3d, 0x9e3779b185ebca87, 0xc2b2ae3d27d4eb4f,
                                    0x165667b19e3779f9, 0x85ebca77c2b2ae63, 0x0000000085ebca77,
                                    0x27d4eb2f165667c5, 0x000000009e3779b1};
__device__ inline u64 product_of_halves(u64 x) {
  return (x & 0xffffffffu) * (x >> 32);
}
// The checksum of a page in shared memory, num_blocks of 1024 bytes; computed by one warp.
__device__ inline u64 page_checksum(const unsigned char* page, unsigned int num_blocks) {
  const unsigned int thread = threadIdx.x % 32, group = thread / 4, place = thread % 4;
  const u64 last[2] = {kLastSecret[2 * place], kLastSecret[2 * place + 1]};
  const u64 scramble[2] = {kSecret[16 + 2 * place], kSecret[17 + 2 * place]};
  u64 a[2] = {kFirst[2 * place], kFirst[2 * place + 1]};
#pragma unroll 1
  for (unsigned int first = 0; first < num_blocks; first += 8) {
    u64 sums[2] = {};
    const unsigned int block = first + group;
    if (block < num_blocks) {
      const ulonglong2* words = (const ulonglong2*)(page + block * 1024) + place;
#pragma unroll 4
      for (int stripe = 0; stripe < 16; ++stripe) {
        const ulonglong2 data = words[4 * stripe];
        const bool is_last = stripe == 15 && block == num_blocks - 1;
        sums[0] +=
            data.y + product_of_halves(data.x ^ (is_last ? last[0] : kSecret[2 * place + stripe]));
        sums[1] += data.x + product_of_halves(
                                data.y ^ (is_last ? last[1] : kSecret[2 * place + stripe + 1]));
      }
    }
#pragma unroll 1
    for (unsigned int i = 0; i < 8 && first + i < num_blocks; ++i) {
      const bool is_last = first + i == num_blocks - 1;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const u64 sum = a[n] + __shfl_sync(0xffffffff, sums[n], 4 * i + place);
        a[n] = is_last ? sum : (sum ^ (sum >> 47) ^ scramble[n]) * 0x9e3779b1ull;
      }
    }
  }
  const u64 left = a[0] ^ kMergeSecret[2 * place], right = a[1] ^ kMergeSecret[2 * place + 1];
  u64 merged = (left * right) ^ __umul64hi(left, right);
  merged += __shfl_xor_sync(0xffffffff, merged, 1);
  merged += __shfl_xor_sync(0xffffffff, merged, 2);
  merged += num_blocks * 1024ull * 0x9e3779b185ebca87ull;
  merged = (merged ^ (merged >> 37)) * 0x165667919e3779f9ull;
  return merged ^ (merged >> 32);
}
// right[i]: whether page i of the grid is what its rank wrote. page_bytes: a multiple of 1 KiB.
extern "C" __global__ void mr_gather(const unsigned char* pool, const Page* pages,
                                     const Piece* pieces, unsigned int page_bytes,
                                     unsigned int* right) {
  extern __shared__ uint4 data[];
  __shared__ bool good;
  const Page page = pages[blockIdx.x];
  const uint4* from = (const uint4*)(pool + page.offset);
#pragma unroll 8
  for (unsigned int i = threadIdx.x; i < page_bytes / 16; i += 256) data[i] = __ldcg(from + i);
  __syncthreads();
  const unsigned char* bytes = (const unsigned char*)data;
  if (threadIdx.x < 32) {
    const bool same = page_checksum(bytes, page_bytes / 1024) == page.checksum;
    if (threadIdx.x == 0) right[blockIdx.x] = good = same;
  }
  __syncthreads();
  if (!good) return;
  const unsigned int lane = threadIdx.x % 32;
#pragma unroll 1
  for (unsigned int i = threadIdx.x / 32; i < page.num_pieces; i += 8) {
    const Piece p = pieces[page.first_piece + i];
    unsigned char* to = (unsigned char*)p.to;
    if (((p.to | p.from | p.bytes) & 15) == 0) {
#pragma unroll 1
      for (unsigned int at = lane * 16; at < p.bytes; at += 512)
        *(uint4*)(to + at) = *(const uint4*)(bytes + p.from + at);
    } else {
#pragma unroll 1
      for (unsigned int at = lane; at < p.bytes; at += 32) to[at] = bytes[p.from + at];
    }
  }
}

// SPDX-License-Identifier: Apache-2.0
// The kernel that copies pages from a rank's pool in GPU memory (of another GPU, over NVLink or the bus) into
// the blocks of an engine. Each thread block takes one page. It reads the whole page into shared memory and
// compares it with its checksum. Only a correct page is written, and from shared memory, so later writes of the
// rank to its pool do no harm.
//
// The build does not compile this file, so that the client needs no nvcc: gather_ptx.cc has nvcc's output.
// After a change: tools/check_ptx.py --write.

#include <cstddef>

#include "common/page_checksum.cuh"

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
    const int blocks = (int)page_bytes / millrace::kChecksumBlockBytes;
    const bool same =
        millrace::page_checksum<false>((const std::byte*)bytes, blocks) == page.checksum;
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

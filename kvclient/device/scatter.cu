// SPDX-License-Identifier: Apache-2.0
// The kernel that copies received pages from a staging buffer in GPU memory to their places in the blocks of an
// engine. Each warp copies one piece.
//
// The build does not compile this file, so that the client needs no nvcc: scatter_ptx.cc has nvcc's output.
// After a change: tools/check_ptx.py --write.

struct Piece {
  unsigned long long to;
  unsigned int from;
  unsigned int bytes;
};

extern "C" __global__ void mr_scatter(const unsigned char* data, const Piece* pieces,
                                      unsigned int n) {
  const unsigned int i = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (i >= n) return;
  const Piece p = pieces[i];
  const unsigned char* from = data + p.from;
  unsigned char* to = (unsigned char*)p.to;
  if (((p.to | (unsigned long long)from | p.bytes) & 15) == 0) {
#pragma unroll 4
    for (unsigned int at = lane * 16; at < p.bytes; at += 512)
      *(uint4*)(to + at) = *(const uint4*)(from + at);
  } else {
    for (unsigned int at = lane; at < p.bytes; at += 32) to[at] = from[at];
  }
}

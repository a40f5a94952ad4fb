#include "kernels/cuda/attention_kernel.cuh"

namespace millrace::kernels::cuda {

template void launch_attention<128, kDenseGroupTiles>(const AttentionArguments&, const CUtensorMap&,
                                                      const CUtensorMap&, int, cudaStream_t);

}  // namespace millrace::kernels::cuda

#include "kernels/cuda/attention_kernel.cuh"

namespace millrace::kernels::cuda {

template void launch_attention<128, kWideGroupTiles, /*kPacked=*/false>(const AttentionArguments&,
                                                                        const KvSlab&, int,
                                                                        cudaStream_t);

}  // namespace millrace::kernels::cuda

// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm90/attention/attention_kernel.cuh"

namespace millrace::kernels::cuda {

template void launch_attention<BFloat16, 128>(const AttentionArguments&, const KvSlab&, int,
                                              cudaStream_t);

}  // namespace millrace::kernels::cuda

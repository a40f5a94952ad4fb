// SPDX-License-Identifier: Apache-2.0
// The kernels of gather.cu and scatter.cu in PTX, which the driver compiles for its GPU.
#pragma once

namespace millrace::kvclient {

extern const char kGatherPtx[];
extern const char kScatterPtx[];

}  // namespace millrace::kvclient

// SPDX-License-Identifier: Apache-2.0
// The kernel of gather.cu in PTX, which the driver compiles for its GPU.
#pragma once

namespace millrace::kvclient {

extern const char kGatherPtx[];

}  // namespace millrace::kvclient

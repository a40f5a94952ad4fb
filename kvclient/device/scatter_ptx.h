// SPDX-License-Identifier: Apache-2.0
// The kernel that writes pages to their places, in PTX, which the driver compiles for its GPU.
#pragma once

namespace millrace::kvclient {

extern const char kScatterPtx[];

}  // namespace millrace::kvclient

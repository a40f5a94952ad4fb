// The kernel that puts pages in their places, in PTX, which the driver compiles for its GPU.
#pragma once

namespace millrace::kvclient {

extern const char kScatterPtx[];

}  // namespace millrace::kvclient

// SPDX-License-Identifier: Apache-2.0
// Host memory that is reused once nobody holds it: the first touch of a memory page costs more than
// writing to it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/aligned_buffer.h"

namespace millrace::model {

// One thread at a time. Taken memory may outlive this object.
class RecycledMemory {
 public:
  // Returns at least `bytes`, uninitialised.
  std::shared_ptr<AlignedBuffer> take(int64_t bytes);

 private:
  std::vector<std::shared_ptr<AlignedBuffer>> buffers_;
};

}  // namespace millrace::model

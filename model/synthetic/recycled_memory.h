// Host memory that is used again once nobody holds it: the first touch of a page costs more than
// what is written to it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/aligned_buffer.h"

namespace millrace::model {

// One thread at a time. What was taken may outlive it.
class RecycledMemory {
 public:
  // At least `bytes`, uninitialised.
  std::shared_ptr<AlignedBuffer> take(int64_t bytes);

 private:
  std::vector<std::shared_ptr<AlignedBuffer>> buffers_;
};

}  // namespace millrace::model

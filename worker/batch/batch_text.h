// SPDX-License-Identifier: Apache-2.0
// Converts the text of a batch job's lines with the model's tokenizer, which is started for the
// first of them. Rank 0 only. Calls block, with a deadline.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"
#include "tokenizer/tokenizer.h"

namespace millrace::worker {

class BatchText {
 public:
  // `vocab_size`: of the model.
  BatchText(std::string directory, std::string python, int64_t vocab_size)
      : directory_(std::move(directory)), python_(std::move(python)), vocab_size_(vocab_size) {}

  Result<std::vector<int32_t>> encode(const std::string& text, bool add_special_tokens);
  // The text that `generated` adds to that of `prompt`.
  Result<std::string> read(std::span<const int32_t> prompt, const std::vector<int32_t>& generated);

 private:
  Result<void> start();

  const std::string directory_;
  const std::string python_;
  const int64_t vocab_size_;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
};

}  // namespace millrace::worker

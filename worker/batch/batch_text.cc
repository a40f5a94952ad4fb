// SPDX-License-Identifier: Apache-2.0
#include "worker/batch/batch_text.h"

#include <algorithm>

#include "common/log.h"
#include "tokenizer/text_messages.h"

namespace millrace::worker {

namespace {

// The longest text takes seconds, and several times as long on a machine with as many ranks as
// cores.
constexpr std::chrono::minutes kPatience{5};

}  // namespace

Result<void> BatchText::start() {
  if (tokenizer_) return {};
  tokenizer::TokenizerOptions options;
  options.process = {.python = python_, .directory = directory_};
  options.processes = 1;
  MR_ASSIGN_OR_RETURN(auto started, tokenizer::Tokenizer::create(options));
  if (started->num_ids() > vocab_size_) {
    log::warn(
        "{} has {} token ids, the model a vocabulary of {}: prompts with the others are refused",
        directory_, started->num_ids(), vocab_size_);
  }
  tokenizer_ = std::move(started);
  return {};
}

Result<std::vector<int32_t>> BatchText::encode(const std::string& text, bool add_special_tokens) {
  if (std::ssize(text) > tokenizer::kMaxTextBytes) {
    return error(Errc::kTooLarge, "text of {} bytes, limit {}", text.size(),
                 tokenizer::kMaxTextBytes);
  }
  MR_RETURN_IF_ERROR(start());
  MR_ASSIGN_OR_RETURN(const auto reply,
                      tokenizer_->call(tokenizer::encode_request(text, add_special_tokens),
                                       Deadline::after(kPatience)));
  MR_ASSIGN_OR_RETURN(auto ids, tokenizer::encoded_ids(reply, tokenizer_->num_ids()));
  const auto bad = std::ranges::find_if(ids, [this](int32_t id) { return id >= vocab_size_; });
  if (bad == ids.end()) return ids;
  return error(Errc::kInvalidArgument,
               "token {} of the text is {}, of which the model with a vocabulary of {} knows "
               "nothing",
               bad - ids.begin(), *bad, vocab_size_);
}

Result<std::string> BatchText::read(std::span<const int32_t> prompt,
                                    const std::vector<int32_t>& generated) {
  MR_RETURN_IF_ERROR(start());
  MR_ASSIGN_OR_RETURN(const auto reply,
                      tokenizer_->call(tokenizer::following_request(prompt, generated, {}),
                                       Deadline::after(kPatience)));
  MR_ASSIGN_OR_RETURN(auto following, tokenizer::following_text(reply));
  return std::move(following.text);
}

}  // namespace millrace::worker

#include "worker/group/prompt_pages.h"

#include <utility>

namespace millrace::worker {

PromptPages::PromptPages(kernels::Device& device, kvstore::KvStore& store, PageWriter& writer,
                         std::string request_id, std::vector<int64_t> pages)
    : store_(store), request_id_(std::move(request_id)), pages_(std::move(pages)) {
  sink_.emplace(device, store, writer, request_id_, pages_);
}

PromptPages::~PromptPages() {
  sink_.reset();  // nobody writes to them any more
  if (forgets_) store_.abort(request_id_);
}

Result<void> PromptPages::begin(int64_t num_tokens) {
  MR_RETURN_IF_ERROR(store_.begin_request(request_id_, num_tokens, pages_));
  forgets_ = true;
  return {};
}

Result<void> PromptPages::open(const std::string& lease_id) {
  return store_.open(request_id_, lease_id);
}

Result<kvstore::Placement> PromptPages::seal(const std::string& lease_id, Duration lease) {
  return store_.seal(request_id_, lease_id, lease);
}

}  // namespace millrace::worker

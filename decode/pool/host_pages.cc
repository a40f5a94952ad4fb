// SPDX-License-Identifier: Apache-2.0
#include "decode/pool/host_pages.h"

#include <algorithm>

#include "common/check.h"

namespace millrace::decode {

using kvclient::PageName;

HostPages::HostPages(PageSource& source, const Options& options)
    : options_(options),
      source_(source),
      states_(static_cast<size_t>(options.num_layers * options.num_kv_heads * options.num_pages)),
      num_missing_(options.num_kept) {}

size_t HostPages::number_of(const PageName& name) const {
  const int64_t head = name.kv_head - options_.first_kv_head;
  MR_CHECK(name.layer >= 0 && name.layer < options_.num_layers && head >= 0 &&
               head < options_.num_kv_heads && name.page >= 0 && name.page < options_.num_pages,
           "layer {}, kv head {}, page {}: not of this rank", name.layer, name.kv_head, name.page);
  return static_cast<size_t>((name.layer * options_.num_kv_heads + head) * options_.num_pages +
                             name.page);
}

Result<void> HostPages::bring(std::span<const PageName> names, FetchUrgency urgency,
                              Deadline deadline) {
  while (true) {
    std::vector<PageName> absent;
    {
      std::unique_lock lock(mutex_);
      bool coming = false;
      for (const PageName& name : names) {
        State& state = states_[number_of(name)];
        coming = coming || state == State::kComing;
        if (state != State::kAbsent) continue;
        state = State::kComing;
        absent.push_back(name);
      }
      if (absent.empty()) {
        if (!coming) return {};
        if (changed_.wait_until(lock, deadline.when()) == std::cv_status::timeout &&
            deadline.passed()) {
          return Error(Errc::kDeadlineExceeded, "pages did not come in time");
        }
        continue;
      }
    }
    MR_RETURN_IF_ERROR(fetch(absent, urgency, deadline));
  }
}

// Fetches pages that this call has marked as coming.
Result<void> HostPages::fetch(std::span<const PageName> names, FetchUrgency urgency,
                              Deadline deadline) {
  std::vector<kvclient::NamedPage> pages;
  pages.reserve(names.size());
  for (const PageName& name : names) {
    pages.push_back(
        {name, options_.memory + static_cast<int64_t>(number_of(name)) * options_.page_bytes});
  }
  std::sort(pages.begin(), pages.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  auto fetched = source_.fetch(pages, urgency, deadline);
  const std::lock_guard lock(mutex_);
  for (const PageName& name : names) {
    states_[number_of(name)] = fetched.ok() ? State::kHere : State::kAbsent;
  }
  if (fetched.ok()) {
    num_missing_ -= std::ssize(names);
    if (urgency == FetchUrgency::kNeed) num_needed_ += std::ssize(names);
  }
  changed_.notify_all();
  return fetched;
}

bool HostPages::has_all() const {
  const std::lock_guard lock(mutex_);
  return num_missing_ == 0;
}

int64_t HostPages::num_needed() const {
  const std::lock_guard lock(mutex_);
  return num_needed_;
}

}  // namespace millrace::decode

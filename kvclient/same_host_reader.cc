// SPDX-License-Identifier: Apache-2.0
#include "kvclient/same_host_reader.h"

#include <cstring>

#include "common/checksum.h"
#include "common/system/stream_copy.h"

namespace millrace::kvclient {

namespace {

constexpr std::string_view kTransportName = "same-host";

}  // namespace

std::vector<PageRun> SameHostReader::read(const PlacedRun& placed,
                                          const SameHostRanks::Pools* pools,
                                          const PagePieces& places, const PageDecoder& decoder,
                                          PullOutcome& outcome) {
  const PageRun& run = placed.run;
  if (pools == nullptr || placed.pages.empty()) return {run};
  page_.resize(static_cast<size_t>(decoder.stored_bytes()));
  std::vector<size_t> left;
  for (size_t i = 0; i < placed.pages.size(); ++i) {
    const PlacedPage& page = placed.pages[i];
    const int64_t number = run.page(static_cast<int64_t>(i));
    const auto staged = places.staged(number);
    const bool is_direct = !staged.empty() && !decoder.decodes();
    const auto to = is_direct ? staged : std::span(page_);
    if (!copy(page, *pools, to)) {
      left.push_back(i);
      continue;
    }
    if (checksum(std::span<const std::byte>(to)) != page.page.checksum) {
      ++outcome.corrupt_pages;
      left.push_back(i);
      continue;
    }
    if (!is_direct) {
      pieces_.clear();
      places.append(run.layer, run.kv_head, number, pieces_);
      stream_copy(pieces_, decoder.decode(run.layer, run.kv_head, page_, decoded_).data());
    }
    ++outcome.pages_by_tier[page.page.tier];
    outcome.add_bytes(kTransportName, decoder.stored_bytes());
  }
  std::vector<PageRun> runs;
  for (auto& part : placed.parts(left)) runs.push_back(std::move(part.run));
  return runs;
}

// False if the page cannot be copied.
bool SameHostReader::copy(const PlacedPage& page, const SameHostRanks::Pools& pools,
                          std::span<std::byte> to) {
  if (page.pool == 0 || page.pool > pools.size()) return false;
  const auto pool = pools[page.pool - 1].bytes();
  if (page.offset > pool.size() || to.size() > pool.size() - page.offset) return false;
  std::memcpy(to.data(), pool.data() + page.offset, to.size());
  return true;
}

}  // namespace millrace::kvclient

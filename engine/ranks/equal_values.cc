// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks/equal_values.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/checksum.h"
#include "engine/ranks/rank_values.h"

namespace millrace::engine {

namespace {

// A value in a fixed size, for a single collective: the beginning of a long value, and a checksum
// of the whole.
struct Record {
  explicit Record(std::string_view value = {}) : digest(checksum(std::as_bytes(std::span(value)))) {
    std::copy_n(value.begin(), std::min(value.size(), text.size() - 1), text.begin());
  }
  bool operator==(const Record& other) const { return digest == other.digest; }

  uint64_t digest;
  std::array<char, 120> text = {};
};

Result<void> compare(std::string_view name, std::span<const Record> ranks) {
  const auto other =
      std::ranges::find_if(ranks, [&](const Record& rank) { return rank != ranks.front(); });
  if (other == ranks.end()) return {};
  return error(Errc::kInvalidArgument,
               "the ranks of a group must be started alike: {} is '{}' on rank 0, '{}' on rank {}",
               name, ranks.front().text.data(), other->text.data(), other - ranks.begin());
}

}  // namespace

Result<void> require_equal(comm::Communicator& world, std::string_view version,
                           const std::vector<NamedValue>& values, Deadline deadline) {
  MR_ASSIGN_OR_RETURN(const auto versions, gather_values(world, Record(version), deadline));
  MR_RETURN_IF_ERROR(compare("the version", versions));
  for (const auto& [name, value] : values) {
    MR_ASSIGN_OR_RETURN(const auto records, gather_values(world, Record(value), deadline));
    MR_RETURN_IF_ERROR(compare(name, records));
  }
  return {};
}

}  // namespace millrace::engine

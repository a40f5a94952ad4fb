// SPDX-License-Identifier: Apache-2.0
#include "worker/control/ledger_file.h"

#include <cstring>
#include <span>
#include <string_view>

namespace millrace::worker {

namespace {

constexpr size_t kEntryBytes = sizeof(uint64_t) + sizeof(PageContentKey);

template <typename T>
void put(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// The caller has checked that there are enough bytes.
template <typename T>
T take(std::string_view& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

std::string encode(const LedgerRecord& record) {
  std::string body;
  put(body, static_cast<uint32_t>(record.entries.size()));
  for (const auto& entry : record.entries) {
    put(body, entry.stored_key);
    put(body, entry.page);
  }
  body += record.origins.SerializeAsString();
  return body;
}

// A malformed body, though its checksum is right, adds nothing.
void decode(std::string_view body, LedgerRecord& all) {
  if (body.size() < sizeof(uint32_t)) return;
  const auto num_entries = take<uint32_t>(body);
  if (body.size() / kEntryBytes < num_entries) return;
  const auto entries = body.substr(0, num_entries * kEntryBytes);
  body.remove_prefix(entries.size());
  protocol::CachedPrefixes origins;
  if (!origins.ParseFromArray(body.data(), static_cast<int>(body.size()))) return;
  for (auto rest = entries; !rest.empty();) {
    const auto key = take<uint64_t>(rest);
    all.entries.push_back({.stored_key = key, .page = take<PageContentKey>(rest)});
  }
  all.origins.mutable_origins()->MergeFrom(origins.origins());
}

}  // namespace

Result<LedgerFile> LedgerFile::open(const std::string& path) {
  MR_ASSIGN_OR_RETURN(auto file, RecordFile::open(path));
  return LedgerFile(std::move(file));
}

Result<LedgerRecord> LedgerFile::read() const {
  LedgerRecord all;
  MR_RETURN_IF_ERROR(file_.read(kMaxBytes, [&](std::string_view body) { decode(body, all); }));
  return all;
}

Result<void> LedgerFile::append(const LedgerRecord& record) {
  const std::string body = encode(record);
  return file_.append(std::span(&body, 1));
}

Result<void> LedgerFile::replace(const LedgerRecord& record) {
  const std::string body = encode(record);
  return file_.replace(std::span(&body, 1));
}

}  // namespace millrace::worker

// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint/tensor_digests.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "common/checksum.h"
#include "common/clock.h"
#include "common/secret.h"
#include "common/system/file_descriptor.h"
#include "common/system/file_identity.h"
#include "model/json/json_text.h"

namespace millrace::model {

namespace {

namespace json = boost::json;

constexpr std::size_t kBlockBytes = 16 << 20;  // that one thread reads at a time
constexpr int64_t kMaxKeptBytes = 256 << 20;   // a few times what any file's digests take
constexpr int kKeptDepth = 3;
constexpr int kVersion = 1;  // of the kept file and of what it says
constexpr auto kMostWait = std::chrono::minutes(2);
constexpr auto kBetweenTries = std::chrono::milliseconds(20);
// Times of files advance with the system's tick, of at most 10 ms. Two states of a file that was
// changed a shorter time ago may have the same times.
constexpr auto kSettled = std::chrono::milliseconds(100);

std::string hex(uint64_t number) {
  return fmt::format("{:016x}", number);
}

uint64_t checksum_of(std::string_view text) {
  return checksum(std::as_bytes(std::span(text)));
}

TensorDigests compute(const SafetensorsFile& file, int num_threads) {
  struct Block {
    std::span<const std::byte> bytes;
    uint64_t digest = 0;
  };
  std::vector<Block> blocks;
  std::map<std::string_view, std::pair<std::size_t, std::size_t>> blocks_of;  // first, count
  for (const auto& [name, tensor] : file.tensors()) {
    const std::size_t first = blocks.size();
    for (auto rest = file.bytes_of(tensor); !rest.empty();) {
      const auto size = std::min(rest.size(), kBlockBytes);
      blocks.push_back({rest.first(size)});
      rest = rest.subspan(size);
    }
    blocks_of[name] = {first, blocks.size() - first};
  }
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < blocks.size(); i = next++) {
      blocks[i].digest = checksum(blocks[i].bytes);
    }
  };
  {
    std::vector<std::jthread> others;
    const auto useful = std::min(blocks.size(), static_cast<std::size_t>(std::max(num_threads, 1)));
    for (std::size_t i = 1; i < useful; ++i) others.emplace_back(work);
    work();
  }
  TensorDigests digests;
  for (const auto& [name, range] : blocks_of) {
    std::string of_blocks;
    for (std::size_t i = range.first; i < range.first + range.second; ++i) {
      of_blocks += hex(blocks[i].digest);
    }
    digests.emplace(name, checksum_of(of_blocks));
  }
  return digests;
}

// The file beside a weight file.
class KeptDigests {
 public:
  explicit KeptDigests(const MappedFile& file)
      : path_(file.path() + ".millrace-digests"),
        header_({{"version", kVersion},
                 {"inode", hex(file.identity().inode)},
                 {"size", file.identity().size},
                 {"written_ns", file.identity().written_ns},
                 {"changed_ns", file.identity().changed_ns}}) {}

  // None unless they are of the weight file as it is.
  std::optional<TensorDigests> read() const {
    const auto text = read_text_file(path_, kMaxKeptBytes);
    if (!text.ok()) return std::nullopt;
    const auto parsed = parse_json(*text, kKeptDepth);
    const auto* kept = parsed.ok() ? parsed->if_object() : nullptr;
    const auto* digests = kept != nullptr ? kept->if_contains("digests") : nullptr;
    if (digests == nullptr || !digests->is_object()) return std::nullopt;
    if (*kept != whole(digests->get_object())) return std::nullopt;
    TensorDigests found;
    for (const auto& [name, digest] : digests->get_object()) {
      const auto* text_of = digest.if_string();
      if (text_of == nullptr) return std::nullopt;
      found.emplace(name, std::strtoull(text_of->c_str(), nullptr, 16));
    }
    return found;
  }

  // A file that is cut short is not read, and neither is one that two processes write.
  void write(const TensorDigests& digests) const {
    json::object all;
    for (const auto& [name, digest] : digests) all[name] = hex(digest);
    const std::string unfinished = fmt::format("{}.{}", path_, random_id());
    std::error_code failed;
    {
      std::ofstream out(unfinished, std::ios::binary);
      out << json::serialize(whole(all)) << "\n";
      out.close();
      if (out.good()) std::filesystem::rename(unfinished, path_, failed);
      if (out.good() && !failed) return;
    }
    std::filesystem::remove(unfinished, failed);
  }

  bool can_be_written() const {
    const auto directory = std::filesystem::path(path_).parent_path();
    return ::access(directory.empty() ? "." : directory.c_str(), W_OK) == 0;
  }

 private:
  json::object whole(const json::object& digests) const {
    json::object all = header_;
    all["digests"] = digests;
    all["checksum"] = hex(checksum_of(json::serialize(all)));
    return all;
  }

  std::string path_;
  json::object header_;
};

bool is_settled(const FileIdentity& identity) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return now - std::chrono::nanoseconds(identity.changed_ns) > kSettled;
}

enum class Lock { kMine, kAnothers, kNone };

// `file`: an open weight file. Some file systems have no locks.
Lock lock(const FileDescriptor& file, bool waits) {
  const auto deadline = Deadline::after(waits ? Duration(kMostWait) : Duration::zero());
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return Lock::kNone;
    if (deadline.passed()) return waits ? Lock::kNone : Lock::kAnothers;
    std::this_thread::sleep_for(kBetweenTries);
  }
  return Lock::kMine;
}

}  // namespace

std::optional<TensorDigests> tensor_digests(const SafetensorsFile& file, int num_threads,
                                            bool waits) {
  const auto& mapped = *file.file();
  const KeptDigests kept(mapped);
  if (mapped.identity().size < kLeastKeptFileBytes) return compute(file, num_threads);
  if (auto found = kept.read()) return found;
  if (!kept.can_be_written()) return compute(file, num_threads);
  const FileDescriptor locked(::open(mapped.path().c_str(), O_RDONLY | O_CLOEXEC));
  if (lock(locked, waits) == Lock::kAnothers) return std::nullopt;
  if (auto found = kept.read()) return found;  // of whoever had the lock
  const bool settled = is_settled(mapped.identity());
  auto digests = compute(file, num_threads);
  if (settled && mapped.unchanged().ok()) kept.write(digests);
  return digests;
}

}  // namespace millrace::model

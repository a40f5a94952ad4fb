// SPDX-License-Identifier: Apache-2.0
#include "worker/batch/kv_directory.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "common/log.h"

namespace millrace::worker {

namespace fs = std::filesystem;

Result<void> KvDirectory::begin() const {
  std::error_code status;
  fs::create_directories(path_, status);
  if (status) return error(Errc::kIo, "making {}: {}", path_, status.message());
  fs::remove(manifest(), status);
  if (status) return error(Errc::kIo, "{}: remove: {}", manifest(), status.message());
  return {};
}

Result<void> KvDirectory::write_manifest(const std::string& text) const {
  const std::string partial = manifest() + ".partial";
  std::ofstream file(partial, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return error(Errc::kIo, "{}: write: {}", partial, std::strerror(errno));
  std::error_code status;
  fs::rename(partial, manifest(), status);
  if (status) return error(Errc::kIo, "{}: rename: {}", partial, status.message());
  return {};
}

void KvDirectory::remove() const {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void KvDirectory::remove_unfinished(const std::string& parent) {
  std::error_code status;
  std::vector<fs::path> unfinished;
  for (const auto& entry : fs::directory_iterator(parent, status)) {
    if (!entry.is_directory(status) || entry.is_symlink(status)) continue;
    bool only_parts = true;
    for (const auto& file : fs::directory_iterator(entry.path(), status)) {
      const std::string name = file.path().filename().string();
      const bool part = file.symlink_status(status).type() == fs::file_type::regular &&
                        ((name.starts_with("rank-") && name.ends_with(".safetensors")) ||
                         name == "manifest.json.partial");
      only_parts = only_parts && part;
    }
    if (only_parts && !status) unfinished.push_back(entry.path());
  }
  for (const auto& path : unfinished) {
    log::info("removing {}, a cache that an earlier job did not finish", path.string());
    fs::remove_all(path, status);
  }
}

}  // namespace millrace::worker

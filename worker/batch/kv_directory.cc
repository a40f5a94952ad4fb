// SPDX-License-Identifier: Apache-2.0
#include "worker/batch/kv_directory.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

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

}  // namespace millrace::worker

// SPDX-License-Identifier: Apache-2.0
// A rank in a separate process: a store that holds a cache, and its KV server. The process ends
// with the object.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "common/net/tls_files.h"
#include "kvstore/kv_store.h"

namespace millrace::bench {

struct RankSettings {
  kvstore::KvGeometry geometry;
  int64_t num_tokens = 0;
  int server_threads = 0;
  bool on_disk = false;
  int from_device =
      -1;        // GPU whose memory is the device pool and has all pages; the host pool has copies
  TlsFiles tls;  // with a certificate, it also serves at a tls:// address
};

// Fills the page with what a rank has for it.
void fill_page(const kvstore::PageKey& key, std::span<std::byte> page);

class RankProcess {
 public:
  // Forks, so construct it before the process starts its first thread. A failure ends the program.
  explicit RankProcess(const RankSettings& settings);
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  ~RankProcess();

  // The address for this scheme: tcp, ucx or tls.
  const std::string& address(const std::string& scheme) const { return addresses_.at(scheme); }
  // CPU seconds it has used so far, user and system.
  double cpu_s() const;

 private:
  [[noreturn]] static void serve(const RankSettings& settings, int addresses_pipe);

  int pid_ = -1;
  std::map<std::string, std::string> addresses_;  // by scheme
};

}  // namespace millrace::bench

// A rank as a process of its own: a store that holds a cache, and its KV server. Ends with the object.
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
      -1;  // the device pool, in the memory of this GPU, has all pages, and the host pool copies
  TlsFiles tls;  // with a certificate: at a tls:// address as well
};

// What a rank has for the page.
void fill_page(const kvstore::PageKey& key, std::span<std::byte> page);

class RankProcess {
 public:
  // Forks, so it comes before the first thread of the process. A failure ends the program.
  explicit RankProcess(const RankSettings& settings);
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  ~RankProcess();

  // Where it serves this scheme: tcp, ucx, tls.
  const std::string& address(const std::string& scheme) const { return addresses_.at(scheme); }
  // Of its processor, user and system, so far.
  double cpu_s() const;

 private:
  [[noreturn]] static void serve(const RankSettings& settings, int told);

  int pid_ = -1;
  std::map<std::string, std::string> addresses_;  // by scheme
};

}  // namespace millrace::bench

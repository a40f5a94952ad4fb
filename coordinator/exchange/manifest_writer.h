// Writes manifests as text, on a thread of its own: what a group calls a manifest may be large.
#pragma once

#include <memory>
#include <string>

#include "coordinator/http/http_shared.h"
#include "coordinator/net/awaitable.h"

namespace millrace::coordinator {

class ManifestWriter {
 public:
  explicit ManifestWriter(HttpShared& shared) : shared_(shared) {}

  // Of a request that is done; "" of any other.
  awaitable<std::string> write_result(const Request& record);
  // Of a streaming request, before it is done.
  awaitable<std::string> write_opened(const Request& record);

 private:
  awaitable<std::string> write(std::shared_ptr<const protocol::Manifest> manifest, bool is_done);

  HttpShared& shared_;
};

}  // namespace millrace::coordinator

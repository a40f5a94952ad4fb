// SPDX-License-Identifier: Apache-2.0
// Writes results as text: manifests on a thread of their own, since a group may send a large one,
// and the first token with the model's tokenizer.
#pragma once

#include <memory>
#include <string>

#include "coordinator/api/request_json.h"
#include "coordinator/http/http_shared.h"
#include "coordinator/net/awaitable.h"

namespace millrace::coordinator {

class ManifestWriter {
 public:
  explicit ManifestWriter(HttpShared& shared) : shared_(shared) {}

  // The texts of a request that is done; empty for any other.
  awaitable<ResultTexts> write_result(const Request& record);
  // The manifest of a streaming request, before it is done.
  awaitable<std::string> write_opened(const Request& record);

 private:
  awaitable<std::string> write(std::shared_ptr<const protocol::Manifest> manifest, bool is_done);

  HttpShared& shared_;
};

}  // namespace millrace::coordinator

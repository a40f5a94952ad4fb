// What is known of a request while it is prefilled: from the thread that reads its events to those
// that pull its cache. Thread-safe.
//
//   events   queued, started, manifest, layer 0, layer 1, ..., done | error
//
// With an at-end hand-over there is no manifest before `done`, so nobody pulls before.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "common/clock.h"
#include "common/result.h"
#include "protocol/manifest.pb.h"
#include "protocol/sse_parser.h"

namespace millrace::decode {

class HandoverFeed {
 public:
  // kComputing: until the last layer can be pulled. kFinishing: until the result is there.
  enum class Stage { kComputing, kFinishing, kDone };

  HandoverFeed() = default;
  // The feed of a request that is done: all layers are there.
  explicit HandoverFeed(protocol::Manifest manifest);

  // Events come in order, of one request; those of other names are passed over. One that cannot be
  // understood fails the request.
  void take(const protocol::SseEvent& event);
  // Nothing more will come. All waits end with this, unless the request is done or has failed.
  void fail(Error why);
  // Done or failed.
  bool ended() const;

  // The part of the manifest that tells where to pull, or all of it.
  Result<protocol::Manifest> wait_for_manifest(Deadline deadline);
  // Until every rank holds the layer's pages.
  Result<void> wait_for_layer(int32_t layer, Deadline deadline);
  Result<protocol::Manifest> wait_for_result(Deadline deadline);

  Stage stage() const;
  // When the result came; it must be there.
  TimePoint done_at() const;

 private:
  Result<void> take_locked(const protocol::SseEvent& event);
  Result<void> take_layer(const std::string& data);
  Result<void> take_result(const std::string& data);
  template <typename Condition>
  Result<void> wait(const char* what, Deadline deadline, Condition condition);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string request_id_ = "?";  // for errors, until an event tells
  std::optional<protocol::Manifest> manifest_;
  int32_t num_layers_ready_ = 0;
  std::optional<protocol::Manifest> result_;
  TimePoint done_at_;
  std::optional<Error> failure_;
};

}  // namespace millrace::decode

// SPDX-License-Identifier: Apache-2.0
// What is known of a request during its prefill: passed from the thread that reads its events to
// those that pull its cache. Thread-safe; write() is for one thread at a time.
//
//   events   queued, started, manifest, layer 0, layer 1, ..., done | error
//
// With an at-end hand-over there is no manifest before `done`, so nobody can pull before.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/result.h"
#include "kvclient/manifest/manifest.h"

namespace millrace::kvclient {

class HandoverFeed {
 public:
  // kComputing: until the last layer can be pulled. kFinishing: until the result has come.
  enum class Stage { kComputing, kFinishing, kDone };

  HandoverFeed();
  // The feed of a request that is done: all layers are ready.
  explicit HandoverFeed(Manifest manifest);
  HandoverFeed(const HandoverFeed&) = delete;
  HandoverFeed& operator=(const HandoverFeed&) = delete;
  ~HandoverFeed();

  // Takes the next bytes of one request's events, in order, cut anywhere. Events that cannot be
  // understood fail the request.
  void write(std::string_view bytes);
  // Takes one event. Unknown names are ignored.
  void take(std::string_view name, const std::string& data);
  // Instead of events, for a caller that learns of layers in another way: layers [0, num_layers)
  // are ready.
  void set_layers_ready(int32_t num_layers);
  // Nothing more will come. All waits end with this error, unless the request is done or has
  // failed.
  void fail(const Error& why);
  // Done or failed.
  bool ended() const;
  // Why it failed, if it has.
  std::optional<Error> failure() const;
  int32_t layers_ready() const;
  // `listener` is called after every change, on the thread that made it, until it expires.
  void listen(std::weak_ptr<const std::function<void()>> listener);

  // The manifest, or the part of it that tells where to pull.
  Result<Manifest> wait_for_manifest(Deadline deadline);
  // Waits until every rank holds the layer's pages.
  Result<void> wait_for_layer(int32_t layer, Deadline deadline);
  Result<Manifest> wait_for_result(Deadline deadline);

  Stage stage() const;
  // When the result came; it must have come.
  TimePoint done_at() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace millrace::kvclient

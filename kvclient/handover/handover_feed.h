// What is known of a request while it is prefilled: from the thread that reads its events to those
// that pull its cache. Thread-safe; write() is for one thread at a time.
//
//   events   queued, started, manifest, layer 0, layer 1, ..., done | error
//
// With an at-end hand-over there is no manifest before `done`, so nobody pulls before.
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
  // kComputing: until the last layer can be pulled. kFinishing: until the result is there.
  enum class Stage { kComputing, kFinishing, kDone };

  HandoverFeed();
  // The feed of a request that is done: all layers are there.
  explicit HandoverFeed(Manifest manifest);
  HandoverFeed(const HandoverFeed&) = delete;
  HandoverFeed& operator=(const HandoverFeed&) = delete;
  ~HandoverFeed();

  // The next bytes of the events of one request, in order, cut anywhere. What cannot be understood
  // fails the request.
  void write(std::string_view bytes);
  // One event. Those of other names are passed over.
  void take(std::string_view name, const std::string& data);
  // Instead of events, for who hears of them in another way: layers [0, num_layers) are there.
  void set_layers_ready(int32_t num_layers);
  // Nothing more will come. All waits end with this, unless the request is done or has failed.
  void fail(const Error& why);
  // Done or failed.
  bool ended() const;
  // Why it failed, if it has.
  std::optional<Error> failure() const;
  int32_t layers_ready() const;
  // `listener` is called after every change, on the thread that made it, until it expires.
  void listen(std::weak_ptr<const std::function<void()>> listener);

  // The part of the manifest that tells where to pull, or all of it.
  Result<Manifest> wait_for_manifest(Deadline deadline);
  // Until every rank holds the layer's pages.
  Result<void> wait_for_layer(int32_t layer, Deadline deadline);
  Result<Manifest> wait_for_result(Deadline deadline);

  Stage stage() const;
  // When the result came; it must be there.
  TimePoint done_at() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace millrace::kvclient

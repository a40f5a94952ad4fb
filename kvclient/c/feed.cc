// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <mutex>

#include "kvclient/c/handles.h"
#include "kvclient/c/values.h"

using namespace millrace;
using namespace millrace::kvclient::c;

namespace {

// The status of a wait on the feed: MKV_PENDING if the wait itself timed out, which is not an
// error. If the request failed at its own deadline, feed.failure() says so.
mkv_status waited(const Result<kvclient::Manifest>& result, const kvclient::HandoverFeed& feed,
                  mkv_manifest** out) {
  if (!result.ok()) {
    return feed.failure() || result.error().code != Errc::kDeadlineExceeded ? fail(result.error())
                                                                            : MKV_PENDING;
  }
  if (const auto checked = kvclient::check_manifest(*result); !checked.ok()) {
    return fail(checked.error());
  }
  *out = new mkv_manifest{std::make_shared<const kvclient::Manifest>(*result)};
  return MKV_OK;
}

}  // namespace

extern "C" {

mkv_status mkv_feed_create(mkv_feed** out) {
  if (out == nullptr) return null_argument("out");
  return guarded([&] {
    *out = new mkv_feed;
    return MKV_OK;
  });
}

void mkv_feed_destroy(mkv_feed* feed) {
  if (feed == nullptr) return;
  guarded([&] {
    feed->feed->fail(Error(Errc::kCancelled, "its feed was destroyed"));
    return MKV_OK;
  });
  delete feed;
}

mkv_status mkv_feed_write(mkv_feed* feed, const void* bytes, size_t num_bytes) {
  if (feed == nullptr) return null_argument("feed");
  if (bytes == nullptr && num_bytes > 0) return null_argument("bytes");
  return guarded([&]() -> mkv_status {
    const std::lock_guard lock(feed->writing);
    feed->feed->write({static_cast<const char*>(bytes), num_bytes});
    const auto why = feed->feed->failure();
    return why ? fail(*why) : MKV_OK;
  });
}

mkv_status mkv_feed_set_layers_ready(mkv_feed* feed, int32_t num_layers) {
  if (feed == nullptr) return null_argument("feed");
  return guarded([&] {
    feed->feed->set_layers_ready(num_layers);
    return MKV_OK;
  });
}

mkv_status mkv_feed_fail(mkv_feed* feed, mkv_status code, const char* message) {
  if (feed == nullptr) return null_argument("feed");
  return guarded([&]() -> mkv_status {
    if (code < MKV_INVALID_ARGUMENT || code > MKV_DENIED) {
      return fail(error(Errc::kInvalidArgument, "{} is not an error", code));
    }
    feed->feed->fail(Error(static_cast<Errc>(code), message == nullptr ? "" : message));
    return MKV_OK;
  });
}

int32_t mkv_feed_layers_ready(const mkv_feed* feed) {
  return feed == nullptr ? 0 : feed->feed->layers_ready();
}

mkv_status mkv_feed_wait_manifest(mkv_feed* feed, double timeout_s, mkv_manifest** out) {
  if (feed == nullptr) return null_argument("feed");
  if (out == nullptr) return null_argument("out");
  return guarded([&] {
    const auto deadline = Deadline::after(duration_of(timeout_s));
    return waited(feed->feed->wait_for_manifest(deadline), *feed->feed, out);
  });
}

mkv_status mkv_feed_wait_result(mkv_feed* feed, double timeout_s, mkv_manifest** out) {
  if (feed == nullptr) return null_argument("feed");
  if (out == nullptr) return null_argument("out");
  return guarded([&] {
    const auto deadline = Deadline::after(duration_of(timeout_s));
    return waited(feed->feed->wait_for_result(deadline), *feed->feed, out);
  });
}

}  // extern "C"

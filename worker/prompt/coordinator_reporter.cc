// SPDX-License-Identifier: Apache-2.0
#include "worker/prompt/coordinator_reporter.h"

#include <utility>

#include "common/errc_wire.h"
#include "common/log.h"

namespace millrace::worker {

namespace {

void describe(const Error& failure, protocol::ErrorInfo& info) {
  info.set_code(errc_to_wire(failure.code));
  info.set_message(failure.message);
}

}  // namespace

void CoordinatorReporter::draining() {
  protocol::Envelope envelope;
  envelope.mutable_drain();
  send(envelope);
}

void CoordinatorReporter::started(const std::string& request_id) {
  protocol::Envelope envelope;
  envelope.mutable_prefill_started()->set_request_id(request_id);
  send(envelope);
}

void CoordinatorReporter::opened(const std::string& request_id, protocol::Manifest manifest) {
  protocol::Envelope envelope;
  envelope.mutable_prefill_opened()->set_request_id(request_id);
  *envelope.mutable_prefill_opened()->mutable_manifest() = std::move(manifest);
  send(envelope);
}

void CoordinatorReporter::layer_done(const protocol::LayerDone& layer) {
  protocol::Envelope envelope;
  *envelope.mutable_layer_done() = layer;
  send(envelope);
}

void CoordinatorReporter::done(protocol::PrefillDone done) {
  if (link_ == nullptr) return;
  board_.hold(done);
  protocol::Envelope envelope;
  *envelope.mutable_prefill_done() = std::move(done);
  send(envelope);
}

void CoordinatorReporter::failed(const std::string& request_id, const Error& failure) {
  protocol::Envelope envelope;
  envelope.mutable_prefill_failed()->set_request_id(request_id);
  describe(failure, *envelope.mutable_prefill_failed()->mutable_error());
  send(envelope);
}

void CoordinatorReporter::relay(const protocol::Envelope& envelope) {
  if (link_ == nullptr || envelope.has_prefill_started()) return;
  if (envelope.has_prefill_done()) return done(envelope.prefill_done());
  send(envelope);
}

// The board keeps the change for a coordinator that starts anew.
void CoordinatorReporter::lease_changed(const protocol::LeaseChange& change, Duration lease,
                                        const Result<void>& outcome) {
  if (link_ == nullptr) return;
  const bool renews = change.has_renew();
  const auto& id = renews ? change.renew().request_id() : change.release().request_id();
  const auto& lease_id = renews ? change.renew().lease_id() : change.release().lease_id();
  protocol::Envelope envelope;
  auto& reply = *envelope.mutable_lease_reply();
  reply.set_request_id(id);
  if (renews && outcome.ok()) {
    board_.renew(id, lease_id, lease);
    reply.set_expires_in_ms(static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(lease).count()));
  } else {
    board_.end(id, lease_id);
  }
  if (!outcome.ok()) describe(outcome.error(), *reply.mutable_error());
  send(envelope);
}

// If a lost connection loses the message, the board has the change for the next connection.
void CoordinatorReporter::cache_changed(protocol::CachedPrefixes change) {
  if (link_ == nullptr || !board_.cache_changed(change)) return;
  protocol::Envelope envelope;
  *envelope.mutable_cached_prefixes() = std::move(change);
  [[maybe_unused]] const auto sent = link_->send(envelope);
}

void CoordinatorReporter::metrics(const std::vector<RankStats>& ranks) {
  if (link_ != nullptr) {
    board_.post(group_metrics(ranks, board_.lease_counts()), free_prompt_tokens(ranks));
  }
}

void CoordinatorReporter::send(const protocol::Envelope& envelope) {
  if (link_ == nullptr) return;
  const auto sent = link_->send(envelope);
  // A coordinator that is gone has already answered its client; a new one asks anew.
  if (!sent.ok()) log::warn("to the coordinator: {}", sent.error().to_string());
}

}  // namespace millrace::worker

// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/simulated_group.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/check.h"
#include "common/content/prefix_keys.h"
#include "common/errc_wire.h"
#include "common/page_tokens.h"
#include "protocol/codec.h"

namespace millrace::bench {

namespace {

protocol::Envelope started(const std::string& request_id) {
  protocol::Envelope envelope;
  envelope.mutable_prefill_started()->set_request_id(request_id);
  return envelope;
}

}  // namespace

SimulatedGroup::SimulatedGroup(SimulatedGroupOptions options, const GroupTimes& times,
                               EventQueue& events, Answer answer, PrefixKeys prefix_keys)
    : options_(std::move(options)),
      times_(times),
      events_(events),
      answer_(std::move(answer)),
      prefix_keys_(std::move(prefix_keys)),
      free_tokens_(options_.pool_tokens) {}

protocol::Register SimulatedGroup::description() const {
  protocol::Register out;
  out.set_protocol_version(protocol::kProtocolVersion);
  out.set_group_id(options_.name);
  out.set_group_name(options_.name);
  out.set_device(options_.kind);
  out.set_tp(1);
  out.set_cp(static_cast<uint32_t>(times_.num_gpus));
  out.set_max_prompt_tokens(static_cast<uint64_t>(options_.pool_tokens));
  out.mutable_model()->set_name("simulated");
  out.mutable_model()->set_vocab_size(1);
  out.mutable_model()->set_num_layers(static_cast<uint32_t>(times_.num_layers));
  out.set_max_preempting_tokens(static_cast<uint64_t>(options_.max_preempting_tokens));
  if (times_.lane != nullptr) {
    out.set_max_side_by_side_tokens(static_cast<uint64_t>(options_.side_by_side_tokens));
    out.set_max_side_by_side_prompt_tokens(static_cast<uint64_t>(options_.pool_tokens));
  }
  out.set_max_preempting_prompt_tokens(
      static_cast<uint64_t>(options_.max_preempting_tokens > 0 ? options_.pool_tokens : 0));
  return out;
}

double SimulatedGroup::busy_s() const {
  return busy_s_ - (running_ ? std::max(0.0, running_->ends_s - events_.now_s()) : 0);
}

void SimulatedGroup::send(const protocol::Envelope& envelope) {
  if (envelope.has_prefill_request()) prefill(envelope.prefill_request());
  if (envelope.has_prefills_side_by_side()) {
    prefill_side_by_side(envelope.prefills_side_by_side());
  }
  if (envelope.has_lease_release()) release(envelope.lease_release().lease_id());
}

void SimulatedGroup::close(const std::string& why) {
  MR_CHECK(false, "{} was closed: {}", options_.name, why);
}

void SimulatedGroup::prefill(const protocol::PrefillRequest& request) {
  auto run = begin(request, /*in_lane=*/false);
  if (!run) return;
  busy_s_ += run->ends_s - run->began_s;
  running_ ? preempt(*std::move(run)) : this->run(*std::move(run));
}

// All are answered when the slowest ends.
void SimulatedGroup::prefill_side_by_side(const protocol::PrefillsSideBySide& message) {
  std::vector<Run> runs;
  double took_s = 0;
  for (const auto& request : message.requests()) {
    auto run = begin(request, /*in_lane=*/true);
    if (!run) continue;
    took_s = std::max(took_s, run->ends_s - run->began_s);
    runs.push_back(*std::move(run));
  }
  if (runs.empty()) return;
  busy_s_ += took_s;
  const double delay_s = running_ ? set_aside(took_s) : 0;
  for (const Run& run : runs) {
    answer_after(delay_s, started(run.done.prefill_done().request_id()));
    events_.after(delay_s + took_s, [this, run] { finish(run); });
  }
  if (running_) return;
  events_.after(took_s, [this] {
    last_end_s_ = events_.now_s();
    report_room();
  });
}

std::optional<SimulatedGroup::Run> SimulatedGroup::begin(const protocol::PrefillRequest& request,
                                                         bool in_lane) {
  const auto num_tokens = static_cast<int64_t>(request.prompt_token_ids().size() / sizeof(int32_t));
  protocol::Envelope envelope;
  if (num_tokens > free_tokens_) {
    auto& failed = *envelope.mutable_prefill_failed();
    failed.set_request_id(request.request_id());
    failed.mutable_error()->set_code(errc_to_wire(Errc::kExhausted));
    failed.mutable_error()->set_message("the pools are full");
    answer_after(times_.overhead_s, std::move(envelope));
    return std::nullopt;
  }
  free_tokens_ -= num_tokens;
  const std::string lease = "lease of " + request.request_id();
  tokens_of_lease_[lease] = num_tokens;
  std::vector<uint64_t> keys = stored_keys(request);
  const int64_t cached =
      std::clamp<int64_t>(cache_.use(keys) * kPrefixKeyTokens, 0, num_tokens - kPageTokens);
  const double took_s =
      std::max(0.0, times_.overhead_s + seconds_of(num_tokens, cached, in_lane) + between_s());
  auto& done = *envelope.mutable_prefill_done();
  done.set_request_id(request.request_id());
  done.set_cached_tokens(static_cast<uint64_t>(cached));
  done.set_in_lane(in_lane);
  done.add_stages()->set_seconds(took_s);
  done.mutable_manifest()->set_request_id(request.request_id());
  done.mutable_manifest()->set_model("simulated");
  done.mutable_manifest()->set_lease_id(lease);
  done.mutable_manifest()->set_lease_ms(request.options().lease_ms());
  const double now_s = events_.now_s();
  // In microseconds a token, so that it is more than 1.
  const double cost = 1e6 * times_.seconds_of(num_tokens) / static_cast<double>(num_tokens);
  return Run{.done = std::move(envelope),
             .keys = std::move(keys),
             .cost = cost,
             .began_s = now_s,
             .ends_s = now_s + took_s};
}

// Rows behind a prefix take as long as in a whole prompt, and at least as long as the same number
// of rows alone. Cached rows have to be loaded.
double SimulatedGroup::seconds_of(int64_t num_tokens, int64_t cached_tokens, bool in_lane) const {
  const GroupTimes& times = in_lane ? *times_.lane : times_;
  if (cached_tokens == 0) return times.seconds_of(num_tokens);
  const double rows_s = std::max(times.seconds_of(num_tokens - cached_tokens),
                                 times.seconds_of(num_tokens) - times.seconds_of(cached_tokens));
  return rows_s + static_cast<double>(cached_tokens) / options_.load_tokens_per_s;
}

double SimulatedGroup::between_s() const {
  constexpr double kRounding = 1e-6;
  const bool follows = !running_ && events_.now_s() - last_end_s_ < kRounding;
  return follows ? times_.between_s : 0;
}

std::vector<uint64_t> SimulatedGroup::stored_keys(const protocol::PrefillRequest& request) const {
  std::vector<uint64_t> stored;
  if (!options_.caches) return stored;
  const uint64_t tenant = tenant_key(request.owner(), "");
  for (const uint64_t key : prefix_keys_(request.request_id())) {
    stored.push_back(stored_prefix_key(key, 0, tenant));
  }
  return stored;
}

void SimulatedGroup::finish(const Run& run) {
  if (!run.keys.empty()) {
    protocol::Envelope envelope;
    auto& change = *envelope.mutable_cached_prefixes();
    change.set_sequence(++cache_sequence_);
    const auto added = cache_.add(run.keys, run.cost);
    const auto gone = cache_.shrink(options_.pool_tokens / kPrefixKeyTokens);
    change.mutable_added()->Add(added.begin(), added.end());
    change.add_origins()->set_num_tokens(1);
    answer_(options_.name, std::move(envelope));
    protocol::Envelope lost;
    lost.mutable_cached_prefixes()->set_sequence(++cache_sequence_);
    lost.mutable_cached_prefixes()->mutable_gone()->Add(gone.begin(), gone.end());
    answer_(options_.name, std::move(lost));
  }
  answer_(options_.name, run.done);
}

void SimulatedGroup::run(Run run) {
  answer_after(0, started(run.done.prefill_done().request_id()));
  running_ = std::move(run);
  end_when_due();
}

void SimulatedGroup::preempt(Run run) {
  const double took_s = run.ends_s - run.began_s;
  const double delay_s = set_aside(took_s);
  answer_after(delay_s, started(run.done.prefill_done().request_id()));
  events_.after(delay_s + took_s, [this, run] { finish(run); });
}

double SimulatedGroup::set_aside(double for_s) {
  MR_CHECK(options_.max_preempting_tokens > 0, "{} got a second prompt", options_.name);
  const double own_s = running_->ends_s - running_->began_s - running_->set_aside_s;
  const double layer_s = own_s / times_.num_layers;
  const double done_s = std::max(0.0, events_.now_s() - running_->began_s - running_->set_aside_s);
  const double cost_s = for_s + times_.preempt_s;
  running_->ends_s += cost_s;
  running_->set_aside_s += cost_s;
  return layer_s - std::fmod(done_s, layer_s) + times_.layers_ahead * layer_s;
}

// Checks again if another prompt ran between the layers in the meantime.
void SimulatedGroup::end_when_due() {
  events_.after(running_->ends_s - events_.now_s(), [this] {
    constexpr double kRounding = 1e-6;
    if (running_->ends_s > events_.now_s() + kRounding) {
      end_when_due();
      return;
    }
    const Run run = *std::exchange(running_, std::nullopt);
    last_end_s_ = events_.now_s();
    finish(run);
    report_room();
  });
}

void SimulatedGroup::release(const std::string& lease_id) {
  const auto found = tokens_of_lease_.find(lease_id);
  if (found == tokens_of_lease_.end()) return;
  free_tokens_ += found->second;
  tokens_of_lease_.erase(found);
  events_.after(0, [this] { report_room(); });
}

void SimulatedGroup::answer_after(double delay_s, protocol::Envelope envelope) {
  events_.after(delay_s,
                [this, envelope = std::move(envelope)] { answer_(options_.name, envelope); });
}

void SimulatedGroup::report_room() {
  protocol::Envelope envelope;
  envelope.mutable_heartbeat()->mutable_room()->set_free_prompt_tokens(
      static_cast<uint64_t>(free_tokens_));
  answer_(options_.name, std::move(envelope));
}

}  // namespace millrace::bench

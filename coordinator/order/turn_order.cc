#include "coordinator/order/turn_order.h"

#include <algorithm>
#include <tuple>

namespace millrace::coordinator {

namespace {

struct Turn {
  auto rank() const { return std::tuple(!given_back, owners_turn, -response_ratio); }

  bool given_back;
  double owners_turn;
  double response_ratio;
  std::shared_ptr<Request> request;
};

}  // namespace

TurnOrder::Requests TurnOrder::arrange(const std::deque<std::shared_ptr<Request>>& waiting,
                                       std::span<const Group* const> groups, TimePoint now) const {
  if (order_ == QueueOrder::kArrival) return Requests(waiting.begin(), waiting.end());
  std::vector<Turn> turns;
  turns.reserve(waiting.size());
  for (const auto& request : waiting) {
    const Duration expected =
        forecast_.expect(groups, *request).value_or(PrefillCurve::guess(request->num_tokens));
    turns.push_back({.given_back = request->given_back.has_value(),
                     .owners_turn = ledger_.turn_of(request->owner),
                     .response_ratio = 1 + request->queue_s(now) / seconds(expected),
                     .request = request});
  }
  std::stable_sort(turns.begin(), turns.end(),
                   [](const Turn& a, const Turn& b) { return a.rank() < b.rank(); });
  Requests ordered;
  ordered.reserve(turns.size());
  for (Turn& turn : turns) ordered.push_back(std::move(turn.request));
  return ordered;
}

void TurnOrder::started(const Group& group, Request& request, TimePoint now) {
  request.dispatched_at = now;
  request.set_aside_s = 0;
  request.foreseen_tokens = group.prefixes.tokens_of(request);
  request.expected_s = seconds(forecast_.expect(group, request));
  ledger_.take(request.owner, request.expected_s);
}

void TurnOrder::stopped(const Group& group, const Request& request, TimePoint now, bool whole,
                        int64_t cached_tokens) {
  // One that preempts has waited for the end of a layer.
  const double took_s = seconds(now - request.started_at.value_or(request.dispatched_at));
  const double own_s = std::max(0.0, took_s - request.set_aside_s);
  if (group.running != nullptr && group.running.get() != &request) {
    group.running->set_aside_s += took_s;
  }
  ledger_.correct(request.owner, own_s - request.expected_s);
  if (!whole) return;
  forecast_.finished(group, request,
                     std::chrono::duration_cast<Duration>(std::chrono::duration<double>(own_s)),
                     cached_tokens);
}

}  // namespace millrace::coordinator

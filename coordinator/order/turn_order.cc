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
  const int beside = request.num_side_by_side;
  request.foreseen_tokens = beside > 1 ? 0 : group.prefixes.tokens_of(request);
  request.expected_s = seconds(beside > 1 ? forecast_.expect_in_lane(group, request)
                                          : forecast_.expect(group, request));
  // Of the group's time, all of them share what the slowest takes.
  ledger_.take(request.owner, request.expected_s / beside);
}

void TurnOrder::stopped(const Group& group, const Request& request, TimePoint now, bool whole,
                        int64_t cached_tokens, std::optional<Duration> in_lane) {
  // One that preempts has waited for the end of a layer.
  const double took_s = seconds(now - request.started_at.value_or(request.dispatched_at));
  const double own_s = std::max(0.0, took_s - request.set_aside_s);
  // Of those side by side the last counts, which ends when all have.
  if (group.running != nullptr && group.running.get() != &request && group.side_by_side.empty()) {
    group.running->set_aside_s += took_s;
  }
  ledger_.correct(request.owner, (own_s - request.expected_s) / request.num_side_by_side);
  if (!whole) return;
  if (request.num_side_by_side > 1) {
    if (in_lane && cached_tokens == 0) forecast_.finished_in_lane(group, request, *in_lane);
    return;
  }
  forecast_.finished(group, request,
                     std::chrono::duration_cast<Duration>(std::chrono::duration<double>(own_s)),
                     cached_tokens);
}

}  // namespace millrace::coordinator

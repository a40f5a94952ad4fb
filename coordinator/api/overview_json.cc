// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/overview_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <iterator>
#include <optional>
#include <span>

#include "coordinator/api/request_json.h"
#include "coordinator/order/preemption.h"
#include "coordinator/text/cut_text.h"

namespace millrace::coordinator {

namespace json = boost::json;

namespace {

// What a group says of a model's heads is left out beyond this: a layer's heads times its layers.
// The largest models have some ten thousand.
constexpr int kMostHeadsShown = 1 << 16;

int64_t ranks_of(const Group& group) {
  return int64_t{group.description.tp()} * group.description.cp();
}

const char* state_of(const Group& group, TimePoint now) {
  if (group.draining) return "draining";
  if (!group.requests().empty()) return "running";
  return group.health.rests(now) ? "resting" : "idle";
}

json::array tiers_json(const PoolUsage& pools) {
  json::array out;
  for (const PoolUsage::Tier& tier : pools.tiers) {
    if (tier.capacity_bytes == 0) continue;
    out.push_back({{"tier", json::string_view(tier.name)},
                   {"capacity_bytes", number_or_null(tier.capacity_bytes)},
                   {"used_bytes", number_or_null(tier.used_bytes)},
                   {"prefix_bytes", number_or_null(tier.prefix_bytes)}});
  }
  return out;
}

json::object group_json(const Group& group, TimePoint now) {
  const protocol::Register& description = group.description;
  json::object out;
  out["group"] = description.group_name();
  out["model"] = description.model().name();
  out["state"] = state_of(group, now);
  out["device"] = cut_text(description.device(), 128);
  out["version"] = cut_text(description.version(), 64);
  out["ranks"] = ranks_of(group);
  out["tp"] = description.tp();
  out["cp"] = description.cp();
  out["max_prompt_tokens"] = description.max_prompt_tokens();
  out["free_prompt_tokens"] = group.free_tokens ? json::value(*group.free_tokens) : nullptr;
  const double imbalance = group.pools.imbalance;
  out["imbalance"] = imbalance > 0 ? number_or_null(imbalance) : nullptr;
  out["tiers"] = tiers_json(group.pools);
  return out;
}

// Time in which the request's own layers were computed.
double own_s(const Request& request, TimePoint now) {
  const TimePoint from = request.started_at.value_or(request.dispatched_at);
  return std::max(0.0, seconds(now - from) - request.set_aside_s);
}

// Of the request's own layers. As long as none is done, what was expected when it was sent to its
// group; then in proportion to those that are. On average half of the next one is done as well.
std::optional<double> seconds_left_of(const Request& request, TimePoint now) {
  const auto done = static_cast<double>(request.layer_density.size());
  const double all = request.num_layers;
  if (done == 0 || all == 0) {
    if (request.expected_s <= 0) return std::nullopt;
    return seconds_left(request, now);
  }
  if (done >= all) return 0;
  return own_s(request, now) * (all - done - 0.5) / (done + 0.5);
}

double mean_density(const Request& request) {
  double sum = 0;
  for (const double density : request.layer_density) sum += density;
  return sum / static_cast<double>(request.layer_density.size());
}

json::object named(const Request& request, const ShownNames& names) {
  return {{"request_id", names.id_of(request)},
          {"owner", names.owner_of(request)},
          {"model", request.model},
          {"num_tokens", request.num_tokens}};
}

json::object running_json(const Group& group, const Request& request, const ShownNames& names,
                          TimePoint now) {
  json::object out = named(request, names);
  out["group"] = group.description.group_name();
  out["layers_done"] = request.layer_density.size();
  out["num_layers"] = request.num_layers;
  const bool any = !request.layer_density.empty();
  out["density"] = any ? number_or_null(mean_density(request)) : nullptr;
  out["running_seconds"] = seconds(now - request.started_at.value_or(request.dispatched_at));
  const auto left_s = seconds_left_of(request, now);
  out["seconds_left"] = left_s ? number_or_null(*left_s) : nullptr;
  const bool others = group.preempting != nullptr || !group.side_by_side.empty();
  const bool waits_to_go_on = std::ranges::any_of(
      group.resuming, [&](const auto& one) { return one.request.get() == &request; });
  out["set_aside"] = waits_to_go_on || (group.running.get() == &request && others);
  out["side_by_side"] = request.num_side_by_side;
  out["cancelled"] = request.ended();
  return out;
}

json::object queued_json(const Request& request, const ShownNames& names, TimePoint now) {
  json::object out = named(request, names);
  out["priority"] = request.priority();
  out["queue_seconds"] = request.queue_s(now);
  const TimePoint end = request.must_end_by();
  out["deadline_in_seconds"] =
      end == TimePoint::max() ? json::value(nullptr) : json::value(seconds(end - now));
  return out;
}

json::object ended_json(const Request& request, const ShownNames& names, TimePoint now) {
  json::object out = named(request, names);
  out["status"] = json::string_view(request_state_name(request.state));
  out["group"] = request.group_name;
  out["ended_seconds_ago"] = seconds(now - *request.ended_at);
  out["queue_seconds"] = request.queue_s(*request.ended_at);
  out["prefill_seconds"] =
      request.started_at ? json::value(seconds(*request.ended_at - *request.started_at)) : nullptr;
  if (request.failure) out["error"] = json::string_view(errc_name(request.failure->error.code));
  if (request.result) {
    const protocol::Manifest& manifest = request.result->manifest();
    out["cached_tokens"] = request.result->cached_tokens();
    out["density"] = number_or_null(manifest.density());
    out["recall"] = number_or_null(manifest.recall());
    out["recall_p01"] = number_or_null(manifest.recall_p01());
    out["lease"] = json::string_view(lease_state_name(request.lease));
    out["by_head"] = request.result->head_recalls().num_heads() > 0;
  }
  return out;
}

// [0.25,1,null].
template <typename Shares>
std::string list_text(const Shares& shares) {
  std::string out = "[";
  for (const double share : shares) {
    if (out.size() > 1) out += ',';
    if (std::isfinite(share)) {
      fmt::format_to(std::back_inserter(out), "{:.4g}", share);
    } else {
      out += "null";
    }
  }
  return out + ']';
}

// A list for each layer.
std::string by_layer_text(std::span<const float> shares, size_t num_heads) {
  std::string out = "[";
  for (; shares.size() >= num_heads; shares = shares.subspan(num_heads)) {
    if (out.size() > 1) out += ',';
    out += list_text(shares.first(num_heads));
  }
  return out + ']';
}

bool can_show(const protocol::HeadRecalls& recalls) {
  const auto num_heads = static_cast<int64_t>(recalls.num_heads());
  return num_heads > 0 && num_heads <= recalls.mean_size() &&
         recalls.mean_size() <= kMostHeadsShown && recalls.mean_size() == recalls.least_size();
}

}  // namespace

std::string overview_text(const OverviewParts& parts, std::string_view version,
                          const ShownNames& names, TimePoint now) {
  const std::vector<const Group*> groups = parts.groups.all();
  json::array groups_out, running, queued, ended;
  for (const Group* group : groups) {
    if (groups_out.size() < kMostGroupsShown) groups_out.push_back(group_json(*group, now));
    for (const auto& request : group->requests()) {
      if (running.size() == kMostRunningShown) break;
      running.push_back(running_json(*group, *request, names, now));
    }
  }
  for (const auto& request : parts.turns.arrange(parts.requests.queue().waiting(), groups, now)) {
    if (queued.size() == kMostQueuedShown) break;
    queued.push_back(queued_json(*request, names, now));
  }
  for (const auto& request : parts.requests.latest_ended()) {
    ended.push_back(ended_json(*request, names, now));
  }
  return json::serialize(json::object{{"version", json::string_view(version)},
                                      {"num_groups", parts.groups.size()},
                                      {"num_running", parts.requests.num_running()},
                                      {"num_queued", parts.requests.queue().size()},
                                      {"groups", std::move(groups_out)},
                                      {"running", std::move(running)},
                                      {"queued", std::move(queued)},
                                      {"ended", std::move(ended)}});
}

std::shared_ptr<const Request> find_shown(const OverviewParts& parts, const ShownNames& names,
                                          const std::string& id) {
  if (!names.are_hidden()) return parts.requests.table().find(id);
  const auto is_it = [&](const auto& request) { return names.id_of(*request) == id; };
  std::vector<std::shared_ptr<const Request>> shown = parts.requests.latest_ended();
  const auto& waiting = parts.requests.queue().waiting();
  shown.insert(shown.end(), waiting.begin(), waiting.end());
  for (const Group* group : parts.groups.all()) {
    const auto running = group->requests();
    shown.insert(shown.end(), running.begin(), running.end());
  }
  const auto found = std::ranges::find_if(shown, is_it);
  return found == shown.end() ? nullptr : *found;
}

std::string layers_text(const Request& request, const ShownNames& names) {
  std::string out = json::serialize(named(request, names));
  out.pop_back();
  fmt::format_to(std::back_inserter(out), R"(,"num_layers":{},"density":{})", request.num_layers,
                 list_text(request.layer_density));
  if (request.result && can_show(request.result->head_recalls())) {
    const protocol::HeadRecalls& recalls = request.result->head_recalls();
    const size_t num_heads = recalls.num_heads();
    const auto size = static_cast<size_t>(recalls.mean_size());
    fmt::format_to(std::back_inserter(out), R"(,"recall_by_head":{{"mean":{},"least":{}}})",
                   by_layer_text({recalls.mean().data(), size}, num_heads),
                   by_layer_text({recalls.least().data(), size}, num_heads));
    if (request.head_density && request.head_density->size() == size) {
      fmt::format_to(std::back_inserter(out), R"(,"density_by_head":{})",
                     by_layer_text(*request.head_density, num_heads));
    }
  }
  return out + '}';
}

}  // namespace millrace::coordinator

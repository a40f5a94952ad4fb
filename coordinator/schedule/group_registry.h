// Worker groups that are connected now, and what they can do.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/clock.h"
#include "coordinator/schedule/group_health.h"
#include "coordinator/schedule/request.h"

namespace millrace::coordinator {

// The way to a group. Neither function calls back into its caller or waits.
class GroupLink {
 public:
  virtual ~GroupLink() = default;
  virtual void send(const protocol::Envelope& envelope) = 0;
  virtual void close(const std::string& why) = 0;
  // Whether the other side's host still acknowledges what is sent, whatever its process does.
  virtual bool host_answers() const = 0;
};

struct Group {
  explicit Group(const GroupHealth::Rests& rests = {}) : health(rests) {}

  bool idle() const { return running == nullptr && !draining; }
  // Can it ever take a prompt of the model that is so long?
  bool takes(const std::string& model, int64_t num_tokens) const {
    return description.model().name() == model &&
           num_tokens <= static_cast<int64_t>(description.max_prompt_tokens());
  }
  // As far as it has said.
  bool has_room(int64_t num_tokens) const { return !free_tokens || *free_tokens >= num_tokens; }
  // What changes when a cache comes or goes, until the group's next report.
  void count_room(int64_t num_tokens) {
    if (free_tokens) *free_tokens += num_tokens;
  }
  // How long it may be before it notices a cancellation.
  Duration longest_step() const;

  protocol::Register description;
  GroupLink* link = nullptr;
  Duration last_heard{};               // in attended time
  std::optional<int64_t> free_tokens;  // the longest prompt that its pools have room for
  GroupHealth health;
  int64_t leases_told = 0;           // since it registered
  std::shared_ptr<Request> running;  // stays until the group answers, also when it was cancelled
  std::optional<TimePoint> cancelled_at;
  bool draining = false;
};

// What the groups of one model offer together.
struct ModelOffer {
  protocol::ModelDescription description;
  int64_t max_prompt_tokens = 0;  // of the most capable group
  int num_groups = 0;
  int num_ready = 0;  // not draining
};

class GroupRegistry {
 public:
  explicit GroupRegistry(const GroupHealth::Rests& rests = {}) : rests_(rests) {}

  // Refuses another protocol version, a description that makes no sense, and a name that a group
  // with another id holds: two groups under one name are a mistake, or the older one is about to be
  // noticed as gone, and then the newer one is let in when it tries again.
  Result<Group*> add(const protocol::Register& description, GroupLink& link, Duration now);
  // Gives the group away; null if it is not here.
  std::unique_ptr<Group> remove(const std::string& group_id);

  Group* find(const std::string& group_id);
  std::vector<Group*> all();

  std::map<std::string, ModelOffer> offers() const;
  // Was there ever a group for it? Tells "unknown model" from "no group just now".
  bool knows_model(const std::string& model) const { return models_seen_.count(model) != 0; }
  int size() const { return static_cast<int>(groups_.size()); }

 private:
  GroupHealth::Rests rests_;
  std::map<std::string, std::unique_ptr<Group>> groups_;
  std::set<std::string> models_seen_;
};

}  // namespace millrace::coordinator

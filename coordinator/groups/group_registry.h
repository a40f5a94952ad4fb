// SPDX-License-Identifier: Apache-2.0
// The worker groups that are connected now, and what they offer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "coordinator/groups/group.h"

namespace millrace::coordinator {

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

  // Refuses another protocol version, an impossible description, and a name that a group with
  // another id holds. In the last case either someone has started two groups under one name, or the
  // older group is gone and about to be noticed; then the newer one is let in when it tries again.
  Result<Group*> add(const protocol::Register& description, GroupLink& link, Duration now);
  // Hands over the group; null if it is not here.
  std::unique_ptr<Group> remove(const std::string& group_id);

  Group* find(const std::string& group_id);
  std::vector<Group*> all();
  std::vector<const Group*> all() const;

  std::map<std::string, ModelOffer> offers() const;
  // Whether there was ever a group for the model: tells "unknown model" from "no group just now".
  bool knows_model(const std::string& model) const { return models_seen_.count(model) != 0; }
  int size() const { return static_cast<int>(groups_.size()); }

 private:
  GroupHealth::Rests rests_;
  std::map<std::string, std::unique_ptr<Group>> groups_;
  std::set<std::string> models_seen_;
};

}  // namespace millrace::coordinator

// SPDX-License-Identifier: Apache-2.0
#include "coordinator/groups/group_registry.h"

#include <algorithm>

#include "protocol/codec.h"

namespace millrace::coordinator {

namespace {

constexpr size_t kMaxNameChars = 128;
constexpr size_t kMaxModelNameChars = 256;  // as in a request
constexpr size_t kMaxModelsSeen = 1024;
bool is_name(const std::string& text, size_t max_chars = kMaxNameChars) {
  return !text.empty() && text.size() <= max_chars;
}

Result<void> check(const protocol::Register& description) {
  if (description.protocol_version() != protocol::kProtocolVersion) {
    return error(Errc::kUnsupported, "the group uses protocol version {}, the coordinator {}",
                 description.protocol_version(), protocol::kProtocolVersion);
  }
  if (!is_name(description.group_id()) || !is_name(description.group_name())) {
    return error(Errc::kInvalidArgument,
                 "group id and name must have 1 to {} characters, not {} and {}", kMaxNameChars,
                 description.group_id().size(), description.group_name().size());
  }
  const auto& model = description.model();
  if (!is_name(model.name(), kMaxModelNameChars) || model.vocab_size() == 0 ||
      model.num_layers() == 0 || description.max_prompt_tokens() == 0) {
    return error(
        Errc::kInvalidArgument,
        "group '{}' offers model '{:.128}' with vocabulary {}, {} layers, {} prompt tokens",
        description.group_name(), model.name(), model.vocab_size(), model.num_layers(),
        description.max_prompt_tokens());
  }
  return {};
}

}  // namespace

Result<Group*> GroupRegistry::add(const protocol::Register& description, GroupLink& link,
                                  Duration now) {
  MR_RETURN_IF_ERROR(check(description));
  for (const auto& [id, group] : groups_) {
    if (group->description.group_name() == description.group_name()) {
      return error(Errc::kUnavailable,
                   "a group named '{}' (id {}) is connected already: a second group needs another "
                   "--group-name; a replacement is let in once the old one is gone",
                   description.group_name(), id);
    }
  }
  if (models_seen_.size() < kMaxModelsSeen) models_seen_.insert(description.model().name());
  auto group = std::make_unique<Group>(rests_);
  group->description = description;
  group->link = &link;
  group->last_message = now;
  group->cold = true;
  auto [at, inserted] = groups_.try_emplace(description.group_id(), std::move(group));
  MR_CHECK(inserted, "group id {} is connected under another name", description.group_id());
  return at->second.get();
}

std::unique_ptr<Group> GroupRegistry::remove(const std::string& group_id) {
  auto node = groups_.extract(group_id);
  return node.empty() ? nullptr : std::move(node.mapped());
}

Group* GroupRegistry::find(const std::string& group_id) {
  const auto found = groups_.find(group_id);
  return found == groups_.end() ? nullptr : found->second.get();
}

std::vector<Group*> GroupRegistry::all() {
  std::vector<Group*> out;
  for (const auto& [id, group] : groups_) out.push_back(group.get());
  return out;
}

std::vector<const Group*> GroupRegistry::all() const {
  std::vector<const Group*> out;
  for (const auto& [id, group] : groups_) out.push_back(group.get());
  return out;
}

std::map<std::string, ModelOffer> GroupRegistry::offers() const {
  std::map<std::string, ModelOffer> out;
  for (const auto& [id, group] : groups_) {
    ModelOffer& offer = out[group->description.model().name()];
    if (offer.num_groups == 0) offer.description = group->description.model();
    ++offer.num_groups;
    offer.num_ready += group->draining ? 0 : 1;
    offer.max_prompt_tokens = std::max(
        offer.max_prompt_tokens, static_cast<int64_t>(group->description.max_prompt_tokens()));
  }
  return out;
}

}  // namespace millrace::coordinator

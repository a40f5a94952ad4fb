// SPDX-License-Identifier: Apache-2.0
#include "worker/events/event_batch.h"

#include "common/page_tokens.h"
#include "worker/events/msgpack_writer.h"

namespace millrace::worker {

namespace {

void add_hashes(MsgpackWriter& out, const std::vector<BlockHash>& hashes) {
  out.add("block_hashes");
  out.begin_array(hashes.size());
  for (const BlockHash hash : hashes) out.add(hash);
}

// Routers weight blocks by medium. A page of any tier serves equally well as a prompt's prefix.
void add_medium(MsgpackWriter& out) {
  out.add("medium");
  out.add("GPU");
}

// All layers form one group in vLLM's sense.
void add_group(MsgpackWriter& out) {
  out.add("group_idx");
  out.add(uint64_t{0});
}

// For each block, what its hash covers besides tokens: as in vLLM, the salt, on the first one.
void add_extra_keys(MsgpackWriter& out, const BlocksStored& stored) {
  out.add("extra_keys");
  out.begin_array(stored.hashes.size());
  out.begin_array(1);
  out.add(stored.cache_salt);
  for (size_t i = 1; i < stored.hashes.size(); ++i) out.add_null();
}

void add_event(MsgpackWriter& out, const BlocksStored& stored) {
  const bool has_salt = !stored.cache_salt.empty() && !stored.hashes.empty();
  out.begin_map(has_salt ? 11 : 10);
  out.add("type");
  out.add("BlockStored");
  add_hashes(out, stored.hashes);
  out.add("parent_block_hash");
  stored.parent ? out.add(*stored.parent) : out.add_null();
  out.add("token_ids");
  out.begin_array(stored.token_ids.size());
  for (const int32_t token : stored.token_ids) out.add(static_cast<uint64_t>(token));
  out.add("block_size");
  out.add(uint64_t{kPageTokens});
  out.add("lora_id");
  out.add_null();
  add_medium(out);
  out.add("lora_name");
  out.add_null();
  if (has_salt) add_extra_keys(out, stored);
  add_group(out);
  out.add("kv_cache_spec_kind");
  out.add("full_attention");
}

void add_event(MsgpackWriter& out, const BlocksRemoved& removed) {
  out.begin_map(4);
  out.add("type");
  out.add("BlockRemoved");
  add_hashes(out, removed.hashes);
  add_medium(out);
  add_group(out);
}

void add_event(MsgpackWriter& out, const AllBlocksCleared&) {
  out.begin_map(1);
  out.add("type");
  out.add("AllBlocksCleared");
}

}  // namespace

std::vector<std::byte> encode_event_batch(double unix_time_s, std::span<const KvEvent> events) {
  MsgpackWriter out;
  out.begin_array(3);
  out.add(unix_time_s);
  out.begin_array(events.size());
  for (const auto& event : events) {
    std::visit([&out](const auto& of_its_type) { add_event(out, of_its_type); }, event);
  }
  out.add(uint64_t{0});  // data-parallel rank: a group is one
  return out.take();
}

}  // namespace millrace::worker

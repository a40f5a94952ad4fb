// What a client asks for: the fields of POST /v1/prefill, checked one by one. What depends on the
// groups (vocabulary, length, known models) is the scheduler's to check.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/control_messages.pb.h"

namespace millrace::coordinator {

struct PrefillBody {
  std::string model;
  std::string request_id;                 // "" : to be generated
  std::vector<int32_t> prompt_token_ids;  // not empty
  std::string head_plan;                  // "" : the group's default
  double min_recall = 0;                  // 0: the group's default
  int64_t deadline_ms = 0;                // from receipt; 0: the default
  int64_t lease_ms = 0;                   // 0: the default
  bool stream = false;
  protocol::Handover handover = protocol::HANDOVER_AT_END;  // streaming only with `stream`
};

}  // namespace millrace::coordinator

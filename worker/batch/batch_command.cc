// SPDX-License-Identifier: Apache-2.0
#include "worker/batch/batch_command.h"

#include <utility>

#include "engine/runtime/prompt.h"

namespace millrace::worker {

protocol::GroupCommand to_command(const BatchPrompt& prompt) {
  protocol::GroupCommand command;
  auto& run = *command.mutable_run();
  run.set_request_id(prompt.id);
  run.set_prompt_token_ids(engine::encode_token_ids(prompt.token_ids));
  run.set_max_tokens(static_cast<uint32_t>(prompt.max_tokens));
  run.set_ignore_eos(prompt.ignore_eos);
  for (const int64_t p : prompt.probe_positions) run.add_probe_positions(static_cast<uint64_t>(p));
  return command;
}

BatchPrompt from_command(const protocol::RunPrompt& run) {
  BatchPrompt prompt{.id = run.request_id(),
                     .max_tokens = static_cast<int32_t>(run.max_tokens()),
                     .ignore_eos = run.ignore_eos()};
  auto token_ids = engine::decode_token_ids(run.prompt_token_ids());
  MR_CHECK(token_ids.ok(), "rank 0 sent {} bytes of tokens", run.prompt_token_ids().size());
  prompt.token_ids = std::move(*token_ids);
  prompt.probe_positions.assign(run.probe_positions().begin(), run.probe_positions().end());
  return prompt;
}

}  // namespace millrace::worker

// SPDX-License-Identifier: Apache-2.0
// Logits over a vocabulary that is split over the tensor-parallel ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/api/communicator.h"
#include "common/result.h"
#include "model/weights.h"

namespace millrace::model {

// One of a row's best tokens. Lists are ordered best first; equal logits by smaller id.
struct TokenScore {
  int32_t token_id = 0;
  float logit = 0;
  float logprob = 0;  // log softmax over the whole vocabulary
};

// Collective over `tp`: joins the slices. `slices` is [num_rows, vocab of this rank]; the result is
// [num_rows, vocab_size] on every rank.
Result<std::vector<float>> gather_logits(std::span<const float> slices, int64_t num_rows,
                                         const ModelWeights& weights, comm::Communicator& tp,
                                         Deadline deadline);

// kInternal unless all logits of the row are finite: otherwise the model, or the device, gives no
// next token. `position`: of the token that the row follows.
Result<void> check_logits(std::span<const float> row, int64_t position);

// For the three below, `row` is [vocab_size], all finite.

// At most `count` entries.
std::vector<TokenScore> top_tokens(std::span<const float> row, int32_t count);
// The first of top_tokens().
int32_t best_token(std::span<const float> row);
// The natural logarithm of the probability that `token_id`, a token of the vocabulary, comes next.
double token_logprob(std::span<const float> row, int32_t token_id);

}  // namespace millrace::model

// Logits over a vocabulary that tensor-parallel ranks hold in slices.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/api/communicator.h"
#include "common/result.h"
#include "model/weights.h"

namespace millrace::model {

// One row's best tokens, best first; equal logits by smaller id.
struct TokenScore {
  int32_t token_id = 0;
  float logit = 0;
  float logprob = 0;  // log softmax over the whole vocabulary
};

// Puts the slices together: `slices` is [num_rows, vocab of this rank], the result [num_rows,
// vocab_size] on every rank. Collective over `tp`.
Result<std::vector<float>> gather_logits(std::span<const float> slices, int64_t num_rows,
                                         const ModelWeights& weights, comm::Communicator& tp,
                                         Deadline deadline);

// kInternal unless all of a row's logits are finite: a model or a device that computes anything
// else has no next token. `position`: of the token that the row follows.
Result<void> check_logits(std::span<const float> row, int64_t position);

// Of the three below, `row` is [vocab_size], all finite.

// At most `count` entries.
std::vector<TokenScore> top_tokens(std::span<const float> row, int32_t count);
// The first of them alone.
int32_t best_token(std::span<const float> row);
// The natural logarithm of the probability that `token_id`, of the vocabulary, comes next.
double token_logprob(std::span<const float> row, int32_t token_id);

}  // namespace millrace::model

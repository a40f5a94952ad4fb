// SPDX-License-Identifier: Apache-2.0
// The CPU operations, one function each, with the contracts of kernels/api. CpuDevice forwards to
// them; tests call them with a Context of their own. The matrix product keeps compiled primitives
// between calls and is therefore an object (kernels/cpu/gemm/gemm.h), and so are the experts, which
// use it (kernels/cpu/experts/experts.h).
//
// All of them give bitwise the same results for any num_threads.
#pragma once

#include "kernels/api/attention.h"
#include "kernels/api/digest.h"
#include "kernels/api/elementwise.h"
#include "kernels/api/estimation.h"
#include "kernels/api/experts.h"
#include "kernels/cpu/runtime/context.h"

namespace millrace::kernels::cpu {

void embed(const EmbedParams& params, const Context& context);
void rms_norm(const RmsNormParams& params, const Context& context);
void qkv_squares(const QkvSquaresParams& params, const Context& context);
void rope_qkv(const RopeQkvParams& params, const Context& context);
void activate(const ActivateParams& params, const Context& context);
void add(const AddParams& params, const Context& context);
void route(const RouteParams& params, const Context& context);

void attention(const AttentionParams& params, const Context& context);
void decode_attention(const DecodeAttentionParams& params, const Context& context);

void last_row_sums(const LastRowSumsParams& params, const Context& context);
void build_vertical_slash(const VerticalSlashParams& params, const Context& context);
void build_block_sparse(const BlockSparseParams& params, const Context& context);
void build_adaptive(const AdaptiveParams& params, const Context& context);
void page_scores(const PageScoresParams& params, const Context& context);
void row_recall(const RowRecallParams& params, const Context& context);
void page_digests(const PageDigestParams& params, const Context& context);

}  // namespace millrace::kernels::cpu

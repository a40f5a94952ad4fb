// SPDX-License-Identifier: Apache-2.0
// The reference operations, one function each, with the contracts of kernels/api: double
// arithmetic, one rounding at the end.
#pragma once

#include "kernels/api/attention.h"
#include "kernels/api/digest.h"
#include "kernels/api/elementwise.h"
#include "kernels/api/estimation.h"
#include "kernels/api/experts.h"
#include "kernels/api/float8_params.h"
#include "kernels/api/gemm.h"
#include "kernels/api/swiglu.h"

namespace millrace::kernels::ref {

void embed(const EmbedParams& params);
void rms_norm(const RmsNormParams& params);
void qkv_squares(const QkvSquaresParams& params);
void rope_qkv(const RopeQkvParams& params);
double activated(const Activation& activation, double gate, double up);
void activate(const ActivateParams& params);
void add(const AddParams& params);
void gemm(const GemmParams& params);
void swiglu(const SwigluParams& params);  // does not touch `products`
void route(const RouteParams& params);
void experts(const ExpertsParams& params);  // does not touch scratch
void float8_quantize(const Float8QuantizeParams& params);
void float8_rms_norm(const Float8RmsNormParams& params);
void float8_gemm(const Float8GemmParams& params);
void float8_swiglu(const Float8SwigluParams& params);    // does not touch `products`
void float8_experts(const Float8ExpertsParams& params);  // does not touch scratch
void float8_encode(const Float8EncodeParams& params);
void float8_decode(const Float8DecodeParams& params);

void attention(const AttentionParams& params);
void decode_attention(const DecodeAttentionParams& params);

void last_row_sums(const LastRowSumsParams& params);
void build_vertical_slash(const VerticalSlashParams& params);
void build_block_sparse(const BlockSparseParams& params);
void build_adaptive(const AdaptiveParams& params);
void page_scores(const PageScoresParams& params);
void row_recall(const RowRecallParams& params);
void page_digests(const PageDigestParams& params);

}  // namespace millrace::kernels::ref

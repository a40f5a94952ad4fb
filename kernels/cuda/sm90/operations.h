// SPDX-License-Identifier: Apache-2.0
// The CUDA operations, one function each, with the contracts of kernels/api. CudaDevice forwards to
// them; tests call them with a Context of their own. The matrix product keeps plans between calls
// and is therefore an object: kernels/cuda/sm90/gemm/gemm.h.
//
// Each function enqueues its work on context.stream and returns. Host arrays in the parameters are
// read before it returns; if the host is far ahead, it first waits for the device to free room to
// copy them to (kernels/cuda/runtime/upload_ring.h). The same input gives the same bits in every
// run.
#pragma once

#include "kernels/api/attention.h"
#include "kernels/api/copy_pieces.h"
#include "kernels/api/digest.h"
#include "kernels/api/elementwise.h"
#include "kernels/api/estimation.h"
#include "kernels/api/experts.h"
#include "kernels/api/float8_params.h"
#include "kernels/api/swiglu.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/index/closed_form.h"

namespace millrace::kernels::cuda {

void copy_pieces(const CopyPiecesParams& params, Context& context);

void embed(const EmbedParams& params, Context& context);
void rms_norm(const RmsNormParams& params, Context& context);
void qkv_squares(const QkvSquaresParams& params, Context& context);
void rope_qkv(const RopeQkvParams& params, Context& context);
void add(const AddParams& params, Context& context);
void swiglu(const SwigluParams& params, Context& context);
void route(const RouteParams& params, Context& context);
// At most 1024 experts; widths are multiples of 8; SiLU or kClamped. A row gives the same bits
// whatever the other rows are.
void experts(const ExpertsParams& params, Context& context);
inline constexpr int32_t kExpertRowStep = 128;  // DeviceInfo::expert_row_step
// Likewise, but widths are multiples of kFloat8WidthStep, only SiLU, and `dtype` is bfloat16.
void float8_experts(const Float8ExpertsParams& params, Context& context);
void float8_quantize(const Float8QuantizeParams& params, Context& context);
void float8_rms_norm(const Float8RmsNormParams& params, Context& context);
void float8_swiglu(const Float8SwigluParams& params, Context& context);
void float8_encode(const Float8EncodeParams& params, Context& context);
void float8_decode(const Float8DecodeParams& params, Context& context);
void float8_decode_pieces(const Float8DecodePiecesParams& params, Context& context);

void attention(const AttentionParams& params, Context& context);
void decode_attention(const DecodeAttentionParams& params, Context& context);

void build_closed_form(const ClosedFormParams& params, Context& context);
void last_row_sums(const LastRowSumsParams& params, Context& context);
void build_vertical_slash(const VerticalSlashParams& params, Context& context);
void build_block_sparse(const BlockSparseParams& params, Context& context);
void build_adaptive(const AdaptiveParams& params, Context& context);
void page_scores(const PageScoresParams& params, Context& context);
void row_recall(const RowRecallParams& params, Context& context);
void page_digests(const PageDigestParams& params, Context& context);

}  // namespace millrace::kernels::cuda

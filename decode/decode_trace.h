// SPDX-License-Identifier: Apache-2.0
// The spans of one run of a decode node: from its start to its last token, with the pull and the
// generation as parts. Pure, but for the random ids.
#pragma once

#include <vector>

#include "common/tracing/span.h"
#include "common/tracing/trace_context.h"
#include "decode/decode_node.h"

namespace millrace::decode {

// `parent`: the operation that it is a part of; with an empty span id it is the trace's first.
std::vector<tracing::Span> decode_spans(const tracing::TraceContext& parent, TimePoint begin,
                                        TimePoint end, const Result<DecodeReport>& report);

}  // namespace millrace::decode

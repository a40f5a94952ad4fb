// What page_scores launches: the scores, and the recall of the index where it is asked for.
#pragma once

#include "kernels/api/estimation.h"
#include "kernels/cuda/context.h"

namespace millrace::kernels::cuda {

// Recall tile of each of the last rows, -1 for none.
struct RowRecall {
  int32_t tile[kLastRows];
};

void launch_page_scores(const PageScoresParams& params, const RowRecall& row_recall,
                        Context& context);

}  // namespace millrace::kernels::cuda

// SPDX-License-Identifier: Apache-2.0
// The parallel loop of operations whose tasks differ in size or need working memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "kernels/cpu/runtime/parallel_ranges.h"

namespace millrace::kernels::cpu {

// Calls worker(task) for every task in [0, count), each on the next free thread. Every thread calls
// make_worker() once for a worker of its own, which keeps its working memory from task to task.
// What a task writes must not depend on the tasks before it.
template <typename MakeWorker>
void parallel_tasks(int64_t count, int64_t num_threads, const MakeWorker& make_worker) {
  std::atomic<int64_t> next_task = 0;
  const int64_t num_workers = std::min(count, num_threads);
  parallel_ranges(num_workers, num_workers, [&](int64_t, int64_t) {
    auto worker = make_worker();
    for (int64_t task = next_task++; task < count; task = next_task++) worker(task);
  });
}

}  // namespace millrace::kernels::cpu

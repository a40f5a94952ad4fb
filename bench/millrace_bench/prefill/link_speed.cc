// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/prefill/link_speed.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace millrace::bench {

namespace {

using Collective = std::function<Result<void>(Deadline)>;

constexpr auto kTimeout = std::chrono::minutes(2);
// The fastest sample counts. Within a sample, ranks wait for each other only before the first call.
constexpr int kSamples = 3;
constexpr int kCallsASample = 4;

Result<void> run_sample(kernels::Device& device, comm::DeviceCommunicator& group,
                        const Collective& collective) {
  const auto deadline = Deadline::after(kTimeout);
  group.follow();
  for (int call = 0; call < kCallsASample; ++call) MR_RETURN_IF_ERROR(collective(deadline));
  group.join(group.mark());
  return device.synchronize(deadline);
}

// The first sample sets up connections and is not counted.
Result<double> gbytes_per_s(kernels::Device& device, comm::DeviceCommunicator& group,
                            const Collective& collective) {
  MR_RETURN_IF_ERROR(run_sample(device, group, collective));
  double fastest = 0;
  for (int sample = 0; sample < kSamples; ++sample) {
    const auto before = comm::sum_of(group.stats());
    MR_RETURN_IF_ERROR(run_sample(device, group, collective));
    const auto after = comm::sum_of(group.stats());
    const auto bytes = static_cast<double>(after.bytes_received - before.bytes_received);
    fastest = std::max(fastest, 1e-9 * bytes / (after.seconds - before.seconds));
  }
  return fastest;
}

}  // namespace

Result<LinkSpeed> measure_link(kernels::Device& device, comm::DeviceCommunicator& group,
                               int64_t bytes) {
  if (group.size() == 1) return LinkSpeed{};
  const int64_t count = bytes / group.size() / int64_t{sizeof(float)};  // of one rank
  const int64_t rank_bytes = count * int64_t{sizeof(float)}, all_bytes = group.size() * rank_bytes;
  MR_ASSIGN_OR_RETURN(const auto gathered, group.allocate(all_bytes));
  MR_RETURN_IF_ERROR(group.connect(*gathered, Deadline::after(kTimeout)));
  MR_ASSIGN_OR_RETURN(const auto summed, device.allocate(all_bytes));
  const std::vector<float> zeros(static_cast<size_t>(group.size() * count));
  device.copy(gathered->data(), zeros.data(), all_bytes);
  device.copy(summed.data(), zeros.data(), all_bytes);
  LinkSpeed speed;
  MR_ASSIGN_OR_RETURN(speed.all_gather_gbytes_per_s,
                      gbytes_per_s(device, group, [&](Deadline deadline) {
                        return group.all_gather("link", gathered->data(), rank_bytes, deadline);
                      }));
  MR_ASSIGN_OR_RETURN(
      speed.all_reduce_gbytes_per_s, gbytes_per_s(device, group, [&](Deadline deadline) {
        return group.all_reduce_sum("link", summed.as<float>(), group.size() * count, deadline);
      }));
  return speed;
}

}  // namespace millrace::bench

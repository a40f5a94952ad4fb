// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/descriptor_budget.h"

#include <gtest/gtest.h>

namespace millrace::coordinator {
namespace {

constexpr DescriptorBudget kWanted{
    .connections = 1024, .health_probes = 32, .strangers = 256, .groups = 256};

TEST(DescriptorBudget, WhereThereIsEnoughAllGetWhatTheyWant) {
  EXPECT_EQ(DescriptorBudget::of(1 << 20, 40, kWanted), kWanted);
}

TEST(DescriptorBudget, AllConnectionsTogetherFit) {
  for (const int64_t descriptors : {64, 128, 256, 512, 1024, 1600, 4096}) {
    const auto budget = DescriptorBudget::of(descriptors, 40, kWanted);
    EXPECT_LE(40 + budget.connections + 2 * budget.health_probes + budget.strangers + budget.groups,
              descriptors);
    EXPECT_GE(budget.connections, 1);
    EXPECT_GE(budget.health_probes, 1);
    EXPECT_GE(budget.strangers, 1);
    EXPECT_GE(budget.groups, 1);
  }
}

TEST(DescriptorBudget, ClientsGetWhatProbesAndGroupsLeave) {
  const auto budget = DescriptorBudget::of(1024, 40, kWanted);
  EXPECT_EQ(budget.health_probes, 32);
  EXPECT_GE(budget.connections, 300);
}

TEST(DescriptorBudget, NothingFallsBelowOne) {
  const auto budget = DescriptorBudget::of(0, 40, kWanted);
  EXPECT_EQ(budget,
            (DescriptorBudget{.connections = 1, .health_probes = 1, .strangers = 1, .groups = 1}));
}

}  // namespace
}  // namespace millrace::coordinator

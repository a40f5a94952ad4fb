// SPDX-License-Identifier: Apache-2.0
#include "comm/ucx/bulk_lane.h"

#include <gtest/gtest.h>

namespace millrace::comm {
namespace {

std::string endpoint_info(const std::string& lanes) {
  return "#\n# UCP endpoint \n#\n#               peer: <no debug data>\n" + lanes +
         "#                 am_send: 0..<egr/short>..93..<egr/bcopy>..8256..<rndv>..(inf)\n";
}

// Lines as UCX 1.13 prints them.
constexpr const char* kCm = "#                 lane[0]: cm rdmacm\n";
constexpr const char* kSysv =
    "#                 lane[1]:  3:sysv/memory.0 md[2]  -> md[2]/sysv/sysdev[255] am am_bw#0\n";
constexpr const char* kTcpForRma =
    "#                 lane[2]:  1:tcp/lo.0 md[1]  -> md[1]/tcp/sysdev[255] rma_bw#0 wireup\n";
constexpr const char* kTcp =
    "#                 lane[1]:  0:tcp/lo.0 md[0]  -> md[0]/tcp/sysdev[255] am am_bw#0 wireup\n";
constexpr const char* kRdma =
    "#                 lane[1]:  5:rc_mlx5/mlx5_0:1.0 md[4]  -> md[4]/ib/sysdev[0] am am_bw#0\n";

TEST(BulkLane, IsTheLaneOfBulkActiveMessages) {
  EXPECT_EQ(transport_of_bulk_lane(endpoint_info(std::string(kCm) + kSysv + kTcpForRma)), "shm");
  EXPECT_EQ(transport_of_bulk_lane(endpoint_info(std::string(kCm) + kTcp)), "tcp");
}

TEST(BulkLane, KeepsTheNameOfOtherTransports) {
  EXPECT_EQ(transport_of_bulk_lane(endpoint_info(kRdma)), "rc_mlx5");
}

TEST(BulkLane, IsUnknownWithoutSuchALane) {
  EXPECT_EQ(transport_of_bulk_lane(endpoint_info(kCm)), "unknown");
  EXPECT_EQ(transport_of_bulk_lane(""), "unknown");
  EXPECT_EQ(transport_of_bulk_lane("lane[1]: am_bw#0"), "unknown");
}

}  // namespace
}  // namespace millrace::comm

// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/connection_table.h"

#include <gtest/gtest.h>

#include "coordinator/http/body_pace.h"
#include "coordinator/net/client_address.h"

namespace millrace::coordinator {
namespace {

using Kind = ConnectionTable::Kind;
using std::chrono::seconds;

TEST(ConnectionTable, BeyondTheBoundOfAllAConnectionIsForProbes) {
  ConnectionTable table({.connections = 2, .per_client = 2, .health_probes = 2});
  const auto first = table.admit("a", false);
  EXPECT_EQ(first.kind, Kind::kAny);
  EXPECT_FALSE(first.only_health_probes);
  EXPECT_EQ(table.admit("b", false).kind, Kind::kAny);
  const auto third = table.admit("c", false);
  EXPECT_EQ(third.kind, Kind::kHealthProbe);
  EXPECT_EQ(third.only_health_probes->code, Errc::kUnavailable);
  table.leave(first.id);
  EXPECT_EQ(table.admit("c", false).kind, Kind::kAny);
}

TEST(ConnectionTable, OneClientDoesNotTakeAll) {
  ConnectionTable table({.connections = 10, .per_client = 2, .health_probes = 2});
  const auto first = table.admit("a", false);
  table.admit("a", false);
  const auto third = table.admit("a", false);
  EXPECT_EQ(third.kind, Kind::kHealthProbe);
  EXPECT_EQ(third.only_health_probes->code, Errc::kExhausted);
  EXPECT_EQ(third.only_health_probes->message.rfind("2 connections of a are open", 0), 0u);
  EXPECT_EQ(table.admit("b", false).kind, Kind::kAny);
  table.leave(first.id);
  table.leave(first.id);
  EXPECT_EQ(table.admit("a", false).kind, Kind::kAny);
  EXPECT_EQ(table.admit("a", false).kind, Kind::kHealthProbe);
}

TEST(ConnectionTable, TheOldestProbeGivesWayToTheNewest) {
  ConnectionTable table({.connections = 1, .per_client = 1, .health_probes = 2});
  table.admit("a", false);
  const auto oldest = table.admit("a", false);
  table.admit("a", false);
  EXPECT_EQ(table.admit("a", false).gives_way, oldest.id);
  EXPECT_EQ(table.size(), 3);
}

TEST(ConnectionTable, TheAdminPortHasPlacesOfItsOwn) {
  ConnectionTable table({.connections = 1, .per_client = 1, .health_probes = 1});
  table.admit("a", false);
  table.admit("a", false);
  const auto admin = table.admit("a", true);
  EXPECT_EQ(admin.kind, Kind::kAdmin);
  EXPECT_TRUE(admin.only_health_probes);
  EXPECT_FALSE(admin.gives_way);
  EXPECT_EQ(table.admit("a", true).gives_way, admin.id);
}

TEST(BodyPace, APieceTheWholeAndTheRateEachHaveADeadline) {
  const BodyPace pace{.piece = seconds(20), .whole = seconds(100), .min_bytes_per_s = 10};
  const TimePoint began{};
  // Nothing has come, so the first piece is due.
  EXPECT_EQ(pace.next_due(began, began, 0), began + seconds(20));
  // 300 bytes pay for 30 s, in addition to the first 20.
  EXPECT_EQ(pace.next_due(began, began + seconds(19), 300), began + seconds(19 + 20));
  EXPECT_EQ(pace.next_due(began, began + seconds(45), 300), began + seconds(50));
  EXPECT_EQ(pace.next_due(began, began + seconds(95), 1 << 30), began + seconds(100));
}

TEST(BodyPace, WithoutARateOnlyPiecesAndTheWholeAreDue) {
  const BodyPace pace{.piece = seconds(20), .whole = seconds(100), .min_bytes_per_s = 0};
  EXPECT_EQ(pace.next_due(TimePoint(), TimePoint() + seconds(70), 1), TimePoint() + seconds(90));
}

TEST(ClientAddress, IsTheAddressOrTheNetworkOfIpv6) {
  const auto client = [](const char* address) {
    return client_of(asio::ip::make_address(address));
  };
  EXPECT_EQ(client("10.1.2.3"), "10.1.2.3");
  EXPECT_EQ(client("::ffff:10.1.2.3"), "10.1.2.3");
  EXPECT_EQ(client("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
}

}  // namespace
}  // namespace millrace::coordinator

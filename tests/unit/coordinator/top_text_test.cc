// SPDX-License-Identifier: Apache-2.0
#include "client/top_text.h"

#include <gmock/gmock.h>

#include <boost/json.hpp>
#include <sstream>
#include <vector>

namespace millrace::client {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr const char* kOverview = R"({
 "version": "1.2.3", "num_groups": 2, "num_running": 2, "num_queued": 300,
 "groups": [
  {"group": "group-0", "model": "fixture", "state": "running", "ranks": 4, "tp": 2, "cp": 2, "tiers": [
   {"tier": "device", "capacity_bytes": 8388608, "used_bytes": 4194304},
   {"tier": "host", "capacity_bytes": 549755813888, "used_bytes": 54975581388}]},
  {"group": "group-1", "model": "org/a-model-with-a-name-that-is-long", "state": "idle", "ranks": 1, "tp": 1,
   "cp": 1, "tiers": []}],
 "running": [
  {"request_id": "r1", "num_tokens": 131072, "layers_done": 12, "num_layers": 32, "density": 0.2134,
   "seconds_left": 20.4, "set_aside": false, "cancelled": false},
  {"request_id": "r2", "num_tokens": 512, "layers_done": 0, "num_layers": 32, "density": null,
   "seconds_left": null, "set_aside": true, "cancelled": false}],
 "queued": [
  {"request_id": "a-request-id-of-quite-some-length-0123456789abcdef", "num_tokens": 1000000,
   "queue_seconds": 75, "priority": -3, "deadline_in_seconds": 7300}],
 "ended": [
  {"request_id": "r0", "num_tokens": 999, "queue_seconds": 0.25, "prefill_seconds": 3.04, "density": 1,
   "recall": 0.9871, "ended_seconds_ago": 61},
  {"request_id": "bad", "num_tokens": 1, "queue_seconds": 0, "prefill_seconds": null, "error": "too_large",
   "ended_seconds_ago": 9.96}]})";

std::string top(const std::string& overview, const TopLayout& layout = {}) {
  return top_text(json::parse(overview).as_object(), layout);
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

TEST(TopText, FillsEightyColumns) {
  EXPECT_EQ(top(kOverview), R"(Millrace 1.2.3  2 groups, 5 ranks, 2 running, 300 queued

GROUP                        TPxCP     STATE      DEVICE        HOST        DISK
group-0  fixture               2x2   running   50% of 8M 10% of 512G
group-1  org/a-model-wit..     1x1      idle

RUNNING                            TOKENS               LAYERS     LEFT  DENSITY
r1                                131,072   [###.......] 12/32      20s    0.213
r2                                    512    [..........] 0/32    aside        -

QUEUE 300                                      TOKENS   WAITED PRIORITY DEADLINE
a-request-id-of-quite-some-length-012345..  1,000,000     1m15       -3     2h01

ENDED                           TOKENS   WAITED     TOOK DENSITY  RECALL     AGO
r0                                 999     0.2s     3.0s   1.000   0.987    1m01
bad too_large                        1     0.0s        -       -       -   10.0s
)");
}

TEST(TopText, NoLineIsLongerThanTheTerminalIsWide) {
  for (const int columns : {40, 63, 80, 200}) {
    for (const std::string& line : lines(top(kOverview, {.columns = columns}))) {
      EXPECT_LE(static_cast<int>(line.size()), columns) << line;
    }
  }
}

TEST(TopText, LinesThatDoNotFitAreLeftOut) {
  const auto all = lines(top(kOverview));
  const auto some = lines(top(kOverview, {.rows = 5}));
  EXPECT_EQ(some, std::vector<std::string>(all.begin(), all.begin() + 5));
}

TEST(TopText, HeadingsAreBoldWhereTheTerminalIsOne) {
  const std::string text = top(kOverview, {.bold = true});
  EXPECT_TRUE(text.starts_with("\x1b[1mMillrace 1.2.3"));
  EXPECT_THAT(top(kOverview), Not(HasSubstr("\x1b")));
}

// A name could otherwise write anywhere on the screen.
TEST(TopText, NamesReachTheTerminalAsPrintableAscii) {
  const std::string text =
      top(R"({"groups":[{"group":"a\u001b[2Jb\nc\u00e9\u202ed","model":"m","tp":1,"cp":1}]})");
  EXPECT_THAT(text, HasSubstr("a?[2Jb?c??d  m"));
  EXPECT_THAT(lines(text), SizeIs(4));
}

TEST(TopText, WhatIsMissingOrOfAnotherTypeShowsAsADash) {
  EXPECT_THAT(top("{}"), HasSubstr("Millrace -  - groups, 0 ranks, - running, - queued"));
  const std::string text = top(
      R"({"groups":7,"running":[{"request_id":3,"num_layers":"x"},9],"ended":[{"recall":"y"}]})");
  EXPECT_THAT(text, HasSubstr("[..........] -/-"));
}

TEST(TopText, TakesFiguresThatNoServiceHas) {
  const std::string text = top(
      R"({"num_groups":-1234567,"running":[{"layers_done":1e300,"num_layers":1,"num_tokens":-1e300,)"
      R"("seconds_left":1e15}],"queued":[{"deadline_in_seconds":-5}]})");
  EXPECT_THAT(text, HasSubstr("-1,234,567 groups"));
  EXPECT_THAT(text, HasSubstr("[##########]"));
  for (const std::string& line : lines(text)) EXPECT_LE(line.size(), 80U) << line;
}

}  // namespace
}  // namespace millrace::client

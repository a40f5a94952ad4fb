// SPDX-License-Identifier: Apache-2.0
#include "coordinator/schedule/reply_checks.h"
#include "common/errc_wire.h"

#include <gmock/gmock.h>

#include "coordinator/text/cut_text.h"

namespace millrace::coordinator {
namespace {

TEST(ReplyChecks, ALeaseLastsADayAtMost) {
  Group group;
  group.description.set_group_name("group-0");
  constexpr uint64_t kDayMs = 24 * 3600 * 1000;
  EXPECT_EQ(*checked_lease(group, "a", kDayMs), std::chrono::hours(24));
  EXPECT_EQ(checked_lease(group, "a", kDayMs + 1).error().message,
            "group 'group-0' gives request 'a' a lease of 86400001 ms, limit 86400000");
}

TEST(ReplyChecks, AnErrorOfAGroupKeepsItsCode) {
  protocol::ErrorInfo info;
  info.set_code(errc_to_wire(Errc::kIo));
  info.set_message("disk full");
  EXPECT_EQ(checked_error(info).code, Errc::kIo);
  EXPECT_EQ(checked_error(info).message, "disk full");
  info.set_code(12345);
  EXPECT_EQ(checked_error(info).code, Errc::kInternal);
}

TEST(CutText, KeepsWholeCharacters) {
  EXPECT_EQ(cut_text("abc", 3), "abc");
  EXPECT_EQ(cut_text("ab\xc3\xa9", 3), "ab... (4 bytes)");
}

}  // namespace
}  // namespace millrace::coordinator

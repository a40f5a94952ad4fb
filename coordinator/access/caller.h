// SPDX-License-Identifier: Apache-2.0
// Who sends a request, according to its token, and what that token allows. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::coordinator {

// Each scope includes those before it.
enum class Scope {
  kRead,     // see the requests of its own name, follow them, keep and release their leases
  kPrefill,  // also post prompts and cancel them
  kAdmin,    // all of that for everybody's requests, and the metrics
};

// 0: no limit.
struct Quota {
  int64_t tokens_per_minute = 0;  // of prompts
  int requests_at_once = 0;       // that wait or run
  bool operator==(const Quota&) const = default;
};

struct Caller {
  // Where no token is asked for: everybody may do everything.
  static Caller anybody() { return {.name = "", .scope = Scope::kAdmin, .quota = {}}; }

  bool may(Scope wanted) const { return scope >= wanted; }
  bool may_touch(std::string_view owner) const { return may(Scope::kAdmin) || owner == name; }

  std::string name;
  Scope scope = Scope::kRead;
  Quota quota;
};

}  // namespace millrace::coordinator

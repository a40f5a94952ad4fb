// SPDX-License-Identifier: Apache-2.0
// Which HTTP connections are open, and what a new one may do. Monitoring always gets in: beyond the
// limits (on all connections, and on those of one client) a connection may carry one health probe, and
// when there are too many of these the oldest is closed. Pure: the server closes it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "common/result.h"

namespace millrace::coordinator {

class ConnectionTable {
 public:
  using Id = uint64_t;
  // kAdmin: connected to the port for health probes only.
  enum class Kind { kAny, kHealthProbe, kAdmin };

  struct Limits {
    int connections = 1024;
    int per_client = 512;
    int health_probes = 32;  // of kHealthProbe, and of kAdmin
  };

  struct Admission {
    Id id = 0;
    Kind kind = Kind::kAny;
    std::optional<Error> only_health_probes;  // the reason, unless the kind is kAny
    std::optional<Id> gives_way;              // the connection to close; no longer in the table
  };

  explicit ConnectionTable(const Limits& limits) : limits_(limits) {}

  Admission admit(const std::string& client, bool by_admin_port);
  // Does nothing if it has left already.
  void leave(Id id);
  int64_t size() const { return std::ssize(open_); }

 private:
  struct Entry {
    Kind kind;
    std::string client;
  };

  std::optional<Error> refusal(const std::string& client) const;

  const Limits limits_;
  Id last_id_ = 0;
  std::map<Id, Entry> open_;
  std::map<Kind, std::set<Id>> by_kind_;
  std::map<std::string, int> by_client_;  // of kAny
};

}  // namespace millrace::coordinator

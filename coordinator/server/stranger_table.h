// SPDX-License-Identifier: Apache-2.0
// Connections to a port whose other ends have not said yet who they are, bounded in all and for one
// address (client_of()). One more ends the one that came first, so whoever says at once who it is
// gets in despite a crowd. Pure: the server closes connections.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace millrace::coordinator {

class StrangerTable {
 public:
  using Id = uint64_t;  // in the order of arrival

  struct Limits {
    int all = 256;
    int of_address = 64;
  };

  struct Admission {
    Id id = 0;
    std::optional<Id> gives_way;  // the connection to close; no longer in the table
  };

  explicit StrangerTable(const Limits& limits) : limits_(limits) {}

  Admission admit(const std::string& address);
  // It is known, or has gone. Does nothing if it is not in the table.
  void leave(Id id);
  int64_t size() const { return std::ssize(all_); }

 private:
  const Limits limits_;
  Id last_id_ = 0;
  std::map<Id, std::string> all_;
  std::map<std::string, std::set<Id>> by_address_;
};

}  // namespace millrace::coordinator

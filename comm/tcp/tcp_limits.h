// SPDX-License-Identifier: Apache-2.0
// How many connections and how much time and memory a server of comm/tcp allows its peers. The
// defaults are for decode nodes; tests use smaller ones.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "common/clock.h"

namespace millrace::comm {

struct TcpLimits {
  // Connections that have not been admitted yet: in all, and from one IPv4 address or IPv6 /64. One
  // more ends the oldest, so a client that says its hello at once gets in despite a crowd.
  int max_strangers = 512;
  int max_strangers_of_address = 64;
  // Time from being accepted to being admitted, TLS included.
  Duration hello = std::chrono::seconds(5);
  // Admitted connections, in all and of one lease. A decode process opens one for each of its
  // pulling threads. A further one takes the place of one that has asked for nothing for
  // `gives_way_after`, or is refused with kExhausted.
  int max_clients = 1024;
  int max_clients_of_lease = 256;
  Duration gives_way_after = std::chrono::seconds(1);
  // Time between two requests.
  Duration idle = std::chrono::minutes(10);
  // Time from the first byte of a request to its last.
  Duration request = std::chrono::seconds(10);
  // Time of a reply: from its first byte to its last, and without the client taking a byte.
  Duration reply = std::chrono::seconds(60);
  Duration stall = std::chrono::seconds(20);
  // Bytes of all replies under way, whose pages stay pinned. Above this no request is begun, and a
  // reply that takes longer than `reply_in_crowd` ends with its connection. One reply of each
  // thread may come on top.
  int64_t reply_bytes = int64_t{2} << 30;
  Duration reply_in_crowd = std::chrono::seconds(5);
  // A peer whose host is silent this long is lost.
  int silence_s = 20;

  // The same, with no more connections than a process reaches that may have so many descriptors.
  // Strangers keep some of them, so that clients who show a lease always get as far as that.
  TcpLimits within(int64_t descriptors) const {
    constexpr int64_t kOthers = 256;  // of the process: files, other ranks, libraries
    const int64_t left = std::max<int64_t>(8, descriptors - std::min(kOthers, descriptors / 2));
    TcpLimits fitted = *this;
    fitted.max_strangers = static_cast<int>(std::min<int64_t>(max_strangers, left / 4));
    fitted.max_strangers_of_address = std::min(max_strangers_of_address, fitted.max_strangers);
    fitted.max_clients =
        static_cast<int>(std::min<int64_t>(max_clients, left - fitted.max_strangers));
    fitted.max_clients_of_lease = std::min(max_clients_of_lease, fitted.max_clients);
    return fitted;
  }
};

}  // namespace millrace::comm

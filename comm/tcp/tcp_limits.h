// SPDX-License-Identifier: Apache-2.0
// How many connections and how much time and memory a server of comm/tcp allows its peers. The
// defaults are for decode nodes; tests use smaller ones.
#pragma once

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
  // Admitted connections, in all and of one lease; further ones are refused with kExhausted. A
  // decode process opens one for each of its pulling threads.
  int max_clients = 1024;
  int max_clients_of_lease = 256;
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
};

}  // namespace millrace::comm

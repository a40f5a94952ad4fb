// SPDX-License-Identifier: Apache-2.0
// Blocking sockets to 127.0.0.1 for tests. Every read gives up after 10 s.
#pragma once

#include <cstdint>
#include <string>

namespace millrace::coordinator {

int connect_loopback(uint16_t port);
// Listens on a free port.
int listen_loopback(uint16_t* port);
bool send_all(int socket, const std::string& bytes);
// Reads and discards until the peer closes; false if it does not close.
bool read_until_closed(int socket);

}  // namespace millrace::coordinator

// SPDX-License-Identifier: Apache-2.0
// The ports of a server in its address: "10.0.0.7:9000,41873" has two, with one thread behind each.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/net/socket_address.h"
#include "common/result.h"

namespace millrace::comm {

// `first` is "host:port".
std::string join_ports(std::string first, std::span<const int> others);

// "host:port" for each port, in order. kInvalidArgument.
Result<std::vector<std::string>> split_ports(const std::string& address);

// Where the further threads of a server at `address` may listen, at least one address: the ports of
// UCX_TCP_PORT_RANGE ("9100-9200") that are free now, if the operator has set it for a firewall,
// else any (port 0). The search starts at a port that differs between processes, because those of
// one host search at the same time. kInvalidArgument, kExhausted (none is free).
Result<std::vector<SocketAddress>> further_addresses(const SocketAddress& address);

}  // namespace millrace::comm

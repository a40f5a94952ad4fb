// SPDX-License-Identifier: Apache-2.0
// Reads UCX's description of an endpoint. UCX 1.13 has no call that tells which of an endpoint's
// lanes carries bulk data; its printed description does, in all versions since.
#pragma once

#include <string>
#include <string_view>

namespace millrace::comm {

// From the text of ucp_ep_print_info: "shm", "tcp", or UCX's name of another transport; "unknown"
// while the endpoint is not connected.
std::string transport_of_bulk_lane(std::string_view endpoint_info);

}  // namespace millrace::comm

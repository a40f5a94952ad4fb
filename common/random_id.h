// SPDX-License-Identifier: Apache-2.0
// Identifiers that cannot be guessed and never repeat: leases, epochs, requests.
#pragma once

#include <string>

namespace millrace {

// 128 random bits from the operating system, as 32 hexadecimal digits.
std::string random_id();

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
// Raises the soft limit of open files to the hard one, since a soft limit is often 1024 for the sake
// of programs that use select(). Returns how many descriptors this process may have now.
#pragma once

#include <cstdint>

namespace millrace {

int64_t raise_descriptor_limit();

}  // namespace millrace

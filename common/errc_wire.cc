// SPDX-License-Identifier: Apache-2.0
#include "common/errc_wire.h"

namespace millrace {

Errc errc_from_wire(int code) {
  const bool known =
      code >= errc_to_wire(Errc::kInvalidArgument) && code <= errc_to_wire(Errc::kDenied);
  return known ? static_cast<Errc>(code) : Errc::kInternal;
}

}  // namespace millrace

// Naive implementation of every operation in double precision, for tests only: no blocking, no
// vectors, no cleverness, and no code shared with the devices it judges but for their memory and
// what has tests of its own against the definition: coverage.h and closed_form.h.
#pragma once

#include <memory>

#include "kernels/api/device.h"

namespace millrace::kernels {

std::unique_ptr<Device> make_ref_device();

}  // namespace millrace::kernels

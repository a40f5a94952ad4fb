// SPDX-License-Identifier: Apache-2.0
// Naive implementation of every operation in double precision, for tests only: no blocking, no
// vectors, no cleverness. It shares no code with the devices it judges, except for their memory,
// and coverage.h and closed_form.h, which have tests of their own against the definition.
#pragma once

#include <memory>

#include "kernels/api/device.h"

namespace millrace::kernels {

std::unique_ptr<Device> make_ref_device();

}  // namespace millrace::kernels

// SPDX-License-Identifier: Apache-2.0
#include "tests/support/precompiled.h"

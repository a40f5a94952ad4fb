// SPDX-License-Identifier: Apache-2.0
// MR_VECTORISED marks a function that is compiled once for each instruction set. The one for the
// machine is selected when the program starts, before sanitizers are ready, so with them the macro
// is empty. Functions that it calls must be MR_INLINE.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MR_VECTORISED __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define MR_VECTORISED
#endif
#define MR_INLINE inline __attribute__((always_inline))

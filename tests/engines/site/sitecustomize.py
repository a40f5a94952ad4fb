# SPDX-License-Identifier: Apache-2.0
"""Runs in every Python process of the engines' tests: asks Linux for the AMX tiles, as a process must before it uses them. vLLM's attention on
CPUs uses them if torch finds them, but does not ask for them, and ends with SIGILL unless a library has asked by then."""
import ctypes
import platform

ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18  # x86_64; asm/prctl.h
if platform.machine() == "x86_64":
    ctypes.CDLL(None).syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)  # fails without AMX, which does no harm

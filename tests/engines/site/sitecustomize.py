"""Of every Python process of the engines' tests: asks Linux for the tiles of AMX, as a process must before it uses them. vLLM's attention on CPUs uses
them where torch finds them, and asks for nothing: it ends with SIGILL unless a library has asked by then."""
import ctypes
import platform

ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18  # x86_64; asm/prctl.h
if platform.machine() == "x86_64":
    ctypes.CDLL(None).syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)  # an error without AMX: nothing to ask for

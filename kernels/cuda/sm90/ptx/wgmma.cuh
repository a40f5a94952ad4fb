// SPDX-License-Identifier: Apache-2.0
// Warpgroup matrix products: A from registers or shared memory, B from shared memory, accumulators
// in registers: float32 for 16-bit factors and 8-bit floats, int32 for int8 (PTX ISA 9.0,
// "wgmma.mma_async"). The 128 threads of a warpgroup issue them together. The registers of A and of
// the accumulators must not be touched until wgmma_wait returns.
//
// Fragments of lane l of warp w of the warpgroup:
//   accumulator  columns 8 j + 2 (l % 4) + {0, 1}: of row 16 w + l / 4 in elements 4 j + {0, 1},
//                of row 16 w + l / 4 + 8 in elements 4 j + {2, 3}.
//   A            a slice of 16 columns in 4 registers of two elements: (row, 2 (l % 4)),
//                (row + 8, the same), and both again 8 columns further. For int8 the same bytes: a
//                slice of 32 columns, four to a register.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/dtype.h"
#include "common/float8.h"

namespace millrace::kernels::cuda::ptx {

// Matrices in shared memory are tiles of 64 elements (128 bytes) by rows, in the 128-byte swizzle
// of the copy engine, 1,024-byte aligned. `panel_stride`: bytes between two neighbouring tiles,
// used if B's columns run along the 128 bytes (transposed B) and exceed 64.
__device__ inline uint64_t matrix_descriptor(uint32_t shared, uint32_t panel_stride) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = 1024;  // bytes from one group of 8 rows to the next
  return kSwizzle128 | (kEightRows >> 4) << 32 | uint64_t{panel_stride >> 4} << 16 |
         uint64_t{(shared & 0x3FFFF) >> 4};
}

// The same for rows of 64 bytes, in the 64-byte swizzle, one tile wide.
__device__ inline uint64_t narrow_matrix_descriptor(uint32_t shared) {
  constexpr uint64_t kSwizzle64 = uint64_t{2} << 62;
  constexpr uint64_t kEightRows = 512;
  return kSwizzle64 | (kEightRows >> 4) << 32 | uint64_t{(shared & 0x3FFFF) >> 4};
}

__device__ inline void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending committed groups are unfinished.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving uses of the registers across this point.
template <int kCount>
__device__ inline void fence_operand(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int kCount>
__device__ inline void fence_operand(int32_t (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}
template <int kCount>
__device__ inline void fence_operand(uint32_t (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

// Accumulators as the assembler numbers them, and as operands of its statements.
#define MR_NUMBERS_32                                                      \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MR_NUMBERS_64                                                                  \
  MR_NUMBERS_32                                                                        \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MR_NUMBERS_128                                                                       \
  MR_NUMBERS_64                                                                              \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, "  \
  "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, "    \
  "%98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, " \
  "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define MR_OPERANDS_4(c, i) "+f"((c)[i]), "+f"((c)[i + 1]), "+f"((c)[i + 2]), "+f"((c)[i + 3])
#define MR_OPERANDS_16(c, i) \
  MR_OPERANDS_4(c, i), MR_OPERANDS_4(c, i + 4), MR_OPERANDS_4(c, i + 8), MR_OPERANDS_4(c, i + 12)
#define MR_OPERANDS_32(c) MR_OPERANDS_16(c, 0), MR_OPERANDS_16(c, 16)
#define MR_OPERANDS_64(c) MR_OPERANDS_32(c), MR_OPERANDS_16(c, 32), MR_OPERANDS_16(c, 48)
#define MR_OPERANDS_128(c)                                                                \
  MR_OPERANDS_64(c), MR_OPERANDS_16(c, 64), MR_OPERANDS_16(c, 80), MR_OPERANDS_16(c, 96), \
      MR_OPERANDS_16(c, 112)
// One instruction for a shape and types. `FACTORS` are the operands A and B, `KEEP` is the operand
// that says whether to add to the accumulators, `LAYOUT` says which factors are transposed.
#define MR_WGMMA(SHAPE_AND_TYPES, NUMBERS, FACTORS, KEEP, LAYOUT)            \
  "{\n"                                                                      \
  ".reg .pred keep;\n"                                                       \
  "setp.ne.b32 keep, " KEEP                                                  \
  ", 0;\n"                                                                   \
  "wgmma.mma_async.sync.aligned." SHAPE_AND_TYPES " {" NUMBERS "}, " FACTORS \
  ", keep, 1, 1, " LAYOUT                                                    \
  ";\n"                                                                      \
  "}\n"
#define MR_WGMMA_64(TYPES, LAYOUT)                                                                \
  asm volatile(                                                                                   \
      MR_WGMMA("m64n64k16.f32." TYPES, MR_NUMBERS_32, "{%32, %33, %34, %35}, %36", "%37", LAYOUT) \
      : MR_OPERANDS_32(c)                                                                         \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(keep)))
#define MR_WGMMA_128(TYPES)                                                                     \
  asm volatile(                                                                                 \
      MR_WGMMA("m64n128k16.f32." TYPES, MR_NUMBERS_64, "{%64, %65, %66, %67}, %68", "%69", "1") \
      : MR_OPERANDS_64(c)                                                                       \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(keep)))
#define MR_WGMMA_256(TYPES)                                                                        \
  asm volatile(MR_WGMMA("m64n256k16.f32." TYPES, MR_NUMBERS_128, "{%128, %129, %130, %131}, %132", \
                        "%133", "1")                                                               \
               : MR_OPERANDS_128(c)                                                                \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(keep)))
#define MR_WGMMA_SHARED_64(TYPES)                                                         \
  asm volatile(MR_WGMMA("m64n64k16.f32." TYPES, MR_NUMBERS_32, "%32, %33", "%34", "0, 0") \
               : MR_OPERANDS_32(c)                                                        \
               : "l"(a), "l"(b), "r"(static_cast<int>(keep)))
#define MR_WGMMA_SHARED_256(TYPES)                                                             \
  asm volatile(MR_WGMMA("m64n256k16.f32." TYPES, MR_NUMBERS_128, "%128, %129", "%130", "0, 0") \
               : MR_OPERANDS_128(c)                                                            \
               : "l"(a), "l"(b), "r"(static_cast<int>(keep)))

#define MR_WGMMA_FLOAT8_256()                                                  \
  asm volatile(                                                                \
      "{\n"                                                                    \
      ".reg .pred keep;\n"                                                     \
      "setp.ne.b32 keep, %130, 0;\n"                                           \
      "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 {" MR_NUMBERS_128 \
      "}, %128, %129, keep, 1, 1;\n"                                           \
      "}\n"                                                                    \
      : MR_OPERANDS_128(c)                                                     \
      : "l"(a), "l"(b), "r"(static_cast<int>(keep)))

template <typename Element>
struct IsFloat16;
template <>
struct IsFloat16<BFloat16> : std::false_type {};
template <>
struct IsFloat16<Float16> : std::true_type {};
template <typename Element>
inline constexpr bool kIsFloat16 = IsFloat16<Element>::value;

// `c` and `a` are all or part of a thread's register arrays, at constant indices. If `keep` is
// false, sums start from zero. Element: BFloat16 or Float16, the type of both factors.
template <typename Element, int kColumns, bool kTransposedB>
struct Wgmma;

// 64 x 64 += 64 x 16 times 16 x 64; B stored by column (64 rows of 16).
template <typename Element>
struct Wgmma<Element, 64, false> {
  static __device__ inline void issue(float* c, const uint32_t* a, uint64_t b, bool keep) {
    if constexpr (kIsFloat16<Element>) {
      MR_WGMMA_64("f16.f16", "0");
    } else {
      MR_WGMMA_64("bf16.bf16", "0");
    }
  }
};

// 64 x 64 += 64 x 16 times 16 x 64; B by rows of 16 (keys) along its 64 columns.
template <typename Element>
struct Wgmma<Element, 64, true> {
  static __device__ inline void issue(float* c, const uint32_t* a, uint64_t b, bool keep) {
    if constexpr (kIsFloat16<Element>) {
      MR_WGMMA_64("f16.f16", "1");
    } else {
      MR_WGMMA_64("bf16.bf16", "1");
    }
  }
};

// 64 x 128 += 64 x 16 times 16 x 128; B by rows of 16 (keys) along its 128 columns.
template <typename Element>
struct Wgmma<Element, 128, true> {
  static __device__ inline void issue(float* c, const uint32_t* a, uint64_t b, bool keep) {
    if constexpr (kIsFloat16<Element>) {
      MR_WGMMA_128("f16.f16");
    } else {
      MR_WGMMA_128("bf16.bf16");
    }
  }
};

// 64 x 256 += 64 x 16 times 16 x 256; B by rows of 16 (keys) along its 256 columns.
template <typename Element>
struct Wgmma<Element, 256, true> {
  static __device__ inline void issue(float* c, const uint32_t* a, uint64_t b, bool keep) {
    if constexpr (kIsFloat16<Element>) {
      MR_WGMMA_256("f16.f16");
    } else {
      MR_WGMMA_256("bf16.bf16");
    }
  }
};

// 64 x 64 += 64 x 16 times 16 x 64 with A in shared memory too, stored by rows like B.
template <typename Element>
__device__ inline void wgmma_shared_64(float* c, uint64_t a, uint64_t b, bool keep) {
  if constexpr (kIsFloat16<Element>) {
    MR_WGMMA_SHARED_64("f16.f16");
  } else {
    MR_WGMMA_SHARED_64("bf16.bf16");
  }
}

// 64 x 256 += 64 x 16 times 16 x 256, the same; of Float8 64 x 32 times 32 x 256, as many bytes.
template <typename Element>
__device__ inline void wgmma_shared_256(float* c, uint64_t a, uint64_t b, bool keep) {
  if constexpr (std::is_same_v<Element, Float8>) {
    MR_WGMMA_FLOAT8_256();
  } else if constexpr (kIsFloat16<Element>) {
    MR_WGMMA_SHARED_256("f16.f16");
  } else {
    MR_WGMMA_SHARED_256("bf16.bf16");
  }
}

// 64 x 64 += 64 x 32 times 32 x 64 of int8; A by row and B by column (64 rows of 32 bytes), both in shared memory.
#define MR_INTEGERS_4(c, i) "+r"((c)[i]), "+r"((c)[i + 1]), "+r"((c)[i + 2]), "+r"((c)[i + 3])
#define MR_INTEGERS_16(c, i) \
  MR_INTEGERS_4(c, i), MR_INTEGERS_4(c, i + 4), MR_INTEGERS_4(c, i + 8), MR_INTEGERS_4(c, i + 12)
__device__ inline void wgmma_int8_shared_64(int32_t* c, uint64_t a, uint64_t b, bool keep) {
  asm volatile(
      "{\n"
      ".reg .pred keep;\n"
      "setp.ne.b32 keep, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {" MR_NUMBERS_32
      "}, %32, %33, keep;\n"
      "}\n"
      : MR_INTEGERS_16(c, 0), MR_INTEGERS_16(c, 16)
      : "l"(a), "l"(b), "r"(static_cast<int>(keep)));
}
#undef MR_INTEGERS_16
#undef MR_INTEGERS_4

#undef MR_WGMMA_FLOAT8_256
#undef MR_WGMMA_SHARED_256
#undef MR_WGMMA_SHARED_64
#undef MR_WGMMA_256
#undef MR_WGMMA_128
#undef MR_WGMMA_64
#undef MR_WGMMA
#undef MR_OPERANDS_128
#undef MR_OPERANDS_64
#undef MR_OPERANDS_32
#undef MR_OPERANDS_16
#undef MR_OPERANDS_4
#undef MR_NUMBERS_128
#undef MR_NUMBERS_64
#undef MR_NUMBERS_32

}  // namespace millrace::kernels::cuda::ptx

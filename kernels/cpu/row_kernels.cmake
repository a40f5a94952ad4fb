# row_kernels_impl.h once per instruction set. -O3 in every build type: these loops are the same
# code as the release, and unoptimised vector loops hide nothing a debugger wants. The floating-point
# flags change no value: they say that errno and floating-point exceptions are not read, without
# which GCC does not vectorise comparisons and square roots.
set(row_kernel_flags -O3 -fno-math-errno -fno-trapping-math)

target_sources(mr_kernels_cpu PRIVATE row_kernels_baseline.cc)
set_source_files_properties(row_kernels_baseline.cc PROPERTIES COMPILE_OPTIONS "${row_kernel_flags}")

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_sources(mr_kernels_cpu PRIVATE row_kernels_avx2.cc row_kernels_avx512.cc)
  set_source_files_properties(row_kernels_avx2.cc PROPERTIES
    COMPILE_OPTIONS "${row_kernel_flags};-mavx2;-mfma;-mf16c")
  set_source_files_properties(row_kernels_avx512.cc PROPERTIES
    COMPILE_OPTIONS
      "${row_kernel_flags};-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mfma;-mprefer-vector-width=512")
endif()

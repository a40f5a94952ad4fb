# What the estimators share, and estimation_kernels_impl.h once per instruction set. The flags are those of
# row_kernels.cmake and for its reasons; products and sums become fused multiply-adds where they exist.
target_sources(mr_kernels_cpu PRIVATE
  block_lists.cc estimation_kernels.cc estimation_kernels_baseline.cc float_rows.cc key_pages.cc
  panel_matrix.cc ranking.cc row_scan.cc row_scores.cc)
set(estimation_flags -O3 -fno-math-errno -fno-trapping-math -ffp-contract=fast)
set_source_files_properties(estimation_kernels_baseline.cc PROPERTIES COMPILE_OPTIONS "${estimation_flags}")

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_sources(mr_kernels_cpu PRIVATE estimation_kernels_avx2.cc estimation_kernels_avx512.cc)
  set_source_files_properties(estimation_kernels_avx2.cc PROPERTIES
    COMPILE_OPTIONS "${estimation_flags};-mavx2;-mfma")
  set_source_files_properties(estimation_kernels_avx512.cc PROPERTIES
    COMPILE_OPTIONS
      "${estimation_flags};-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mfma;-mprefer-vector-width=512")
endif()

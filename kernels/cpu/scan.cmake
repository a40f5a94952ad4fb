# scan_kernels_<level>.cc: one kernel template per instruction set.
set_source_files_properties(row_sample.cc PROPERTIES COMPILE_OPTIONS "-O3;-ffp-contract=off")
target_sources(mr_kernels_cpu PRIVATE row_sample.cc scan_kernels.cc scan_kernels_baseline.cc)
set_source_files_properties(scan_kernels_baseline.cc PROPERTIES COMPILE_OPTIONS "-O3")

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(avx2_flags -O3 -mavx2 -mfma)
  set(avx512_flags ${avx2_flags} -mavx512f -mavx512bw -mavx512dq -mavx512vl)
  set(avx512_vnni_flags ${avx512_flags} -mavx512vnni)
  foreach(level avx2 avx512 avx512_vnni)
    target_sources(mr_kernels_cpu PRIVATE scan_kernels_${level}.cc)
    set_source_files_properties(scan_kernels_${level}.cc PROPERTIES COMPILE_OPTIONS "${${level}_flags}")
  endforeach()
endif()

# attention_<level>.cc: one kernel template per instruction set. fp-contract: the template is written with * and +, which
# are to become fused multiply-adds.
set(attention_flags -ffp-contract=fast)
target_sources(mr_kernels_cpu PRIVATE attention_tile.cc attention_baseline.cc)
set_source_files_properties(attention_baseline.cc PROPERTIES COMPILE_OPTIONS "${attention_flags}")

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(avx2_flags ${attention_flags} -mavx2 -mfma)
  set(avx512_flags ${avx2_flags} -mavx512f -mavx512bw -mavx512dq -mavx512vl)
  set(avx512_bf16_flags ${avx512_flags} -mavx512bf16)
  foreach(level avx2 avx512 avx512_bf16)
    target_sources(mr_kernels_cpu PRIVATE attention_${level}.cc)
    set_source_files_properties(attention_${level}.cc PROPERTIES COMPILE_OPTIONS "${${level}_flags}")
  endforeach()
endif()

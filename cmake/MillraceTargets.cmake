# SPDX-License-Identifier: Apache-2.0
# mr_library, mr_executable, mr_test, mr_bench: every target of the tree is made by one of these, so that
# warnings, sanitizers and include paths are the same everywhere.

find_program(MR_CCACHE ccache)
if(MR_CCACHE)
  # ccache stores what was compiled with a precompiled header only if told that it may.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${MR_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${MR_CCACHE})
endif()

add_library(mr_options INTERFACE)
target_include_directories(mr_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(mr_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-psabi -Wno-missing-field-initializers>)
# nvcc's front end can evaluate fmt's format strings while compiling, although fmt 9 does not expect it.
target_compile_options(mr_options INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo --expt-relaxed-constexpr -DFMT_USE_CONSTEXPR=1>)
if(MILLRACE_WERROR)
  target_compile_options(mr_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(MILLRACE_SANITIZE)
  target_compile_options(mr_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${MILLRACE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(mr_options INTERFACE -fsanitize=${MILLRACE_SANITIZE})
endif()

# mr_library(name [SERVICE] [OPENMP] [UNITY] SOURCES a.cc ... DEPS target ... [LINKS target ...]): a static library, mr_ and the
# path of its folder. DEPS are those whose headers the folder includes (tools/check_includes.py compares them); LINKS
# those that implement what it calls without including a header of theirs. Both are public.
# SERVICE: it speaks HTTP, JSON or protobuf, and is compiled with precompiled_service.h instead of precompiled.h.
# OPENMP: its own code is compiled with OpenMP, without a precompiled header.
# UNITY: no two of its sources have a name in common that the others must not see, so MILLRACE_UNITY may
# compile them as one; deploy/run-tests tries it.
function(mr_library name)
  cmake_parse_arguments(ARG "SERVICE;OPENMP;UNITY" "" "SOURCES;DEPS;LINKS" ${ARGN})
  if(NOT ARG_SOURCES)
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE mr_options ${ARG_DEPS} ${ARG_LINKS})
    return()
  endif()
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC mr_options ${ARG_DEPS} ${ARG_LINKS})
  if(ARG_UNITY AND MILLRACE_UNITY)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
    if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      # g++ takes the anonymous namespace of a source that another includes for that of a header.
      target_compile_options(${name} PRIVATE -Wno-subobject-linkage)
    endif()
  endif()
  if(ARG_OPENMP)
    target_link_libraries(${name} PRIVATE OpenMP::OpenMP_CXX)
  elseif(ARG_SERVICE)
    mr_precompile(${name} mr_service_headers)
    target_link_libraries(${name} PRIVATE mr_service_options)
    # Asio's headers refer to its code, which is there.
    if(NOT ${name} STREQUAL mr_common_net)
      target_link_libraries(${name} PRIVATE mr_common_net)
    endif()
  else()
    mr_precompile(${name} mr_headers)
  endif()
endfunction()

# Headers that many targets include are parsed once, in a target of their own (MillraceDependencies.cmake). ccache wants
# -fpch-preprocess. g++ 12 warns of copies in std::string (GCC bug 105651), and forgets that a precompiled header is the
# system's.
function(mr_precompile name headers)
  target_precompile_headers(${name} REUSE_FROM ${headers})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(${name} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow
        -Wno-stringop-overread>)
  endif()
endfunction()

# mr_executable(name SOURCES main.cc ... DEPS target ...)
function(mr_executable name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE mr_options ${ARG_DEPS})
  target_compile_definitions(${name} PRIVATE MILLRACE_VERSION="${PROJECT_VERSION}")
endfunction()

# What every test runs with. GOMP_SPINCOUNT: tests share the cores (kernels/cpu/runtime/context.h). Each
# sanitizer reads its own variable; without a sanitizer nobody does.
set(MR_TEST_ENVIRONMENT
  GOMP_SPINCOUNT=1000
  LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0
  TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/tsan.supp:ignore_noninstrumented_modules=1)
if(MILLRACE_SANITIZE)
  # UCX patches mmap() and its kin in memory to hear of unmapped pages; sanitizers have put their own
  # code there.
  list(APPEND MR_TEST_ENVIRONMENT UCX_MEM_MMAP_HOOK_MODE=none)
endif()

# mr_test(name SOURCES x_test.cc ... DEPS target ... [LABELS cpu] [TIMEOUT seconds]): a GoogleTest binary run by ctest.
function(mr_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  # In this order: what the second allows, the warnings of the first would forbid.
  target_link_libraries(${name} PRIVATE mr_options mr_test_headers GTest::gtest_main ${ARG_DEPS})
  target_precompile_headers(${name} REUSE_FROM mr_test_headers)
  if(NOT ARG_LABELS)
    set(ARG_LABELS cpu)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)  # a hang is told from a busy machine: transport_test took 54 s at a load of 15
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES
    LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "${MR_TEST_ENVIRONMENT}")
endfunction()

# mr_bench(name SOURCES x_bench.cc ... DEPS target ...): built, never run by ctest: speed is not a test.
function(mr_bench name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE mr_options ${ARG_DEPS} OpenMP::OpenMP_CXX)
endfunction()

# mr_fuzzer(name SOURCES x_fuzz.cc ... DEPS target ...): a libFuzzer target; only with clang and MILLRACE_FUZZ.
function(mr_fuzzer name)
  if(NOT MILLRACE_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE mr_options ${ARG_DEPS} -fsanitize=fuzzer,address)
endfunction()

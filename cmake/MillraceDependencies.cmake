# SPDX-License-Identifier: Apache-2.0
# Third-party packages, all from the distribution (deploy/packages lists them). Debian 12 and Ubuntu 24.04 differ only
# in versions: Boost 1.81 and 1.83, oneDNN 2.6 and 3.1.
find_package(Threads REQUIRED)
if(MILLRACE_FUZZ)
  # The fuzz targets contain no kernels, and clang's OpenMP is a package of its own.
  add_library(OpenMP::OpenMP_CXX INTERFACE IMPORTED)
else()
  find_package(OpenMP REQUIRED COMPONENTS CXX)
endif()
find_package(Boost 1.81 REQUIRED COMPONENTS json)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 QUIET)
find_package(Protobuf REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(dnnl CONFIG REQUIRED)
find_package(MPI REQUIRED COMPONENTS CXX)
find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)
find_package(PkgConfig REQUIRED)
pkg_check_modules(UCX REQUIRED IMPORTED_TARGET ucx)
pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
if(MILLRACE_TESTS)
  find_package(GTest REQUIRED)
endif()
if(MILLRACE_BENCH)
  find_package(benchmark REQUIRED)
endif()

# Debian's CLI11 is header only; its CMake package is missing in some versions.
if(NOT TARGET CLI11::CLI11)
  find_path(CLI11_INCLUDE_DIR CLI/CLI.hpp REQUIRED)
  add_library(CLI11::CLI11 INTERFACE IMPORTED)
  target_include_directories(CLI11::CLI11 INTERFACE ${CLI11_INCLUDE_DIR})
endif()

# Header only, in the one source that reads TOML.
find_path(TOMLPLUSPLUS_INCLUDE_DIR toml++/toml.h REQUIRED)

# Precompiled headers (mr_library). Compiled with what every library is compiled with; the service's also with what its
# libraries share, since a compiler refuses a precompiled header whose macros differ from the source's.
add_library(mr_headers OBJECT cmake/precompiled.cc)
target_link_libraries(mr_headers PUBLIC mr_options fmt::fmt spdlog::spdlog)
target_precompile_headers(mr_headers PRIVATE cmake/precompiled.h)

add_library(mr_service_options INTERFACE)
target_compile_definitions(mr_service_options INTERFACE BOOST_ASIO_SEPARATE_COMPILATION BOOST_BEAST_SEPARATE_COMPILATION)
target_link_libraries(mr_service_options INTERFACE Boost::headers Boost::json protobuf::libprotobuf)
add_library(mr_service_headers OBJECT cmake/precompiled.cc)
target_link_libraries(mr_service_headers PUBLIC mr_options mr_service_options fmt::fmt spdlog::spdlog)
target_precompile_headers(mr_service_headers PRIVATE cmake/precompiled_service.h)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(mr_headers PRIVATE -fpch-preprocess)
  target_compile_options(mr_service_headers PRIVATE -fpch-preprocess)
endif()

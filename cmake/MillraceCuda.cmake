# SPDX-License-Identifier: Apache-2.0
# MILLRACE_CUDA=AUTO|ON|OFF becomes MILLRACE_WITH_CUDA, and with it the language CUDA and the toolkit's targets.
# AUTO takes the toolkit that is on PATH, in CUDACXX or in /usr/local/cuda, if it is new enough; ON fails without one.
set(MR_CUDA_LEAST_VERSION 13.0)

function(mr_nvcc_version out)
  execute_process(COMMAND ${MR_NVCC} --version OUTPUT_VARIABLE text)
  string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" found "${text}")
  set(${out} ${CMAKE_MATCH_1} PARENT_SCOPE)
endfunction()

set(MILLRACE_WITH_CUDA OFF)
if(NOT MILLRACE_CUDA STREQUAL "OFF")
  find_program(MR_NVCC nvcc HINTS ENV CUDACXX PATHS /usr/local/cuda/bin)
  if(MR_NVCC)
    mr_nvcc_version(nvcc_version)
    if(nvcc_version VERSION_GREATER_EQUAL MR_CUDA_LEAST_VERSION)
      set(MILLRACE_WITH_CUDA ON)
    else()
      message(STATUS "${MR_NVCC} is of CUDA ${nvcc_version}; the kernels need ${MR_CUDA_LEAST_VERSION}")
    endif()
  endif()
  if(MILLRACE_CUDA STREQUAL "ON" AND NOT MILLRACE_WITH_CUDA)
    message(FATAL_ERROR "MILLRACE_CUDA=ON, but there is no nvcc of CUDA ${MR_CUDA_LEAST_VERSION} or newer on PATH or in "
                        "/usr/local/cuda/bin")
  endif()
endif()

if(MILLRACE_WITH_CUDA)
  set(CMAKE_CUDA_COMPILER ${MR_NVCC})
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
  # Each folder of kernels/cuda that is written for an architecture names it.
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  # CMake 3.25 does not know either that nvcc knows C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  find_package(CUDAToolkit REQUIRED)
endif()
message(STATUS "CUDA backend: ${MILLRACE_WITH_CUDA}")

# NCCL comes in no CUDA toolkit; where it is missing, ranks on several GPUs exchange through host memory.
set(MILLRACE_WITH_NCCL OFF)
if(MILLRACE_WITH_CUDA)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}/lib)
  if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
    set(MILLRACE_WITH_NCCL ON)
    add_library(NCCL::NCCL UNKNOWN IMPORTED)
    set_target_properties(NCCL::NCCL PROPERTIES
      IMPORTED_LOCATION ${NCCL_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
  endif()
endif()
message(STATUS "NCCL: ${MILLRACE_WITH_NCCL}")

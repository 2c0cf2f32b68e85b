# libtorch from the pip package of the active Python, or REPRISE_TORCH_ROOT: target reprise::torch.
# A target of our own: TorchConfig.cmake wants a whole CUDA toolkit for a CUDA wheel, and we need headers and libraries only.
# Also installed beside reprise-config.cmake, so that a consumer finds torch the same way. Where there is none it defines no target
# and says why in REPRISE_TORCH_PROBLEM: the build stops there, find_package(reprise) finds nothing.
set(REPRISE_TORCH_VERSIONS "2.11 to 2.14")
unset(REPRISE_TORCH_PROBLEM)

if(NOT REPRISE_TORCH_ROOT)
  find_package(Python 3.10 COMPONENTS Interpreter QUIET)
  if(Python_EXECUTABLE)
    # pip's isolated builds hide the environment's packages from `import`, but the one that the module will run in is where
    # torch has to come from: look on sys.path first, then in the environment's own folders.
    execute_process(
      COMMAND ${Python_EXECUTABLE} -c "import importlib.util, os, sysconfig
spec = importlib.util.find_spec('torch')
roots = list(spec.submodule_search_locations or []) if spec else []
roots += [os.path.join(sysconfig.get_path(name), 'torch') for name in ('platlib', 'purelib')]
print(next((root for root in roots if os.path.exists(os.path.join(root, 'version.py'))), ''))"
      OUTPUT_VARIABLE REPRISE_TORCH_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
endif()
if(NOT EXISTS "${REPRISE_TORCH_ROOT}/include/ATen/core/Tensor.h")
  string(CONCAT REPRISE_TORCH_PROBLEM
    "libtorch not found: wanted torch ${REPRISE_TORCH_VERSIONS} in the active Python (${Python_EXECUTABLE}); "
    "run `pip install torch==2.13.0` there, point Python_EXECUTABLE at a Python that has it, "
    "or set REPRISE_TORCH_ROOT to the folder with libtorch's include/ and lib/")
  return()
endif()

# The header moved between the releases in the range.
unset(reprise_torch_version_lines)
file(GLOB reprise_torch_version_headers ${REPRISE_TORCH_ROOT}/include/torch/headeronly/version.h
  ${REPRISE_TORCH_ROOT}/include/torch/csrc/api/include/torch/version.h)
foreach(header ${reprise_torch_version_headers})
  file(STRINGS ${header} lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
  list(APPEND reprise_torch_version_lines ${lines})
endforeach()
string(REGEX REPLACE "[^0-9;]" "" REPRISE_TORCH_VERSION "${reprise_torch_version_lines}")
string(REPLACE ";" "." REPRISE_TORCH_VERSION "${REPRISE_TORCH_VERSION}")
if(REPRISE_TORCH_VERSION VERSION_LESS 2.11 OR REPRISE_TORCH_VERSION VERSION_GREATER_EQUAL 2.15)
  set(REPRISE_TORCH_PROBLEM
    "wanted torch ${REPRISE_TORCH_VERSIONS} but got ${REPRISE_TORCH_VERSION} in ${REPRISE_TORCH_ROOT}")
  return()
endif()
set(REPRISE_TORCH_ROOT "${REPRISE_TORCH_ROOT}" CACHE PATH "Folder with libtorch's include/ and lib/")
if(NOT reprise_FIND_QUIETLY)
  message(STATUS "libtorch ${REPRISE_TORCH_VERSION}: ${REPRISE_TORCH_ROOT}")
endif()

# ATen/Parallel.h is a template over OpenMP: compile it as such, but link the libgomp that torch brings. A second one would
# be a second pool of threads that torch.set_num_threads does not reach.
file(GLOB reprise_torch_gomp ${REPRISE_TORCH_ROOT}/lib/libgomp*.so*)
if(NOT reprise_torch_gomp)
  find_package(OpenMP QUIET COMPONENTS CXX)
  if(NOT OpenMP_CXX_FOUND)
    set(REPRISE_TORCH_PROBLEM "wanted a C++ compiler with OpenMP but ${CMAKE_CXX_COMPILER} has none")
    return()
  endif()
endif()

# A GPU build needs of CUDA its runtime library and headers: those that the wheel's own dependencies bring, or a toolkit's. The
# headers under crt/ come with nvcc only.
if(REPRISE_CUDA)
  set(reprise_cuda_hints ${REPRISE_TORCH_ROOT}/../nvidia/cu13 ENV CUDA_HOME ENV CUDA_PATH)
  find_path(REPRISE_CUDA_INCLUDE cublas_v2.h HINTS ${reprise_cuda_hints} PATHS /usr/local/cuda PATH_SUFFIXES include)
  find_path(REPRISE_CUDA_CRT_INCLUDE crt/host_defines.h HINTS ${reprise_cuda_hints} PATHS /usr/local/cuda PATH_SUFFIXES include)
  find_library(REPRISE_CUDART NAMES libcudart.so.13 cudart HINTS ${reprise_cuda_hints} PATHS /usr/local/cuda
    PATH_SUFFIXES lib lib64)
  set(reprise_torch_cuda ${REPRISE_TORCH_ROOT}/lib/${CMAKE_SHARED_LIBRARY_PREFIX}torch_cuda${CMAKE_SHARED_LIBRARY_SUFFIX})
  if(NOT EXISTS "${reprise_torch_cuda}" OR NOT REPRISE_CUDA_INCLUDE OR NOT REPRISE_CUDA_CRT_INCLUDE OR NOT REPRISE_CUDART)
    string(CONCAT REPRISE_TORCH_PROBLEM
      "REPRISE_CUDA wants a CUDA build of torch and nvcc's headers: "
      "libtorch_cuda in ${REPRISE_TORCH_ROOT}/lib, cublas_v2.h in '${REPRISE_CUDA_INCLUDE}', "
      "crt/host_defines.h in '${REPRISE_CUDA_CRT_INCLUDE}', libcudart '${REPRISE_CUDART}'; "
      "run `pip install torch==2.14.1`, install nvcc, and set CUDA_HOME to where it is")
    return()
  endif()
endif()

if(NOT TARGET reprise::torch)
  add_library(reprise::torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(reprise::torch INTERFACE
    ${REPRISE_TORCH_ROOT}/include ${REPRISE_TORCH_ROOT}/include/torch/csrc/api/include)
  # libtorch exports parts of the standard library that it was built with, std::filesystem among them, and in some releases they
  # crash: the compiler's own must be found first.
  if(UNIX AND NOT APPLE)
    target_link_libraries(reprise::torch INTERFACE stdc++)
  endif()
  foreach(library torch torch_cpu c10)
    target_link_libraries(reprise::torch INTERFACE
      ${REPRISE_TORCH_ROOT}/lib/${CMAKE_SHARED_LIBRARY_PREFIX}${library}${CMAKE_SHARED_LIBRARY_SUFFIX})
  endforeach()
  if(reprise_torch_gomp)
    list(GET reprise_torch_gomp 0 reprise_torch_gomp)
    if(NOT REPRISE_FUZZ)  # clang's OpenMP is another; what is fuzzed runs no parallel loops
      target_compile_options(reprise::torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
    endif()
    target_link_libraries(reprise::torch INTERFACE ${reprise_torch_gomp})
  else()
    target_link_libraries(reprise::torch INTERFACE OpenMP::OpenMP_CXX)
  endif()
  if(REPRISE_CUDA)
    target_include_directories(reprise::torch INTERFACE ${REPRISE_CUDA_INCLUDE} ${REPRISE_CUDA_CRT_INCLUDE})
    # The linker would drop torch_cuda where only its registrations are used.
    target_link_libraries(reprise::torch INTERFACE -Wl,--no-as-needed ${reprise_torch_cuda}
      ${REPRISE_TORCH_ROOT}/lib/${CMAKE_SHARED_LIBRARY_PREFIX}c10_cuda${CMAKE_SHARED_LIBRARY_SUFFIX} ${REPRISE_CUDART} -Wl,--as-needed)
  endif()
endif()

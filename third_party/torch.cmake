# libtorch from the pip package of the active Python (or Torch_DIR / CMAKE_PREFIX_PATH): target reprise::torch.
# An imported target of our own: TorchConfig.cmake wants a whole CUDA toolkit for a CUDA wheel, and we need headers and libraries only.
find_package(Python 3.10 COMPONENTS Interpreter QUIET)
if(NOT REPRISE_TORCH_ROOT AND Python_EXECUTABLE)
  execute_process(COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE REPRISE_TORCH_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT EXISTS "${REPRISE_TORCH_ROOT}/include/ATen/core/Tensor.h")
  message(FATAL_ERROR "libtorch not found: install torch (2.11 to 2.14) in the active Python, or set REPRISE_TORCH_ROOT to the folder with its include/ and lib/")
endif()
set(REPRISE_TORCH_ROOT "${REPRISE_TORCH_ROOT}" CACHE PATH "Folder with libtorch's include/ and lib/")
message(STATUS "libtorch: ${REPRISE_TORCH_ROOT}")

add_library(reprise_torch INTERFACE)
add_library(reprise::torch ALIAS reprise_torch)
target_include_directories(reprise_torch SYSTEM INTERFACE
  ${REPRISE_TORCH_ROOT}/include ${REPRISE_TORCH_ROOT}/include/torch/csrc/api/include)
target_link_directories(reprise_torch INTERFACE ${REPRISE_TORCH_ROOT}/lib)
target_link_libraries(reprise_torch INTERFACE torch torch_cpu c10)

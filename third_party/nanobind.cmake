# nanobind from the active Python (pip). Found before anything caches another Python.
# Python's headers of the system, or those that set_up.sh has unpacked: Debian's read others beside them by their path from include/.
file(GLOB reprise_python_headers ${REPRISE_UNPACKED}/usr/include/python3.*/Python.h)
if(reprise_python_headers AND NOT Python_INCLUDE_DIR)
  cmake_path(GET reprise_python_headers PARENT_PATH Python_INCLUDE_DIR)
  include_directories(SYSTEM ${REPRISE_UNPACKED}/usr/include)
endif()
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
  OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE nanobind_ROOT ERROR_QUIET RESULT_VARIABLE nanobind_missing)
if(nanobind_missing)
  message(FATAL_ERROR "nanobind not found: run `${Python_EXECUTABLE} -m pip install 'nanobind>=2.10'`")
endif()
find_package(nanobind CONFIG REQUIRED)

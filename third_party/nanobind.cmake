# nanobind from the active Python (pip). Found before anything caches another Python.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
  OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE nanobind_ROOT ERROR_QUIET RESULT_VARIABLE nanobind_missing)
if(nanobind_missing)
  message(FATAL_ERROR "nanobind not found: run `${Python_EXECUTABLE} -m pip install 'nanobind>=2.4'`")
endif()
find_package(nanobind CONFIG REQUIRED)

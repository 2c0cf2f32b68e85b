# find_package(reprise) beside a reprise that is installed (by run.cmake) but has no torch: it is not found, and says why unless
# QUIET; only REQUIRED stops the configuration.
set(work ${BUILD_DIR}/consumer)
if(NOT EXISTS ${work}/prefix)
  message(FATAL_ERROR "wanted an installed reprise in ${work}/prefix")
endif()
foreach(mode "" QUIET REQUIRED)
  file(REMOVE_RECURSE ${work}/optional)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -S ${SOURCE_DIR}/optional -B ${work}/optional -D MODE=${mode}
      -D CMAKE_PREFIX_PATH=${work}/prefix -D REPRISE_TORCH_ROOT=${work}/no-torch
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(FIND "${output}" "libtorch not found" said)
  string(FIND "${output}" "configured without reprise" configured)
  if(mode STREQUAL "QUIET")
    set(as_wanted NOT result AND said EQUAL -1 AND NOT configured EQUAL -1)
  elseif(mode STREQUAL "REQUIRED")
    set(as_wanted result AND NOT said EQUAL -1 AND configured EQUAL -1)
  else()
    set(as_wanted NOT result AND NOT said EQUAL -1 AND NOT configured EQUAL -1)
  endif()
  if(${as_wanted})
    message(STATUS "find_package(reprise ${mode}): as wanted")
  else()
    message(FATAL_ERROR "find_package(reprise ${mode}) exited with ${result} and printed:\n${output}")
  endif()
endforeach()

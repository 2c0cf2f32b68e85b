# Installs the build, then configures, builds and runs the consumer against the installed tree alone.
set(work ${BUILD_DIR}/consumer)
file(REMOVE_RECURSE ${work})
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${work}/prefix --component development)
run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE_DIR} -B ${work}/build -D CMAKE_BUILD_TYPE=Release
  -D CMAKE_CXX_COMPILER=${CXX_COMPILER} -D CMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}
  -D CMAKE_PREFIX_PATH=${work}/prefix -D REPRISE_TORCH_ROOT=${TORCH_ROOT})
run(${CMAKE_COMMAND} --build ${work}/build)
execute_process(COMMAND ${work}/build/consumer ${CHECKPOINT}
  OUTPUT_VARIABLE output OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
if(NOT output STREQUAL "generated 4 tokens")
  message(FATAL_ERROR "wanted 'generated 4 tokens' but got '${output}'")
endif()

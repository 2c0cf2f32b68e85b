# nlohmann-json from the active Python (pip), else a CMake package of the system's. Header-only, used in .cpp files only.
find_package(Python 3.10 QUIET COMPONENTS Interpreter)
if(Python_EXECUTABLE AND NOT TARGET nlohmann_json::nlohmann_json)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import importlib.util
spec = importlib.util.find_spec('nlohmann_json')
print(spec.submodule_search_locations[0] if spec else '')"
    OUTPUT_VARIABLE reprise_nlohmann_json OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(EXISTS "${reprise_nlohmann_json}/include/nlohmann/json.hpp")
    message(STATUS "nlohmann-json: ${reprise_nlohmann_json}")
    add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED GLOBAL)
    target_include_directories(nlohmann_json::nlohmann_json INTERFACE ${reprise_nlohmann_json}/include)
  endif()
endif()
if(NOT TARGET nlohmann_json::nlohmann_json)
  find_package(nlohmann_json 3.10 QUIET)
  if(NOT nlohmann_json_FOUND)
    message(FATAL_ERROR "nlohmann-json not found: run `pip install nlohmann-json==3.12.0` for ${Python_EXECUTABLE} "
      "(Debian: apt install nlohmann-json3-dev)")
  endif()
endif()

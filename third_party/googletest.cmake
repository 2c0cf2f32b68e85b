find_package(GTest 1.12 REQUIRED)

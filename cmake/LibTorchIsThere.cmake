# cmake -P cmake/LibTorchIsThere.cmake: succeeds if a build would find LibTorch. For script/bootstrap.
cmake_minimum_required(VERSION 3.25)
set(CMAKE_SHARED_LIBRARY_SUFFIX ".so")
set(CMAKE_SOURCE_DIR "${CMAKE_CURRENT_LIST_DIR}/..")
list(PREPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}")
include("${CMAKE_CURRENT_LIST_DIR}/TowerVersions.cmake")
find_package(LibTorch ${TOWER_LIBTORCH_MINIMUM} REQUIRED)

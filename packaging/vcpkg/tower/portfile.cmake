# An overlay port, built of this clone:
#   VCPKG_KEEP_ENV_VARS=TOWER_LIBTORCH TOWER_LIBTORCH=FOLDER vcpkg install tower --overlay-ports=packaging/vcpkg
# LibTorch is not a dependency: vcpkg's own is older than the oldest that Tower builds with. A registry's port takes the
# source of a release instead of this folder.
vcpkg_check_linkage(ONLY_DYNAMIC_LIBRARY)
if(NOT DEFINED ENV{TOWER_LIBTORCH})
  message(FATAL_ERROR "Set TOWER_LIBTORCH to the folder with LibTorch's include/ and lib/, and VCPKG_KEEP_ENV_VARS=TOWER_LIBTORCH, "
                      "so that vcpkg hands it on.")
endif()
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH SOURCE_PATH)
cmake_path(GET SOURCE_PATH PARENT_PATH SOURCE_PATH)
cmake_path(GET SOURCE_PATH PARENT_PATH SOURCE_PATH)

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS "-DTOWER_LIBTORCH=$ENV{TOWER_LIBTORCH}"
          -DTOWER_PYTHON=OFF
          -DTOWER_TESTS=OFF
          -DTOWER_BENCH=OFF
          -DTOWER_EXAMPLES=OFF
          -DTOWER_WARNINGS_AS_ERRORS=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME Tower CONFIG_PATH lib/cmake/Tower)
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")

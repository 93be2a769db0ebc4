# `cmake --install`: the library, its headers and what find_package(Tower) needs.
include(CMakePackageConfigHelpers)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Tower)
configure_package_config_file(cmake/TowerConfig.cmake.in TowerConfig.cmake INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(TowerConfigVersion.cmake COMPATIBILITY SameMinorVersion)

install(TARGETS tower EXPORT TowerTargets)
install(EXPORT TowerTargets NAMESPACE Tower:: DESTINATION ${config_dir})
install(DIRECTORY include/tower DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES cmake/FindLibTorch.cmake ${CMAKE_CURRENT_BINARY_DIR}/TowerConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/TowerConfigVersion.cmake
        DESTINATION ${config_dir})

# `cmake --install`: the library, its headers and what find_package(Tower) needs. A wheel has all but the link `libtower.so`,
# which it could only hold as a second copy.
include(CMakePackageConfigHelpers)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Tower)
configure_package_config_file(cmake/TowerConfig.cmake.in TowerConfig.cmake INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(TowerConfigVersion.cmake COMPATIBILITY SameMinorVersion)

install(TARGETS tower EXPORT TowerTargets COMPONENT tower LIBRARY NAMELINK_COMPONENT link)
foreach(tool IN ITEMS inspect export)
  if(TARGET tower_${tool})
    set_target_properties(tower_${tool} PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
    install(TARGETS tower_${tool} COMPONENT ${tool} OPTIONAL)
  endif()
endforeach()
install(EXPORT TowerTargets NAMESPACE Tower:: DESTINATION ${config_dir} COMPONENT tower)
install(DIRECTORY include/tower DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT tower FILES_MATCHING PATTERN "*.h")
install(FILES cmake/FindLibTorch.cmake ${CMAKE_CURRENT_BINARY_DIR}/TowerConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/TowerConfigVersion.cmake
        DESTINATION ${config_dir} COMPONENT tower)

# For cpack: the archive and the Debian package of an installed Tower, for C++ without Python. script/package sets
# TOWER_INSTALLED, TOWER_VERSION, TOWER_LIBTORCH, TOWER_CONTACT and TOWER_DIST in the environment. The Debian package is
# one, library and headers: nothing else in Debian uses the library, and a program is built again for another LibTorch.
set(CPACK_PACKAGE_NAME tower)
set(CPACK_PACKAGE_VENDOR "The Tower authors")
set(CPACK_PACKAGE_CONTACT "$ENV{TOWER_CONTACT}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Composable function transforms for C++ on LibTorch")
set(CPACK_PACKAGE_DESCRIPTION
    "Automatic vectorization and derivatives of functions of tensors: vmap,
grad, vjp, jvp, jacrev, jacfwd, hessian, in any nesting, and their
compilation. This build is for LibTorch $ENV{TOWER_LIBTORCH} and no other, which
find_package(Tower) looks for and Debian does not have.")
set(CPACK_PACKAGE_VERSION "$ENV{TOWER_VERSION}+torch$ENV{TOWER_LIBTORCH}")
set(CPACK_PACKAGE_DIRECTORY "$ENV{TOWER_DIST}")
set(CPACK_INSTALLED_DIRECTORIES "$ENV{TOWER_INSTALLED};.")
set(CPACK_INSTALL_CMAKE_PROJECTS "")
set(CPACK_TOPLEVEL_TAG "")

cmake_host_system_information(RESULT machine QUERY OS_PLATFORM)
set(CPACK_PACKAGE_FILE_NAME "tower-${CPACK_PACKAGE_VERSION}-linux-${machine}")

set(CPACK_DEBIAN_PACKAGE_NAME libtower-dev)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_PACKAGING_INSTALL_PREFIX "/")

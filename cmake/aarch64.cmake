# For AArch64 under Linux, from another machine, by Clang and LLVM's linker or by what CXX names, GCC for that machine: a
# toolchain file. TOWER_AARCH64_ROOT, in the environment, names the folder that script/aarch64 fills: root/, where
# Debian's packages for arm64 are unpacked, and torch/, LibTorch. Programs are run by qemu, with what root/ has of a
# processor.
if(NOT DEFINED ENV{TOWER_AARCH64_ROOT})
  message(FATAL_ERROR "TOWER_AARCH64_ROOT names no folder: script/aarch64 makes one")
endif()
set(_folder "$ENV{TOWER_AARCH64_ROOT}")
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_SYSROOT "${_folder}/root")
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
if("$ENV{CXX}" STREQUAL "")
  find_program(CMAKE_CXX_COMPILER NAMES clang++-22 clang++-21 clang++-20 clang++-19 clang++-18 clang++-17 clang++-16
                                        clang++ REQUIRED)
endif()
set(CMAKE_CXX_COMPILER_TARGET aarch64-linux-gnu)
# Of libraries for CUDA's machines those of CUDA are not there.
set(_linking "-Wl,--allow-shlib-undefined")
if(NOT "$ENV{CXX}" MATCHES "g[+][+]")
  string(APPEND _linking " -fuse-ld=lld")
endif()
set(CMAKE_EXE_LINKER_FLAGS_INIT "${_linking}")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "${_linking}")
set(CMAKE_MODULE_LINKER_FLAGS_INIT "${_linking}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(TOWER_LIBTORCH "${_folder}/torch")

# How Tower's own code is compiled: the target tower_options, linked privately by everything in this repository.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

add_library(tower_options INTERFACE)
target_compile_options(tower_options INTERFACE -Wall -Wextra -fPIC -pthread)
target_link_options(tower_options INTERFACE -pthread)
# ATen's headers then include an operator's own header where they need it, and not all of them.
target_compile_definitions(tower_options INTERFACE AT_PER_OPERATOR_HEADERS)
if(TOWER_WARNINGS_AS_ERRORS)
  target_compile_options(tower_options INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # ccache needs it to see through a precompiled header.
  target_compile_options(tower_options INTERFACE -fpch-preprocess)
  # Its garbage collector walks the precompiled header's 400 MB again and again, a tenth of the time: not below 1 GB.
  target_compile_options(tower_options INTERFACE "SHELL:--param ggc-min-heapsize=1000000")
  # GCC 12 suspects the standard library's strings, depending on the length of a literal (that of a path, say): shown,
  # but no error.
  target_compile_options(
    tower_options INTERFACE -Wno-error=array-bounds -Wno-error=restrict -Wno-error=stringop-overflow)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # ccache compares precompiled headers by what they hold.
  target_compile_options(tower_options INTERFACE "SHELL:-Xclang -fno-pch-timestamp")
endif()
# Compilers round a product and a sum once where the processor can. The x86-64 that is compiled for cannot, and for
# others they are told not to: what C++ computes and what kernels compute have the same bits. TOWER_FUSED_PRODUCTS
# is for files that ask for it.
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  target_compile_options(tower_options INTERFACE -ffp-contract=off)
  set(TOWER_FUSED_PRODUCTS -ffp-contract=fast)
endif()
# For code that puts calls of operators together. Clang inlines functions of a dozen instructions there, not of fifty, and
# takes a quarter less; in each call of an operator that would cost an eighth.
add_library(calls_options INTERFACE)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(calls_options INTERFACE $<$<CONFIG:Release>:SHELL:-mllvm -inline-threshold=60>)
endif()
if(TOWER_SANITIZE)
  # Instrumented code makes GCC suspect LibTorch's small vectors of being read uninitialized.
  target_compile_options(tower_options INTERFACE -Wno-maybe-uninitialized)
  target_compile_options(tower_options INTERFACE -fsanitize=${TOWER_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(tower_options INTERFACE -fsanitize=${TOWER_SANITIZE})
  # LibTorch's headers have fences, which the thread sanitizer does not follow.
  if(TOWER_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(tower_options INTERFACE -Wno-tsan)
  endif()
endif()

# For the text that tests, benchmarks and examples print. Header-only: LibTorch's include folder has an fmt of its own,
# which may come first, and which serves where there is no other.
find_package(fmt QUIET)
if(NOT TARGET fmt::fmt-header-only AND EXISTS "${LibTorch_ROOT_DIR}/include/fmt/format.h")
  add_library(fmt::fmt-header-only INTERFACE IMPORTED)
  target_include_directories(fmt::fmt-header-only INTERFACE "${LibTorch_ROOT_DIR}/include")
  target_compile_definitions(fmt::fmt-header-only INTERFACE FMT_HEADER_ONLY=1)
endif()

# compiled_together(TARGET COUNT): a target's files, some COUNT of a folder at a time, where TOWER_UNITY is on: half of a
# file's cost is what LibTorch's headers and the same templates cost in each. A file still includes what it uses: the
# preset debug and script/tidy compile each by itself.
function(compiled_together target count)
  if(NOT TOWER_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cmake_path(GET source PARENT_PATH room)
    cmake_path(GET room FILENAME room)
    list(APPEND rooms ${room})
    list(APPEND files_of_${room} ${source})
  endforeach()
  list(REMOVE_DUPLICATES rooms)
  foreach(room IN LISTS rooms)
    list(LENGTH files_of_${room} files)
    math(EXPR batches "(${files} + ${count} - 1) / ${count}")
    set(at 0)
    foreach(source IN LISTS files_of_${room})
      math(EXPR batch "${at} * ${batches} / ${files}")
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${room}_${batch})
      math(EXPR at "${at} + 1")
    endforeach()
  endforeach()
  compiled_in_groups(${target})
endfunction()
# What of the target has a UNITY_GROUP.
function(compiled_in_groups target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP UNITY_BUILD_RELOCATABLE ON)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # It takes a file that another includes for a header.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

find_program(TOWER_CCACHE ccache)
if(TOWER_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths relative to the repository make a second clone hit what the first one built.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${TOWER_CCACHE})
endif()

# A compile may take up to 4 GiB, so memory bounds the jobs as cores do.
cmake_host_system_information(RESULT memory_mib QUERY TOTAL_PHYSICAL_MEMORY)
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
math(EXPR jobs "${memory_mib} / 4096")
if(jobs GREATER cores)
  set(jobs ${cores})
endif()
if(jobs LESS 1)
  set(jobs 1)
endif()
set(TOWER_JOBS ${jobs} CACHE STRING "Compile jobs at a time")
set_property(GLOBAL PROPERTY JOB_POOLS compile=${TOWER_JOBS} link=2)
set(CMAKE_JOB_POOL_COMPILE compile)
set(CMAKE_JOB_POOL_PRECOMPILE_HEADER compile)
set(CMAKE_JOB_POOL_LINK link)

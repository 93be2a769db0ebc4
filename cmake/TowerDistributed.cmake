# Whether there are meshes of processes: TOWER_HAS_C10D, LibTorch has its distributed engine, and TOWER_HAS_GLOO, in it
# the one for CPUs, whose own headers are there too (Debian: libgloo-dev). LibTorch's headers alone say nothing: one
# that was built without the engine (USE_DISTRIBUTED=0) may have them. So programs are linked.
option(TOWER_DISTRIBUTED "Meshes of processes, if LibTorch has its distributed engine" ON)
include(CheckCXXSourceCompiles)

set(TOWER_HAS_C10D FALSE)
set(TOWER_HAS_GLOO FALSE)
if(TOWER_DISTRIBUTED)
  set(CMAKE_REQUIRED_LIBRARIES LibTorch::LibTorch)
  set(CMAKE_REQUIRED_DEFINITIONS -DAT_PER_OPERATOR_HEADERS)
  check_cxx_source_compiles(
    "#include <torch/csrc/distributed/c10d/TCPStore.hpp>
     int main() { c10d::TCPStore(\"localhost\", c10d::TCPStoreOptions()); }"
    TOWER_C10D_LINKS)
  if(TOWER_C10D_LINKS)
    set(TOWER_HAS_C10D TRUE)
    check_cxx_source_compiles(
      "#define USE_C10D_GLOO
       #include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
       int main() { c10d::ProcessGroupGloo::createDefaultDevice(); }"
      TOWER_GLOO_LINKS)
    if(TOWER_GLOO_LINKS)
      set(TOWER_HAS_GLOO TRUE)
    endif()
  endif()
  unset(CMAKE_REQUIRED_LIBRARIES)
  unset(CMAKE_REQUIRED_DEFINITIONS)
  # What is missing may be installed until the next time.
  foreach(found TOWER_C10D_LINKS TOWER_GLOO_LINKS)
    if(NOT ${found})
      unset(${found} CACHE)
    endif()
  endforeach()
endif()
message(STATUS "Meshes of processes: c10d ${TOWER_HAS_C10D}, gloo ${TOWER_HAS_GLOO}")

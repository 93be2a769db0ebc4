# Finds LibTorch, without its own CMake files (which ask for a CUDA toolkit that programs do not need).
#
# Looked for in this order; the first that is complete and new enough is taken:
#   1. TOWER_LIBTORCH, a CMake or environment variable: the folder that holds include/ and lib/
#   2. CMAKE_PREFIX_PATH, a CMake variable
#   3. where this build folder found it before, as the environment may be another (cmake --fresh forgets it)
#   4. CMAKE_PREFIX_PATH of the environment
#   5. the `torch` package of the python3 on the PATH (or of Python3_EXECUTABLE)
#   6. the `torch` package of a .venv beside the top CMakeLists.txt, where script/bootstrap puts it
# Each folder may also be that of LibTorch's CMake files, as torch.utils.cmake_prefix_path gives it: …/share/cmake.
#
# Defines the target LibTorch::LibTorch and LibTorch_VERSION, LibTorch_ROOT_DIR, LibTorch_CUDA, LibTorch_CXX11_ABI.

# The version a folder's headers state, or empty where it is no LibTorch. (2.11 moved the header.)
function(_libtorch_version dir out)
  set(${out} "" PARENT_SCOPE)
  if(NOT EXISTS "${dir}/include/ATen/core/Tensor.h" OR NOT EXISTS "${dir}/lib/libtorch_cpu${CMAKE_SHARED_LIBRARY_SUFFIX}")
    return()
  endif()
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS "${dir}/include/${header}")
      file(STRINGS "${dir}/include/${header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
      if(lines)
        string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
        list(JOIN numbers "." version)
        set(${out} "${version}" PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
endfunction()

# Where a Python finds `torch`. Does not import it: that takes seconds. The second time without PYTHONPATH: pip hides the
# installed packages by it while it builds one (build isolation).
function(_libtorch_of_python python out)
  set(${out} "" PARENT_SCOPE)
  set(find "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')")
  foreach(options "" "-E")
    execute_process(
      COMMAND "${python}" ${options} -c "${find}"
      OUTPUT_VARIABLE dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(dir AND NOT failed)
      set(${out} "${dir}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

set(_libtorch_candidates)
set(_libtorch_refused)
if(TOWER_LIBTORCH)
  list(APPEND _libtorch_candidates "${TOWER_LIBTORCH}")
elseif(DEFINED ENV{TOWER_LIBTORCH})
  list(APPEND _libtorch_candidates "$ENV{TOWER_LIBTORCH}")
else()
  cmake_path(CONVERT "$ENV{CMAKE_PREFIX_PATH}" TO_CMAKE_PATH_LIST _libtorch_environment)
  # CMake runs again by itself, perhaps in another environment.
  list(APPEND _libtorch_candidates ${CMAKE_PREFIX_PATH} ${LibTorch_FOUND_BEFORE} ${_libtorch_environment})
  if(Python3_EXECUTABLE)
    set(_libtorch_python "${Python3_EXECUTABLE}")
  else()
    find_program(_libtorch_python python3 NO_CACHE)
  endif()
  foreach(_python "${_libtorch_python}" "${CMAKE_SOURCE_DIR}/.venv/bin/python3")
    _libtorch_of_python("${_python}" _libtorch_dir)
    if(_libtorch_dir)
      list(APPEND _libtorch_candidates "${_libtorch_dir}")
    else()
      string(APPEND _libtorch_refused "\n  ${_python}: no Python with a package `torch`")
    endif()
  endforeach()
endif()

set(LibTorch_ROOT_DIR)
set(LibTorch_VERSION)
foreach(_dir IN LISTS _libtorch_candidates)
  string(REGEX REPLACE "/share/cmake(/Torch)?/?$" "" _dir "${_dir}")
  _libtorch_version("${_dir}" _version)
  if(NOT _version)
    string(APPEND _libtorch_refused "\n  ${_dir}: no LibTorch with headers and libraries")
  elseif(LibTorch_FIND_VERSION AND _version VERSION_LESS LibTorch_FIND_VERSION)
    string(APPEND _libtorch_refused "\n  ${_dir}: version ${_version}, at least ${LibTorch_FIND_VERSION} is needed")
  else()
    set(LibTorch_ROOT_DIR "${_dir}")
    set(LibTorch_VERSION "${_version}")
    break()
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  LibTorch
  REQUIRED_VARS LibTorch_ROOT_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE
    "Set TOWER_LIBTORCH, or an entry of CMAKE_PREFIX_PATH, to a folder with LibTorch's include/ and lib/. Looked at:${_libtorch_refused}")

if(LibTorch_FOUND)
  set(LibTorch_FOUND_BEFORE "${LibTorch_ROOT_DIR}" CACHE INTERNAL "The LibTorch of this build folder")
endif()

# (A script, as `cmake -P` runs, has no targets.)
if(LibTorch_FOUND AND NOT CMAKE_SCRIPT_MODE_FILE AND NOT TARGET LibTorch::LibTorch)
  set(_lib "${LibTorch_ROOT_DIR}/lib")

  # std::string of which ABI: libc10 says so itself.
  file(STRINGS "${_lib}/libc10${CMAKE_SHARED_LIBRARY_SUFFIX}" _cxx11 REGEX "NSt7__cxx11" LIMIT_COUNT 1)
  if(_cxx11 OR NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
    set(LibTorch_CXX11_ABI 1)
  else()
    set(LibTorch_CXX11_ABI 0)
  endif()

  set(_torch_libraries)
  set(LibTorch_CUDA FALSE)
  foreach(_name c10 torch_cpu c10_cuda torch_cuda)
    set(_file "${_lib}/lib${_name}${CMAKE_SHARED_LIBRARY_SUFFIX}")
    if(EXISTS "${_file}")
      add_library(LibTorch::${_name} SHARED IMPORTED)
      set_target_properties(LibTorch::${_name} PROPERTIES IMPORTED_LOCATION "${_file}")
      list(APPEND _torch_libraries LibTorch::${_name})
      if(_name STREQUAL "torch_cuda")
        set(LibTorch_CUDA TRUE)
      endif()
    endif()
  endforeach()

  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  set_target_properties(
    LibTorch::LibTorch
    PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_ROOT_DIR}/include;${LibTorch_ROOT_DIR}/include/torch/csrc/api/include"
               INTERFACE_COMPILE_DEFINITIONS "_GLIBCXX_USE_CXX11_ABI=${LibTorch_CXX11_ABI}"
               INTERFACE_LINK_LIBRARIES "${_torch_libraries}")
  if(LibTorch_CUDA)
    # Nothing refers to torch_cuda by symbol (it registers kernels when loaded), so a linker that drops unneeded
    # libraries would drop it. What CUDA's libraries need in turn is found when a program starts: it need not be found
    # while one is linked.
    set_property(TARGET LibTorch::LibTorch APPEND PROPERTY
      INTERFACE_LINK_OPTIONS "LINKER:--allow-shlib-undefined,--push-state,--no-as-needed,${_lib}/libtorch_cuda.so,${_lib}/libc10_cuda.so,--pop-state")
  endif()
endif()

// The version of Tower: at compile time, and of the library that is loaded.
#pragma once

#define TOWER_VERSION_MAJOR 0
#define TOWER_VERSION_MINOR 1
#define TOWER_VERSION_PATCH 0

namespace tower {

/// "major.minor.patch" of the loaded library.
const char* version();

}  // namespace tower

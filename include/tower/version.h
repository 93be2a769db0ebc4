// The version of Tower: at compile time, and of the library that is loaded.
#pragma once

/// The version of these headers, of which this is the first number.
#define TOWER_VERSION_MAJOR 0
/// The second number.
#define TOWER_VERSION_MINOR 1
/// The third number.
#define TOWER_VERSION_PATCH 0

namespace tower {

/// "major.minor.patch" of the loaded library.
const char* version();

}  // namespace tower

#include "tower/version.h"

#define TOWER_TEXT_OF(x) #x
#define TOWER_TEXT(x) TOWER_TEXT_OF(x)

namespace tower {

const char* version() {
  return TOWER_TEXT(TOWER_VERSION_MAJOR) "." TOWER_TEXT(TOWER_VERSION_MINOR) "." TOWER_TEXT(TOWER_VERSION_PATCH);
}

}  // namespace tower

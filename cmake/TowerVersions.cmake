# Tower's version, as its header states it, and the oldest LibTorch that it builds with.
set(TOWER_LIBTORCH_MINIMUM 2.11)
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../include/tower/version.h" TOWER_VERSION REGEX "define TOWER_VERSION_[A-Z]+ [0-9]+")
string(REGEX MATCHALL "[0-9]+" TOWER_VERSION "${TOWER_VERSION}")
list(JOIN TOWER_VERSION "." TOWER_VERSION)

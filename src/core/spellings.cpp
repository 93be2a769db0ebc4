#include "tower/detail/spellings.h"

namespace tower::detail {
namespace {

Spellings current;

}  // namespace

const Spellings& spellings() { return current; }
void set_spellings(const Spellings& spellings) { current = spellings; }

}  // namespace tower::detail

// All rule files, one function each, called once when the library is loaded. Operators are recorded in the file of
// their family; this list is the table of contents.
#pragma once

namespace tower::rules {

void register_all();

}  // namespace tower::rules

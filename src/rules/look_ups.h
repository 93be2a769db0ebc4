// How reading by index looks up in kernels whose lanes are elements, for the operators' records: numbers/look_up.h.
#pragma once

#include "numbers/look_up.h"

namespace tower::rules::look_ups {

std::optional<compiler::LookUp> index(const compiler::LookUpCall& c);
std::optional<compiler::LookUp> index_select(const compiler::LookUpCall& c);
std::optional<compiler::LookUp> gather(const compiler::LookUpCall& c);
std::optional<compiler::LookUp> take(const compiler::LookUpCall& c);
std::optional<compiler::LookUp> embedding(const compiler::LookUpCall& c);

/// Where slices are added, scaled by nothing.
std::optional<compiler::LookUp> index_add(const compiler::LookUpCall& c);

}  // namespace tower::rules::look_ups

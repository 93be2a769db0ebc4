// What an operator's record says of elements, for docs/coverage.md: the verbs of records/op.h, as words.
#pragma once

#include <string>

#include "core/operator.h"

namespace docs {

/// For kernels: "element", "small", "fold", "rows", "moves", "contracts", or several of them; empty: nothing.
std::string known_to_kernels(const tower::Operator& op);

/// For patterns of sparsity: what an element depends on, in a word or two; empty: that all depends on all.
std::string known_to_patterns(const tower::Operator& op);

}  // namespace docs

#pragma once

#include <algorithm>

#include "core/operator.h"

namespace tower {

/// Not so: operators that read values for the program to go by (item(), bool(), equal(), …).
inline bool gives_only_tensors(const Operator& op) {
  const auto& returns = op.schema().returns();
  return std::all_of(returns.begin(), returns.end(), [](const c10::Argument& r) {
    const auto& type = *r.type();
    return type.kind() == c10::TypeKind::TensorType || type.isSubtypeOf(*c10::ListType::ofTensors());
  });
}

}  // namespace tower

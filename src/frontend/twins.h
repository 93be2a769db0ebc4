// The functional operator that stands for one that writes to its arguments: `add` for `add_` and `add.out`.
//
// It is found by schema: the same name, the arguments that are not out= under the same names and types, and a result
// for every tensor that is written. Factories take dtype and device besides, which out= gives.
#pragma once

#include "core/operator.h"

namespace tower::frontend {

struct Twin {
  const Operator* op = nullptr;  // null: none
  /// Where each of its arguments comes from: the position of an argument of the writing operator, or one of these.
  enum Source : int8_t { dtype_of_out = -1, device_of_out = -2, none = -3 };
  c10::SmallVector<int8_t, 8> arguments;
  /// Where each of its results goes: the position of the written argument, or -1 for a result that is returned anew.
  c10::SmallVector<int8_t, 4> results;
  /// Why the operator is refused inside transforms, and what to do instead; null if it is not.
  const char* refused = nullptr;
};

/// Found once for each operator and kept.
const Twin& twin_of(const Operator& op);

inline bool writes_to(const Operator& op, size_t arg) {
  const auto* alias = op.schema().arguments()[arg].alias_info();
  return alias && alias->isWrite();
}
inline bool is_out_argument(const Operator& op, size_t arg) { return op.schema().arguments()[arg].is_out(); }

}  // namespace tower::frontend

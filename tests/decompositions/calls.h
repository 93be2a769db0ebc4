// Calls derived from a sample of the operator database: what a decomposition is compared with its operator on.
#pragma once

#include <string>
#include <vector>

#include "op_db/op_db.h"

namespace decompositions {

/// The arguments of one call, and what makes it different from the sample.
struct Call {
  std::string what;
  op_db::Stack arguments;
};

std::vector<Call> layouts(const op_db::Stack& arguments);
std::vector<Call> special_values(const op_db::Stack& arguments);
std::vector<Call> shapes(const op_db::Stack& arguments);
std::vector<Call> dtypes(const op_db::Stack& arguments);
std::vector<Call> attributes(const op_db::Stack& arguments, const c10::FunctionSchema& schema);

/// A copy that shares nothing with the original: neither tensors nor lists.
op_db::Stack deep_copy(const op_db::Stack& arguments);

}  // namespace decompositions

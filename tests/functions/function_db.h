// The database of user functions: kinds of functions with rules of their own, each with arguments to try it on and what
// its derivatives must be. function_matrix.cpp runs every one through every nesting of up to three transforms.
#pragma once

#include <tower/dynamic.h>

#include <map>
#include <string>
#include <vector>

namespace function_db {

struct Entry {
  std::string name;
  /// The function, over the tensors of its arguments.
  tower::dynamic::Function f;
  /// Ordinary operators with the derivatives that the function's rules declare; empty: there are none.
  tower::dynamic::Function model;
  /// How its arguments are filled (op_db/tensor_spec.h).
  std::vector<std::string> arguments;
  /// The rules are the derivatives of what it computes: finite differences apply.
  bool true_derivative = true;
  /// Outputs that are not differentiated at all are left out: derivatives of these only; empty: of all.
  std::vector<int64_t> differentiable_outputs = {};
  /// Whether a nesting, such as "vjp(jvp)", must be refused, and the reason.
  std::map<std::string, std::string> refuses = {};
  /// Its forward works on one example at a time.
  bool loops = false;
};

/// A nesting that has one of these in it is refused.
inline constexpr char kAnyJvp[] = "any jvp";
inline constexpr char kAnySecond[] = "any second derivative";

const std::vector<Entry>& all();

}  // namespace function_db

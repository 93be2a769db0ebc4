// What tests of the public surface say often.
#pragma once

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "support/compare.h"

namespace support {

/// A float64 vector.
inline at::Tensor vec(std::initializer_list<double> values) {
  return at::tensor(std::vector<double>(values), at::kDouble);
}

/// Equal dtype, shape and, within rounding, values.
inline testing::AssertionResult same(const at::Tensor& actual, const at::Tensor& expected) {
  const std::string text = difference(actual, expected, same_arithmetic(expected.scalar_type()));
  if (text.empty()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << text;
}

/// Equal dtype and shape, and values within `tolerance`, absolute and relative.
inline void expect_close(const at::Tensor& found, const at::Tensor& expected, double tolerance,
                         const std::string& what = "") {
  EXPECT_EQ(difference(found, expected, {tolerance, tolerance}), "") << what;
}

/// The text of the Exception that `call` throws.
template <class Exception, class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Exception& e) {
    return e.what();
  }
  return "nothing of that type was thrown";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace support

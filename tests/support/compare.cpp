#include "support/compare.h"

#include <ATen/ops/add.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/real.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <sstream>

namespace support {
namespace {

at::Tensor as_doubles(const at::Tensor& tensor) {
  at::Tensor plain = tensor.detach().resolve_conj().resolve_neg();
  if (plain.is_complex()) plain = at::view_as_real(plain);
  return plain.cpu().to(at::kDouble).contiguous();
}

std::string described(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.scalar_type() << tensor.sizes() << " on " << tensor.device();
  return text.str();
}

}  // namespace

Tolerance same_arithmetic(at::ScalarType dtype) {
  const auto real = at::isComplexType(dtype) ? at::toRealValueType(dtype) : dtype;
  if (real == at::kFloat) return {2e-5, 2e-5};
  if (real == at::kHalf || real == at::kBFloat16) return {2e-2, 2e-2};
  return {1e-10, 1e-10};
}

at::ScalarType coarsest(const Tensors& tensors, at::ScalarType type) {
  type = c10::toRealValueType(type);
  for (const at::Tensor& t : tensors) {
    if (!t.defined() || !(t.is_floating_point() || t.is_complex())) continue;
    const auto real = c10::toRealValueType(t.scalar_type());
    if (c10::elementSize(real) < c10::elementSize(type)) type = real;
  }
  return type;
}

std::string difference(const at::Tensor& actual, const at::Tensor& expected, Tolerance tolerance) {
  if (actual.defined() != expected.defined()) {
    return actual.defined() ? "a tensor where none was expected" : "an undefined tensor where one was expected";
  }
  if (!actual.defined()) return "";
  if (actual.scalar_type() != expected.scalar_type() || actual.sizes() != expected.sizes() ||
      actual.device() != expected.device()) {
    return "got " + described(actual) + ", expected " + described(expected);
  }
  const at::Tensor a = as_doubles(actual);
  const at::Tensor b = as_doubles(expected);
  const auto* x = a.const_data_ptr<double>();
  const auto* y = b.const_data_ptr<double>();
  double largest = 0;
  double error = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
    error = std::isfinite(x[i] - y[i]) ? std::max(error, std::abs(x[i] - y[i])) : HUGE_VAL;
  }
  for (int64_t i = 0; i < a.numel(); ++i) {
    if (std::isfinite(y[i])) largest = std::max(largest, std::abs(y[i]));
  }
  const double allowed = tolerance.absolute + tolerance.relative * largest;
  if (error <= allowed) return "";
  std::ostringstream text;
  text << "max error " << error << " > " << allowed << " in " << described(actual);
  if (a.numel() <= 24) text << "\n  got\n" << actual << "\n  expected\n" << expected;
  return text.str();
}

std::string difference(const Tensors& actual, const Tensors& expected, Tolerance tolerance) {
  if (actual.size() != expected.size()) {
    return "got " + std::to_string(actual.size()) + " tensors, expected " + std::to_string(expected.size());
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    const std::string what = difference(actual[i], expected[i], tolerance);
    if (!what.empty()) return "tensor " + std::to_string(i) + ": " + what;
  }
  return "";
}

double inner(const Tensors& a, const Tensors& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].defined() || !b[i].defined()) continue;
    // A real tensor beside a complex one has no imaginary part to contribute.
    const bool real = !a[i].is_complex() || !b[i].is_complex();
    const at::Tensor left = as_doubles(real && a[i].is_complex() ? at::real(a[i]) : a[i]);
    const at::Tensor right = as_doubles(real && b[i].is_complex() ? at::real(b[i]) : b[i]);
    const auto* x = left.const_data_ptr<double>();
    const auto* y = right.const_data_ptr<double>();
    for (int64_t j = 0; j < left.numel(); ++j) sum += x[j] * y[j];
  }
  return sum;
}

double magnitude(const Tensors& tensors) {
  double largest = 0;
  for (const auto& tensor : tensors) {
    if (!tensor.defined() || tensor.numel() == 0) continue;
    const at::Tensor values = as_doubles(tensor);
    const auto* x = values.const_data_ptr<double>();
    for (int64_t j = 0; j < values.numel(); ++j) {
      if (std::isfinite(x[j])) largest = std::max(largest, std::abs(x[j]));
    }
  }
  return largest;
}

Tensors random_like(const Tensors& model, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](at::IntArrayRef sizes) {
    at::Tensor result = at::empty(sizes, at::kDouble);
    auto* data = result.mutable_data_ptr<double>();
    for (int64_t i = 0; i < result.numel(); ++i) data[i] = static_cast<double>(random() >> 11) * 0x1.0p-52 - 1.0;
    return result;
  };
  Tensors result;
  for (const auto& tensor : model) {
    at::Tensor real = draw(tensor.sizes());
    result.push_back((tensor.is_complex() ? at::complex(real, draw(tensor.sizes())) : real)
                         .to(tensor.device(), tensor.scalar_type()));
  }
  return result;
}

Tensors plus(const Tensors& a, const Tensors& b) { return moved(a, b, 1); }

Tensors moved(const Tensors& a, const Tensors& b, double scale) {
  Tensors result;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].defined()) {
      result.push_back(b[i].defined() ? b[i].mul(scale) : b[i]);
    } else {
      result.push_back(b[i].defined() ? at::add(a[i], b[i], scale) : a[i]);
    }
  }
  return result;
}

}  // namespace support

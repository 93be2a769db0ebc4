#include "compile/beside.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <limits>
#include <sstream>

namespace beside {
namespace {

using at::Tensor;
using tower::dynamic::Function;
using tower::dynamic::Tensors;

constexpr double kInf = std::numeric_limits<double>::infinity();

// How far it is to the next number away from zero.
Tensor unit_of(const Tensor& y) {
  const Tensor size = y.abs(), next = at::nextafter(size, at::full_like(size, kInf));
  return at::where(next.isinf(), size - at::nextafter(size, at::zeros_like(size)), next - size).to(at::kDouble);
}

// By how much a result changes with some units in the last places of its operands: on the side where it changes less,
// which at a pole or a jump is the right one.
Tensor moved(const Function& f, const Tensors& operands, const Tensor& y, int units) {
  Tensor sum = at::zeros_like(y, at::kDouble);
  for (size_t k = 0; k < operands.size(); ++k) {
    if (!operands[k].is_floating_point()) continue;
    Tensor least;
    for (const double towards : {-kInf, kInf}) {
      Tensors others = operands;
      for (int unit = 0; unit < units; ++unit)
        others[k] = at::nextafter(others[k], at::full_like(operands[k], towards));
      const Tensor change = (f(others)[0].to(at::kDouble) - y.to(at::kDouble)).abs().nan_to_num(0, 0, 0);
      least = least.defined() ? at::minimum(least, change) : change;
    }
    sum = sum + least;
  }
  return sum;
}

Tensor agrees(const Tensor& found, const Tensor& y, const Tensor& may_differ) {
  const Tensor a = found.to(at::kDouble), b = y.to(at::kDouble);
  const Tensor near = (a - b).abs() <= may_differ;
  return (a == b).logical_or(a.isnan().logical_and(b.isnan())).logical_or(near.logical_and(a.isfinite()));
}

}  // namespace

std::string difference(const Function& libtorch, const Tensors& operands, const Tensor& found, Tolerance tolerance) {
  const Tensor y = libtorch(operands)[0];
  if (found.scalar_type() != y.scalar_type() || found.sizes() != y.sizes()) return "another dtype, or other sizes";
  const double epsilon =
      y.scalar_type() == at::kFloat ? std::numeric_limits<float>::epsilon() : std::numeric_limits<double>::epsilon();
  const Tensor unit = unit_of(y).clamp_min(epsilon * tolerance.terms);
  const Tensor may_differ = tolerance.units * unit + moved(libtorch, operands, y, tolerance.operands);
  Tensor right = agrees(found, y, may_differ);
  Tensors wide = operands;
  for (Tensor& t : wide) t = t.to(at::kDouble);
  if (y.scalar_type() == at::kFloat)
    right = right.logical_or(agrees(found, libtorch(wide)[0].to(at::kFloat), may_differ));
  const Tensor wrong = right.logical_not().flatten().nonzero();
  if (wrong.numel() == 0) return "";
  const int64_t at = wrong[0].item<int64_t>();
  const auto number = [&](const Tensor& t) {
    return t.flatten()[t.numel() == y.numel() ? at : 0].to(at::kDouble).item<double>();
  };
  std::ostringstream text;
  text.precision(17);
  text << wrong.size(0) << " of " << y.numel() << " differ; of";
  for (const Tensor& t : operands) text << ' ' << number(t);
  text << ": " << number(found) << " instead of " << number(y) << " (may differ by " << number(may_differ) << ")";
  return text.str();
}

}  // namespace beside

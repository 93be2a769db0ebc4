// Derivatives against finite differences. One function is checked by `Checker::first_order`; higher orders check the
// derivative of the function, as a function of the point and the direction, in the same way.
#include "tower/check_grads.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "tower/errors.h"

namespace tower::dynamic {
namespace {

bool exact_enough(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble || t.scalar_type() == at::kComplexDouble;
}

void check_exact_enough(const Tensors& tensors, const char* what) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string name = std::string(what) + " " + std::to_string(i);
    if (!tensors[i].defined()) throw ArgumentError("check_grads: " + name + " is an undefined tensor");
    if (!exact_enough(tensors[i])) {
      throw ArgumentError("check_grads: " + name + " is of dtype " + c10::toString(tensors[i].scalar_type()) +
                          ", but finite differences need Double or ComplexDouble: convert it, or capture it in the "
                          "function if it is not to be differentiated");
    }
  }
}

double largest(const at::Tensor& t) { return t.numel() == 0 ? 0 : t.abs().max().item<double>(); }

/// The real inner product, for which a pullback is the adjoint of a pushforward (complex numbers as pairs).
double real_inner(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor product = a.conj() * b;
  return (product.is_complex() ? at::real(product) : product).sum().item<double>();
}

std::string element(const at::Tensor& t, int64_t flat_index) {
  std::ostringstream text;
  text.precision(10);
  const at::Tensor value = t.reshape({-1}).select(0, flat_index);
  if (value.is_complex()) {
    text << value.item<c10::complex<double>>();
  } else {
    text << value.item<double>();
  }
  return text.str();
}

std::string position(const at::Tensor& t, int64_t flat_index) {
  std::string text;
  for (int64_t dim = t.dim() - 1; dim >= 0; --dim) {
    const std::string index = std::to_string(flat_index % t.size(dim));
    text = text.empty() ? index : index + ", " + text;
    flat_index /= t.size(dim);
  }
  return "[" + text + "]";
}

class Checker {
 public:
  Checker(const std::vector<Mode>& modes, const GradTolerance& tolerance) : modes_(modes), tolerance_(tolerance) {}

  /// `name`: what `f` is, for messages.
  void check(const Function& f, const Tensors& args, int order, const std::string& name) {
    first_order(f, args, name);
    if (order == 1) return;
    const size_t n = args.size();
    auto split = [n](const Tensors& both) {
      const auto middle = both.begin() + static_cast<std::ptrdiff_t>(n);
      return std::pair(Tensors(both.begin(), middle), Tensors(middle, both.end()));
    };
    Tensors points = args;
    if (has(Mode::forward)) {
      Function pushed = [&](const Tensors& both) {
        const auto [primals, tangents] = split(both);
        return jvp(f, primals, tangents).second;
      };
      const Tensors tangents = directions(args);
      points.insert(points.end(), tangents.begin(), tangents.end());
      check(pushed, points, order - 1, "the jvp of " + name);
    }
    if (has(Mode::reverse)) {
      Function pulled = [&](const Tensors& both) {
        const auto [primals, cotangents] = split(both);
        return vjp(f, primals).second(cotangents);
      };
      points.resize(n);
      const Tensors cotangents = directions(f(args));
      points.insert(points.end(), cotangents.begin(), cotangents.end());
      check(pulled, points, order - 1, "the vjp of " + name);
    }
  }

 private:
  bool has(Mode mode) const { return std::find(modes_.begin(), modes_.end(), mode) != modes_.end(); }

  /// Random tensors with elements between -1 and 1. The generator is ours: the program's own stays as it is.
  Tensors directions(const Tensors& like) {
    Tensors result;
    for (const at::Tensor& t : like) {
      auto draw = [&] { return at::rand(t.sizes(), generator_, at::dtype(at::kDouble)) * 2 - 1; };
      at::Tensor direction = draw();
      if (t.is_complex()) direction = at::complex(direction, draw());
      result.push_back(direction.to(t.device()));
    }
    return result;
  }

  void first_order(const Function& f, const Tensors& args, const std::string& name) {
    const Tensors outputs = f(args);
    check_exact_enough(outputs, "output");
    const Tensors tangents = directions(args);
    std::vector<Tensors> differences;  // by argument, by output
    for (size_t i = 0; i < args.size(); ++i) differences.push_back(difference(f, args, i, tangents[i]));
    if (has(Mode::forward)) check_forward(f, args, name, outputs, tangents, differences);
    if (has(Mode::reverse)) check_reverse(f, args, name, outputs, tangents, differences);
  }

  /// The derivative along a direction of argument `i`.
  Tensors difference(const Function& f, const Tensors& args, size_t i, const at::Tensor& direction) const {
    Tensors moved = args;
    moved[i] = args[i] + tolerance_.step * direction;
    const Tensors ahead = f(moved);
    moved[i] = args[i] - tolerance_.step * direction;
    const Tensors behind = f(moved);
    Tensors result;
    for (size_t k = 0; k < ahead.size(); ++k) result.push_back((ahead[k] - behind[k]) / (2 * tolerance_.step));
    return result;
  }

  /// One argument at a time, so that the message can name it; the other tangents are zeros that are not there.
  void check_forward(const Function& f, const Tensors& args, const std::string& name, const Tensors& outputs,
                     const Tensors& tangents, const std::vector<Tensors>& differences) const {
    for (size_t i = 0; i < args.size(); ++i) {
      Tensors one(args.size());
      one[i] = tangents[i];
      const Tensors derivatives = jvp(f, args, one).second;
      for (size_t k = 0; k < outputs.size(); ++k) {
        compare(derivatives[k], differences[i][k], outputs[k],
                "forward mode: " + what(name, k, i) + ", along a random direction,", "jvp");
      }
    }
    const Tensors derivatives = jvp(f, args, tangents).second;
    for (size_t k = 0; k < outputs.size(); ++k) {
      at::Tensor sum = at::zeros_like(outputs[k]);
      for (const Tensors& by_output : differences) sum = sum + by_output[k];
      compare(derivatives[k], sum, outputs[k],
              "forward mode: the derivative of output " + std::to_string(k) + " of " + name +
                  " with respect to all arguments, along a random direction,",
              "jvp");
    }
  }

  /// One output at a time.
  void check_reverse(const Function& f, const Tensors& args, const std::string& name, const Tensors& outputs,
                     const Tensors& tangents, const std::vector<Tensors>& differences) {
    const Function pullback = vjp(f, args).second;
    const Tensors cotangents = directions(outputs);
    for (size_t k = 0; k < outputs.size(); ++k) {
      Tensors one(outputs.size());
      one[k] = cotangents[k];
      const Tensors pulled = pullback(one);
      for (size_t i = 0; i < args.size(); ++i) {
        if (!pulled[i].sizes().equals(args[i].sizes())) {
          std::ostringstream text;
          text << "check_grads: reverse mode: " << what(name, k, i) << " has the shape " << pulled[i].sizes()
               << ", but the argument has the shape " << args[i].sizes();
          throw DerivativeError(text.str());
        }
        // <Jᵀ ct, v> is <ct, J v>; a sum of many terms, so the scale is that of the terms and not of the sum.
        const double scale = std::max(terms(pulled[i], tangents[i]), terms(cotangents[k], differences[i][k]));
        const double allowed =
            tolerance_.relative * scale + tolerance_.absolute * terms(cotangents[k], outputs[k]) + tolerance_.absolute;
        const double by_vjp = real_inner(pulled[i], tangents[i]);
        const double by_difference = real_inner(cotangents[k], differences[i][k]);
        if (!(std::abs(by_vjp - by_difference) <= allowed)) {
          std::ostringstream text;
          text.precision(10);
          text << "check_grads: reverse mode: " << what(name, k, i)
               << ", between a random cotangent and a random direction, is " << by_vjp << " by vjp, but "
               << by_difference << " by finite differences";
          throw DerivativeError(text.str());
        }
      }
    }
  }

  static double terms(const at::Tensor& a, const at::Tensor& b) { return (a.abs() * b.abs()).sum().item<double>(); }

  static std::string what(const std::string& name, size_t output, size_t argument) {
    return "the derivative of output " + std::to_string(output) + " of " + name + " with respect to argument " +
           std::to_string(argument);
  }

  void compare(const at::Tensor& found, const at::Tensor& expected, const at::Tensor& output, const std::string& what,
               const char* by) const {
    if (!found.sizes().equals(expected.sizes())) {
      std::ostringstream text;
      text << "check_grads: " << what << " has the shape " << found.sizes() << ", but the output has the shape "
           << expected.sizes();
      throw DerivativeError(text.str());
    }
    if (found.numel() == 0) return;
    const double allowed = tolerance_.relative * std::max(largest(found), largest(expected)) +
                           tolerance_.absolute * std::max(largest(output), 1.0);
    const at::Tensor error = (found - expected).abs();
    const at::Tensor wrong = at::logical_not(error <= allowed);  // a NaN is wrong, too
    if (!wrong.any().item<bool>()) return;
    const int64_t worst = at::where(wrong, at::nan_to_num(error, HUGE_VAL, HUGE_VAL), -1).argmax().item<int64_t>();
    throw DerivativeError("check_grads: " + what + " is " + element(found, worst) + " by " + by + ", but " +
                          element(expected, worst) + " by finite differences, at element " + position(found, worst));
  }

  const std::vector<Mode>& modes_;
  const GradTolerance& tolerance_;
  at::Generator generator_ = at::detail::createCPUGenerator(/*seed_val=*/20240229);
};

}  // namespace

void check_grads(Function f, const Tensors& args, int order, const std::vector<Mode>& modes,
                 const GradTolerance& tolerance) {
  if (order < 1) throw ArgumentError("check_grads: order is " + std::to_string(order) + ", but the lowest is 1");
  if (modes.empty()) throw ArgumentError("check_grads: no mode to check: give forward mode, reverse mode or both");
  check_exact_enough(args, "argument");
  Tensors points;
  for (const at::Tensor& arg : args) points.push_back(arg.detach());
  Checker(modes, tolerance).check(f, points, order, "the function");
}

}  // namespace tower::dynamic

#include "decompositions/calls.h"

#include <ATen/Functions.h>

#include <functional>
#include <limits>

namespace decompositions {
namespace {

using at::Tensor;
using op_db::Stack;

// Replaces every tensor among the arguments by `f(tensor, its number)`.
Stack with_tensors(const Stack& arguments, const std::function<Tensor(const Tensor&, size_t)>& f) {
  Stack result;
  size_t number = 0;
  const auto replaced = [&](const Tensor& t) { return t.defined() ? f(t, number++) : t; };
  for (const auto& argument : arguments) {
    if (argument.isTensor()) {
      result.emplace_back(replaced(argument.toTensor()));
    } else if (argument.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& t : argument.toTensorVector()) list.push_back(replaced(t));
      result.emplace_back(std::move(list));
    } else if (argument.isList()) {
      auto list = argument.toList().copy();
      for (size_t i = 0; i < list.size(); ++i) {
        const c10::IValue element = list.get(i);
        if (element.isTensor()) list.set(i, replaced(element.toTensor()));
      }
      result.emplace_back(std::move(list));
    } else {
      result.push_back(argument);
    }
  }
  return result;
}

std::vector<Tensor> defined_tensors(const Stack& arguments) {
  std::vector<Tensor> tensors;
  with_tensors(arguments, [&](const Tensor& t, size_t) {
    tensors.push_back(t);
    return t;
  });
  return tensors;
}

bool is_floating(const Tensor& t) { return t.is_floating_point() || t.is_complex(); }

// Memory with the dimensions the other way round, every second element of it, beginning at the third.
Tensor scattered(const Tensor& t) {
  std::vector<int64_t> sizes(t.sizes().rbegin(), t.sizes().rend());
  sizes.push_back(2);
  sizes.insert(sizes.begin(), 2);
  Tensor view = at::zeros(sizes, t.options()).select(0, 1).select(-1, 1);
  std::vector<int64_t> order(static_cast<size_t>(t.dim()));
  for (size_t d = 0; d < order.size(); ++d) order[d] = t.dim() - 1 - static_cast<int64_t>(d);
  view = view.permute(order);
  view.copy_(t);
  return view;
}

Tensor with_first(const Tensor& t, double value) {
  Tensor changed = t.clone(at::MemoryFormat::Contiguous);
  changed.view(-1).narrow(0, 0, 1).fill_(value);
  return changed;
}

// `f` applied to one tensor after the other; calls where it gives an undefined tensor are left out.
void one_at_a_time(std::vector<Call>& calls, const Stack& arguments, const std::string& what,
                   const std::function<Tensor(const Tensor&)>& f) {
  const auto tensors = defined_tensors(arguments);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor changed = f(tensors[i]);
    if (!changed.defined()) continue;
    calls.push_back({"tensor " + std::to_string(i) + " " + what,
                     with_tensors(arguments, [&](const Tensor& t, size_t n) { return n == i ? changed : t; })});
  }
}

}  // namespace

Stack deep_copy(const Stack& arguments) {
  return with_tensors(arguments, [](const Tensor& t, size_t) { return t.clone(); });
}

std::vector<Call> layouts(const Stack& arguments) {
  return {{"scattered in memory", with_tensors(arguments, [](const Tensor& t, size_t) { return scattered(t); })},
          {"every second tensor scattered in memory",
           with_tensors(arguments, [](const Tensor& t, size_t n) { return n % 2 ? scattered(t) : t; })}};
}

std::vector<Call> special_values(const Stack& arguments) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  std::vector<Call> calls;
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), inf, -inf, 0.0})
    one_at_a_time(calls, arguments, "with " + std::to_string(value),
                  [&](const Tensor& t) { return is_floating(t) && t.numel() > 0 ? with_first(t, value) : Tensor(); });
  for (const double value : {inf, 0.0})
    one_at_a_time(calls, arguments, "full of " + std::to_string(value),
                  [&](const Tensor& t) { return is_floating(t) ? at::full_like(t, value) : Tensor(); });
  return calls;
}

std::vector<Call> shapes(const Stack& arguments) {
  std::vector<Call> calls;
  one_at_a_time(calls, arguments, "with a dimension more", [](const Tensor& t) { return t.unsqueeze(0); });
  one_at_a_time(calls, arguments, "repeated along a dimension more", [](const Tensor& t) { return at::stack({t, t}); });
  one_at_a_time(calls, arguments, "with a dimension less",
                [](const Tensor& t) { return t.dim() > 0 && t.size(0) > 0 ? t.select(0, 0) : Tensor(); });
  for (int64_t d = 0; d < 5; ++d) {
    const std::string along = " along dimension " + std::to_string(d);
    one_at_a_time(calls, arguments, "empty" + along,
                  [&](const Tensor& t) { return d < t.dim() ? t.narrow(d, 0, 0) : Tensor(); });
    one_at_a_time(calls, arguments, "longer" + along, [&](const Tensor& t) {
      return d < t.dim() && t.size(d) > 0 ? at::cat({t, t.narrow(d, 0, 1)}, d) : Tensor();
    });
    one_at_a_time(calls, arguments, "one element" + along,
                  [&](const Tensor& t) { return d < t.dim() && t.size(d) > 1 ? t.narrow(d, 0, 1) : Tensor(); });
    // Sizes that must agree do so, and are zero or two more.
    const auto all = [&](const std::function<Tensor(const Tensor&)>& f) {
      return with_tensors(arguments, [&](const Tensor& t, size_t) { return d < t.dim() ? f(t) : t; });
    };
    calls.push_back({"all empty" + along, all([&](const Tensor& t) { return t.narrow(d, 0, 0); })});
    calls.push_back({"all longer" + along, all([&](const Tensor& t) {
                       return t.size(d) == 0 ? t : at::cat({t, t.narrow(d, 0, 1)}, d);
                     })});
  }
  return calls;
}

std::vector<Call> dtypes(const Stack& arguments) {
  std::vector<Call> calls;
  for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16, at::kComplexFloat, at::kLong, at::kByte, at::kBool})
    calls.push_back(
        {std::string("all in ") + c10::toString(type),
         with_tensors(arguments, [&](const Tensor& t, size_t) { return is_floating(t) ? t.to(type) : t; })});
  one_at_a_time(calls, arguments, "in Float",
                [](const Tensor& t) { return t.scalar_type() == at::kDouble ? t.to(at::kFloat) : Tensor(); });
  return calls;
}

std::vector<Call> attributes(const Stack& arguments, const c10::FunctionSchema& schema) {
  std::vector<Call> calls;
  // Codes, not numbers: what is none of them is not looked at by every kernel.
  const auto is_code = [&](size_t i) {
    const auto& name = schema.arguments()[i].name();
    return name == "reduction" || name == "dtype" || name == "layout" || name == "device" || name == "memory_format";
  };
  const auto with = [&](size_t i, const c10::IValue& value, const std::string& what) {
    calls.push_back({"argument " + std::to_string(i) + " " + what, arguments});
    calls.back().arguments[i] = value;
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    if (is_code(i)) continue;
    if (value.isBool()) with(i, !value.toBool(), "flipped");
    if (value.isInt())
      for (const int64_t other : {-1, 0, 1, 2, 3, -7, 99}) with(i, other, std::to_string(other));
    if (value.isDouble())
      for (const double other : {-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()})
        with(i, other, std::to_string(other));
    if (!value.isIntList() || value.toIntVector().empty()) continue;
    for (const int64_t step : {-1, 1, -9}) {
      auto changed = value.toIntVector();
      changed[0] += step;
      with(i, changed, "'s first number changed by " + std::to_string(step));
    }
    auto longer = value.toIntVector();
    longer.push_back(1);
    with(i, longer, "with a number more");
    with(i, std::vector<int64_t>{}, "without numbers");
  }
  return calls;
}

}  // namespace decompositions

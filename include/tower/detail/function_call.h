// Behind tower/function.h: a call of a user function as a call of a higher-order operator. The operator's rules
// (src/operators/function.cpp) know the call only through FunctionCall; TypedCall knows the types.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tower/detail/flat.h"
#include "tower/detail/optional.h"
#include "tower/function_context.h"
#include "tower/higher_order.h"

namespace tower::detail {

/// When a function fills its context.
enum class Saves { nothing, after_forward, in_forward };

/// What is known of a function apart from its types.
struct FunctionInfo {
  std::string name;
  bool has_backward = false, has_jvp = false, has_vmap = false, has_sparsity = false;
  Saves saves = Saves::nothing;
  bool linear_backward = false, once_differentiable = false, generate_vmap = true;
};

FunctionInfo custom_info(const char* file, unsigned line);
/// The name of a type as messages show it.
std::string type_name(const std::type_info& type);

struct ContextAccess {
  static auto& for_backward(auto& c) { return c.for_backward_; }
  static auto& for_forward(auto& c) { return c.for_forward_; }
  static auto& has_for_forward(auto& c) { return c.has_for_forward_; }
  static auto& materialize(auto& c) { return c.materialize_; }
  static auto& dirty(auto& c) { return c.dirty_; }
  static auto& non_differentiable(auto& c) { return c.non_differentiable_; }
  static auto& needs(auto& c) { return c.needs_; }
  static auto& residuals(auto& c) { return c.residuals_; }
};

/// One call: its static parts and what to do with its tensors. Lists of tensors are those of the arguments (operands)
/// or of the output, flattened; gradients and tangents that are undefined are zeros.
class FunctionCall {
 public:
  virtual ~FunctionCall() = default;
  virtual Tensors forward(const Tensors& operands, Context& ctx) const = 0;
  /// Runs the forward that fills the context while it runs.
  virtual Tensors forward_and_save(const Tensors& operands, Context& ctx) const = 0;
  /// Fills the context after the forward.
  virtual void setup(const Tensors& operands, const Tensors& outputs, Context& ctx) const = 0;
  virtual Tensors backward(const Tensors& gradients, Context& ctx) const = 0;
  virtual Tensors jvp(const Tensors& tangents, Context& ctx) const = 0;
  virtual std::pair<Tensors, Dims> vmap(const VmapInfo& info, const Dims& in_dims, const Tensors& operands) const = 0;

  virtual Tensors sparsity(const Tensors& operands) const = 0;

  /// The argument that each operand belongs to.
  std::vector<std::size_t> argument_of;
  /// Arguments that forward is declared to write to.
  std::vector<std::size_t> mutates;
  /// Outputs that are operands written to, found when forward runs: {operand, output}.
  mutable std::vector<std::pair<std::size_t, std::size_t>> written;
};

HigherOrderOperator make_operator(FunctionInfo info);
/// Calls the operator, and writes to the operands that it says it writes to.
Tensors run_function(const HigherOrderOperator& op, std::shared_ptr<const FunctionCall> call, Tensors operands);

/// The type that a call keeps of an argument: arrays (string literals) as pointers, lists of tensors as vectors.
template <class T>
using Stored = std::conditional_t<std::is_same_v<std::decay_t<T>, at::TensorList>, Tensors, std::decay_t<const T>>;

/// Appends the gradients (tangents) that `entry` gives for the tensors of `like`: undefined for what is zero.
/// `what` names the place of the entry, for messages: "argument 0".
template <class T, class Entry>
void append_entry(const T& like, const Entry& entry, Tensors& flat, const char* whose, const std::string& what);
[[noreturn]] void refuse_entry(const char* whose, const std::string& what, std::size_t given, std::size_t expected);

/// The same for all parts of a tuple `like`, from what a rule returned for them.
template <class Likes, class Returned>
Tensors flatten_entries(const Likes& likes, const Returned& returned, const char* whose, const char* what);
/// From a list of tensors: one for each place of a tensor, and one for each part without. `places`: of each part.
/// `defined`: whether each tensor of a part is.
Tensors entries_of_list(const Tensors& list, const std::vector<std::vector<bool>>& defined, const char* whose);

template <class T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};

template <class T, class Entry>
void append_entry(const T& like, const Entry& entry, Tensors& flat, const char* whose, const std::string& what) {
  if constexpr (!TensorTree<T>) {
    return;  // a static part: whatever the rule returned
  } else if constexpr (std::is_same_v<Entry, std::nullopt_t> || std::is_same_v<Entry, std::nullptr_t>) {
    for_each_tensor(like, [&](const at::Tensor& place) {
      if (place.defined()) flat.emplace_back();
    });
  } else if constexpr (std::is_same_v<Entry, T>) {
    const Tensors places = places_of(like), given = places_of(entry);
    if (given.size() != places.size()) refuse_entry(whose, what, given.size(), places.size());
    for (std::size_t i = 0; i < places.size(); ++i)
      if (places[i].defined()) flat.push_back(given[i]);
  } else if constexpr (is_optional<Entry>) {
    if (entry) append_entry(like, *entry, flat, whose, what);
    else append_entry(like, std::nullopt, flat, whose, what);
  } else if constexpr (std::is_convertible_v<const Entry&, at::Tensor>) {
    const at::Tensor tensor = entry;
    if (!tensor.defined()) return append_entry(like, std::nullopt, flat, whose, what);
    const std::size_t places = count_tensors(like);
    if (places != 1) refuse_entry(whose, what, 1, places);
    flat.push_back(tensor);
  } else {
    static_assert(
        std::is_convertible_v<const Entry&, T>,
        "tower: a gradient (tangent) is a tree of the type of its argument (output), or std::nullopt for zero.");
    append_entry(like, T(entry), flat, whose, what);
  }
}

template <class Likes, class Returned>
Tensors flatten_entries(const Likes& likes, const Returned& returned, const char* whose, const char* what) {
  constexpr std::size_t count = std::tuple_size_v<Likes>;
  Tensors flat;
  if constexpr (count == 1 && (std::is_same_v<Returned, std::tuple_element_t<0, Likes>> ||
                               !(TupleLike<Returned> || std::is_same_v<Returned, Tensors>))) {
    append_entry(std::get<0>(likes), returned, flat, whose, std::string(what) + " 0");
  } else if constexpr (std::is_same_v<Returned, Tensors>) {
    std::vector<std::vector<bool>> defined;
    auto look = [&](const auto& like) {
      auto& mine = defined.emplace_back();
      if constexpr (TensorTree<std::decay_t<decltype(like)>>)
        for_each_tensor(like, [&](const at::Tensor& place) { mine.push_back(place.defined()); });
      else mine.push_back(false);
    };
    std::apply([&](const auto&... like) { (look(like), ...); }, likes);
    flat = entries_of_list(returned, defined, whose);
  } else {
    static_assert(
        TupleLike<Returned>,
        "tower: a rule of a function with several arguments (outputs) returns a tuple with an entry for each.");
    if constexpr (TupleLike<Returned>) {
      static_assert(std::tuple_size_v<Returned> == count,
                    "tower: a rule returns one entry for each argument (output): std::nullopt where it is zero or the "
                    "argument holds no tensors.");
      [&]<std::size_t... I>(std::index_sequence<I...>) {
        (append_entry(std::get<I>(likes), std::get<I>(returned), flat, whose, what + (" " + std::to_string(I))), ...);
      }
      (std::make_index_sequence<count>{});
    }
  }
  return flat;
}

/// A call of the function with these parts (function_parts.h).
template <class Parts, class... D>
class TypedCall final : public FunctionCall {
 public:
  using Out = typename Parts::template Output<D...>;
  static_assert(TensorTree<Out>,
                "tower: a function returns a tensor, or a tree that holds tensors (tower/tree.h): return the tensor "
                "instead of its .item().");

  template <class... Args>
  TypedCall(std::shared_ptr<const Parts> parts, Tensors& operands, const Args&... args)
      : parts_(std::move(parts)), args_{taken_apart<D>(operands, args)...} {
    mutates.assign(Parts::mutates.begin(), Parts::mutates.end());
  }

  /// The output, from its tensors.
  Out arrive(Tensors& outputs) const {
    if constexpr (std::is_same_v<Out, at::Tensor>) return std::move(outputs[0]);
    else return with_leaves(*like_, outputs);
  }

  Tensors forward(const Tensors& operands, Context& ctx) const override {
    std::tuple<D...> args = arguments(operands);
    return depart(std::apply([&](D&... arg) -> Out { return parts().forward(ctx, arg...); }, args));
  }

  Tensors forward_and_save(const Tensors& operands, Context& ctx) const override {
    std::tuple<D...> args = arguments(operands);
    Tensors outs = depart(std::apply([&](D&... arg) -> Out { return parts().forward_and_save(ctx, arg...); }, args));
    if constexpr (Parts::jvp_takes_primals) ctx.save_for_forward(operands);
    return outs;
  }

  void setup(const Tensors& operands, const Tensors& outputs, Context& ctx) const override {
    parts().setup(ctx, arguments(operands), output(outputs));
    if constexpr (Parts::jvp_takes_primals) ctx.save_for_forward(operands);
  }

  Tensors backward(const Tensors& gradients, Context& ctx) const override {
    return flatten_entries(args_, parts().backward(ctx, args_, output(gradients)), "backward", "argument");
  }

  Tensors jvp(const Tensors& tangents, Context& ctx) const override {
    const std::tuple<D...> directions = arguments(tangents);
    const auto given = [&] {
      if constexpr (Parts::jvp_takes_primals) return parts().jvp(ctx, arguments(ctx.saved_tensors()), directions);
      else return parts().jvp(ctx, directions, directions);
    }();
    const Out like = like_or_placeholder();
    Tensors flat;
    if constexpr (std::is_same_v<std::decay_t<decltype(given)>, Out>)
      append_entry(like, given, flat, "jvp", "the output");
    else if constexpr (TupleLike<Out>) flat = flatten_entries(like, given, "jvp", "output");
    else flat = flatten_entries(std::tie(like), given, "jvp", "output");
    return flat;
  }

  std::pair<Tensors, Dims> vmap(const VmapInfo& info, const Dims& in_dims, const Tensors& operands) const override {
    std::vector<Dims> by_argument(sizeof...(D));
    for (std::size_t i = 0; i < in_dims.size(); ++i) by_argument[argument_of[i]].push_back(in_dims[i]);
    const InDims dims(std::move(by_argument));
    std::tuple<D...> args = arguments(operands);
    auto [out, out_dims] = std::apply([&](D&... arg) { return parts().vmap(info, dims, arg...); }, args);
    const Axes axes(std::move(out_dims));
    Out tree = std::move(out);
    Dims flat_dims;
    if (axes.is_list()) flat_dims = out_dims_for(axes, shape_of(tree));
    else flat_dims.assign(count_tensors(tree), axes.dim());
    return {depart(std::move(tree)), std::move(flat_dims)};
  }

  Tensors sparsity(const Tensors& operands) const override {
    std::tuple<D...> args = arguments(operands);
    return depart(std::apply([&](D&... arg) -> Out { return parts().sparsity(arg...); }, args));
  }

 private:
  const Parts& parts() const {
    if constexpr (Parts::is_static) {
      static const Parts stateless;
      return stateless;
    } else {
      return *parts_;
    }
  }

  template <class Arg>
  static Stored<Arg> kept(const Arg& given) {
    if constexpr (std::is_same_v<Arg, at::TensorList>) return given.vec();
    else return given;
  }

  // An argument's static parts; its tensors go to the operands.
  template <class T, class Arg>
  T taken_apart(Tensors& operands, const Arg& given) {
    T arg = kept(given);
    if constexpr (TensorTree<T>) {
      move_leaves(arg, operands);
      argument_of.resize(operands.size(), next_argument_);
    }
    ++next_argument_;
    return arg;
  }

  std::tuple<D...> arguments(const Tensors& operands) const {
    std::tuple<D...> args = args_;
    LeafReader reader(operands);
    auto fill_one = [&](auto& arg) {
      if constexpr (TensorTree<std::decay_t<decltype(arg)>>) fill(arg, reader);
    };
    std::apply([&](D&... arg) { (fill_one(arg), ...); }, args);
    return args;
  }

  Tensors depart(Out out) const {
    Tensors leaves;
    if constexpr (std::is_same_v<Out, at::Tensor>) {
      leaves.push_back(std::move(out));
    } else {
      move_leaves(out, leaves);
      like_ = std::move(out);
    }
    return leaves;
  }

  Out like_or_placeholder() const {
    if constexpr (std::is_same_v<Out, at::Tensor>) return placeholder();
    else return *like_;
  }

  Out output(const Tensors& outputs) const {
    if constexpr (std::is_same_v<Out, at::Tensor>) return outputs[0];
    else return with_leaves(*like_, outputs);
  }

  std::size_t next_argument_ = 0;  // while the call is made; initialized before args_
  std::shared_ptr<const Parts> parts_;
  std::tuple<D...> args_;  // static parts
  // The static parts of the output, known when the forward has run.
  mutable std::optional<Out> like_;
};

template <class Parts, class... D, class... Args>
auto call(const HigherOrderOperator& op, const std::shared_ptr<const Parts>& parts, const Args&... args) {
  Tensors operands;
  const auto made = std::make_shared<TypedCall<Parts, D...>>(parts, operands, args...);
  Tensors outputs = run_function(op, made, std::move(operands));
  return made->arrive(outputs);
}

}  // namespace tower::detail

// Operators over lists of tensors, of which optimizers are made (_foreach_add and its kin): element by element, by the
// operator for one tensor. Which one that is follows from the schemas.
#include <ATen/Functions.h>
#include <ATen/Operators.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

#include "records/op.h"
#include "rules/registry.h"

namespace tower::rules {
namespace {

constexpr char kPrefix[] = "aten::_foreach_";

// Lists of tensors and of numbers are taken apart; null for other arguments.
const c10::ListType* taken_apart(const c10::Argument& argument) {
  const auto* list = argument.type()->castRaw<c10::ListType>();
  if (!list) return nullptr;
  const auto kind = list->getElementType()->kind();
  return kind == c10::TypeKind::TensorType || kind == c10::TypeKind::NumberType ? list : nullptr;
}

// Whether `one` takes what is left of the arguments of `list` for one element; further ones have defaults.
bool serves(const c10::FunctionSchema& one, const c10::FunctionSchema& list) {
  const auto &mine = one.arguments(), &theirs = list.arguments();
  if (mine.size() < theirs.size() || one.is_mutable() || one.returns().size() != 1) return false;
  for (size_t i = 0; i < theirs.size(); ++i)
    if (const auto* list_type = taken_apart(theirs[i]);
        *mine[i].type() != *(list_type ? list_type->getElementType() : theirs[i].type()))
      return false;
  return std::all_of(mine.begin() + static_cast<std::ptrdiff_t>(theirs.size()), mine.end(),
                     [](const c10::Argument& a) { return a.default_value().has_value(); });
}

// The length of all lists.
size_t length_of(const c10::FunctionSchema& list, const Stack& args) {
  const auto& of = list.arguments();
  const size_t first = taken_apart(of[0]) ? 0 : 1, length = args[first].toListRef().size();
  TORCH_CHECK(length > 0, "Tensor list must have at least one tensor.");
  for (size_t i = first; i < args.size(); ++i)
    if (taken_apart(of[i]))
      TORCH_CHECK(args[i].toListRef().size() == length, "Tensor lists must have the same number of tensors, got ",
                  length, " and ", args[i].toListRef().size());
  return length;
}

DecompositionRule one_by_one(const c10::OperatorHandle& list, const c10::OperatorHandle& one) {
  return [list, one](Stack& stack) {
    const auto& of = list.schema().arguments();
    const size_t length = length_of(list.schema(), stack);
    const Stack args = std::move(stack);
    c10::List<Tensor> results;
    for (size_t k = 0; k < length; ++k) {
      Stack call;
      for (size_t i = 0; i < args.size(); ++i) call.push_back(taken_apart(of[i]) ? args[i].toListRef()[k] : args[i]);
      for (size_t i = args.size(); i < one.schema().arguments().size(); ++i)
        call.push_back(*one.schema().arguments()[i].default_value());
      one.callBoxed(call);
      results.push_back(call[0].toTensor());
    }
    stack.assign(1, IValue(std::move(results)));
  };
}

// LibTorch compares with numbers by another name.
std::string name_for_one(std::string name) {
  return name == "maximum" ? "clamp_min" : name == "minimum" ? "clamp_max" : name;
}

}  // namespace

void lists() {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto all = dispatcher.getAllOpNames();
  const auto find = [&](const std::string& name, const c10::FunctionSchema& list) {
    std::optional<c10::OperatorHandle> found;
    const std::string full_name = "aten::" + name;
    for (const auto& candidate : all) {
      if (found || candidate.name != full_name) continue;
      found = dispatcher.findSchema(candidate);
      if (found && !serves(found->schema(), list)) found.reset();
    }
    return found;
  };
  for (const auto& each : all) {
    if (!each.name.starts_with(kPrefix)) continue;
    const auto list = dispatcher.findSchema(each);
    if (!list || list->schema().is_mutable()) continue;
    const std::string name = each.name.substr(sizeof(kPrefix) - 1);
    auto one = find(name, list->schema());
    if (!one) one = find(name_for_one(name), list->schema());
    if (one) Operator::of(*list).decomposition = std::make_shared<const DecompositionRule>(one_by_one(*list, *one));
  }
  op<at::_ops::_foreach_norm_Scalar>().decomposes(
      [](const std::vector<Tensor>& tensors, const Scalar& ord, std::optional<at::ScalarType> dtype) {
        TORCH_CHECK(!tensors.empty(), "Tensor list must have at least one tensor.");
        std::vector<Tensor> norms;
        for (const Tensor& t : tensors)
          norms.push_back(at::linalg_vector_norm(t, ord, at::OptionalIntArrayRef(), false, dtype));
        return norms;
      });
}

}  // namespace tower::rules

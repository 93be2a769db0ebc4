// Problems: operators, and transforms of them, as functions of flat lists of tensors with arguments to try them on.
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>

#include "matrix/matrix.h"
#include "op_db/tensor_spec.h"
#include "support/device.h"

namespace matrix {
namespace {

bool is_floating(const at::Tensor& tensor) { return tensor.is_floating_point() || tensor.is_complex(); }

Tensors differentiable_outputs(const Tensors& outputs, const std::vector<int64_t>& chosen) {
  Tensors result;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool wanted = chosen.empty() || std::count(chosen.begin(), chosen.end(), static_cast<int64_t>(i)) != 0;
    if (wanted && is_floating(outputs[i])) result.push_back(outputs[i]);
  }
  return result;
}

// A pullback's arguments are those of the function and the cotangents of its outputs, all as differentiable inputs.
Problem pullback_of(const Problem& problem) {
  Problem result = problem;
  const size_t count = problem.differentiable.size();
  const size_t outputs = problem.f(problem.examples[0]).size();
  result.f = [problem, count](const Tensors& arguments) {
    const auto cotangents = arguments.begin() + static_cast<std::ptrdiff_t>(count);
    const Tensors primals(arguments.begin(), cotangents);
    const auto pullback = td::vjp(partial_function(problem, primals), selected(primals, problem.differentiable)).second;
    return pullback(Tensors(cotangents, arguments.end()));
  };
  result.differentiable.resize(count + outputs, true);
  result.mappable.resize(count + outputs, true);
  uint64_t seed = 11;
  for (auto& example : result.examples) {
    for (auto& cotangent : support::random_like(problem.f(example), seed++)) example.push_back(cotangent);
  }
  return result;
}

// Likewise the arguments of a pushforward, and the tangents of the inputs; its outputs are the tangents.
Problem pushforward_of(const Problem& problem) {
  Problem result = problem;
  const size_t count = problem.differentiable.size();
  const auto inputs =
      static_cast<size_t>(std::count(problem.differentiable.begin(), problem.differentiable.end(), true));
  result.f = [problem, count](const Tensors& arguments) {
    const auto tangents = arguments.begin() + static_cast<std::ptrdiff_t>(count);
    const Tensors primals(arguments.begin(), tangents);
    return td::jvp(partial_function(problem, primals), selected(primals, problem.differentiable),
                   Tensors(tangents, arguments.end()))
        .second;
  };
  result.differentiable.resize(count + inputs, true);
  result.mappable.resize(count + inputs, true);
  uint64_t seed = 23;
  for (auto& example : result.examples) {
    const Tensors primals = selected(example, problem.differentiable);
    for (auto& tangent : support::random_like(primals, seed++)) example.push_back(tangent);
  }
  return result;
}

// A mapped function's examples are the batch in its order, and rotated.
Problem mapped(const Problem& problem) {
  Problem result = problem;
  // The batch is not in front, so that an outer batch, which is, cannot be taken for it.
  td::Dims dims = zero_dims(problem.mappable);
  for (size_t i = 0; i < dims.size(); ++i)
    if (dims[i]) dims[i] = problem.examples[0][i].dim();
  result.f = td::vmap(problem.f, dims, {0});
  result.examples.clear();
  Problem rotated = problem;
  for (size_t i = 0; i < problem.examples.size(); ++i) {
    result.examples.push_back(batched_arguments(rotated, problem.mappable, dims));
    std::rotate(rotated.examples.begin(), rotated.examples.begin() + 1, rotated.examples.end());
  }
  // Unmapped arguments differ between the rotated lists; what is not mapped once stays so.
  return result;
}

}  // namespace

Tensors arguments_from(const op_db::Sample& sample, const Tensors& leaves) {
  Tensors arguments;
  for (size_t i = 0; i < sample.leaves.size(); ++i) {
    arguments.push_back(op_db::projected(sample.leaves[i].spec, leaves[i]));
  }
  return arguments;
}

Problem problem_of(const Case& c, int examples) {
  Problem problem;
  const auto op = *c.entry.op;
  // The function outlives the case: it keeps its own copy of the sample.
  const auto sample = std::make_shared<const op_db::Sample>(c.sample);
  problem.f = [op, sample](const Tensors& leaves) { return op_db::call(op, *sample, arguments_from(*sample, leaves)); };
  for (const auto& leaf : c.sample.leaves) {
    problem.differentiable.push_back(leaf.spec.differentiable());
    problem.mappable.push_back(!leaf.spec.unmapped);
  }
  if (c.sample.leaves.empty()) {  // a factory: it is called once for each example of something that it does not use
    problem.differentiable = {false};
    problem.mappable = {true};
    problem.examples.assign(static_cast<size_t>(examples),
                            {at::zeros({}, at::dtype(at::kDouble).device(support::device()))});
    return problem;
  }
  for (int i = 0; i < examples; ++i) problem.examples.push_back(op_db::make_leaves(c.entry, c.sample, c.dtype, i));
  for (size_t i = 0; i < problem.mappable.size(); ++i) {
    if (problem.mappable[i]) continue;
    for (auto& example : problem.examples) example[i] = problem.examples[0][i];
  }
  return problem;
}

Problem differentiable_problem_of(const Case& c, int examples) {
  Problem problem = problem_of(c, examples);
  if (c.entry.unspecified) problem.differentiable.assign(problem.differentiable.size(), false);
  problem.f = [f = problem.f, chosen = c.entry.differentiable_outputs](const Tensors& leaves) {
    return differentiable_outputs(f(leaves), chosen);
  };
  return problem;
}

bool has_derivatives(const Problem& problem) {
  return any(problem.differentiable) && !problem.f(problem.examples[0]).empty();
}

bool is_double(const Problem& problem) {
  for (size_t i = 0; i < problem.differentiable.size(); ++i) {
    const auto dtype = problem.examples[0][i].scalar_type();
    if (problem.differentiable[i] && dtype != at::kDouble && dtype != at::kComplexDouble) return false;
  }
  return true;
}

Problem transformed(const std::string& transform, const Problem& problem) {
  if (transform == "vmap") return mapped(problem);
  return transform == "vjp" ? pullback_of(problem) : pushforward_of(problem);
}

Tensors batched_arguments(const Problem& problem, const std::vector<bool>& mapped, const td::Dims& dims) {
  Tensors arguments;
  for (size_t i = 0; i < mapped.size(); ++i) {
    Tensors examples;
    for (const auto& example : problem.examples) examples.push_back(example[i]);
    const int64_t rank = examples[0].dim() + 1;
    const int64_t dim = mapped[i] ? dims[i].value() : 0;
    arguments.push_back(mapped[i] ? op_db::batch_of(examples, dim < 0 ? dim + rank : dim) : examples[0]);
  }
  return arguments;
}

std::vector<Tensors> looped_arguments(const Problem& problem, const std::vector<bool>& mapped) {
  std::vector<Tensors> lists;
  for (const auto& example : problem.examples) {
    lists.push_back(problem.examples[0]);
    for (size_t i = 0; i < mapped.size(); ++i) {
      if (mapped[i]) lists.back()[i] = example[i];
    }
  }
  return lists;
}

Tensors stacked(const std::vector<Tensors>& lists) {
  Tensors result;
  for (size_t i = 0; i < lists[0].size(); ++i) {
    Tensors column;
    for (const auto& list : lists) column.push_back(list.at(i).detach());
    result.push_back(at::stack(column));
  }
  return result;
}

td::Dims zero_dims(const std::vector<bool>& mapped) {
  td::Dims dims;
  for (const bool flag : mapped) dims.push_back(flag ? std::optional<int64_t>(0) : std::nullopt);
  return dims;
}

bool any(const std::vector<bool>& flags) { return std::count(flags.begin(), flags.end(), true) != 0; }

Tensors selected(const Tensors& values, const std::vector<bool>& flags) {
  Tensors result;
  for (size_t i = 0; i < flags.size(); ++i) {
    if (flags[i]) result.push_back(values[i]);
  }
  return result;
}

Tensors replaced(const Tensors& values, const std::vector<bool>& flags, const Tensors& by) {
  Tensors result = values;
  size_t next = 0;
  for (size_t i = 0; i < flags.size(); ++i) {
    if (flags[i]) result[i] = by[next++];
  }
  return result;
}

td::Function partial_function(const Problem& problem, const Tensors& arguments) {
  return [f = problem.f, flags = problem.differentiable, arguments](const Tensors& values) {
    return f(replaced(arguments, flags, values));
  };
}

}  // namespace matrix

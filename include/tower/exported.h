// Models that Python exported (torch.export.save: a .pt2 file) as functions to transform:
//
//   const auto model = tower::load_exported<at::Tensor(at::Tensor)>("energy.pt2");
//   auto forces = tower::compile(tower::vmap(tower::grad([&](const at::Tensor& x) { return -model(x); })));
//
//   auto loss = [&](const tower::NamedTensors& w) { return model.call(w, x).square().mean(); };
//   tower::NamedTensors g = tower::grad(loss)(model.parameters());
//
// The file's graph is run call by call through LibTorch's dispatcher, so whatever holds for code that makes these calls
// holds for the model: all transforms, to any order, compiled or not. Nothing of the file is executed as code, and a
// file that is damaged is an ArgumentError that names the place.
//
// The signature is that of the Python function: positional arguments, then keyword arguments, as trees (tower/tree.h).
// Tuples, lists and dicts are std::tuple, std::vector or a struct, and std::map; None is nullopt or an undefined
// tensor. A number or string that was given when the model was exported is part of the model: it has to be given again
// as it was.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "tower/detail/exported_trees.h"
#include "tower/dynamic.h"
#include "tower/exported_tree.h"
#include "tower/nn.h"

namespace tower {

/// How load_exported reads.
struct ExportedOptions {
  /// Which model of the file; empty: the only one that there is.
  std::string model = {};
  /// Reads files of a version of the schema that Tower does not know, too. What they mean by it may be something else.
  bool any_version = false;
};

namespace exported {
class Model;
}

namespace dynamic {

/// An exported model as a function of lists. Copies share the weights.
class ExportedModel {
 public:
  /// A model that was read.
  explicit ExportedModel(std::shared_ptr<const exported::Model> model) : model_(std::move(model)) {}

  /// The tensors of the result, of the tensors of the arguments, each in the order of its leaves. What else the model
  /// was exported with is given as it was. Throws ArgumentError where number, dtypes or sizes do not fit.
  Tensors operator()(const Tensors& tensors) const;
  /// All leaves of the result, of all leaves of the arguments, with `weights` in the place of the model's parameters,
  /// buffers and constants of these names. Throws ArgumentError where there is none of a name, or its shape is another.
  std::vector<ExportedLeaf> call(const NamedTensors& weights, const std::vector<ExportedLeaf>& leaves) const;

  /// The parameters, by name. They share memory with the model's, and do not require grad: only Tower differentiates
  /// them.
  const NamedTensors& parameters() const;
  /// The buffers, by name, in the same way. (Those that the model writes to change with each call.)
  const NamedTensors& buffers() const;
  /// The tensors that the Python code held otherwise, by the names that the exporter gave them.
  const NamedTensors& constants() const;

  /// The arguments: positional ones, then those by keyword, with their names as keys.
  const ExportedTree& arguments() const;
  /// The result.
  const ExportedTree& results() const;
  /// How it is called, "(x: Float [s0, 3]) -> Float [s0]".
  std::string signature() const;
  /// A page: the signature, the ranges of sizes, the weights, which operators are called how often, in branches and
  /// loops, too, and how each is served under the transforms (tower/coverage.h).
  std::string report() const;

 private:
  std::shared_ptr<const exported::Model> model_;
};

/// Reads the model of the file `path` that torch.export.save wrote. Throws ArgumentError where it is none or damaged,
/// with the place in it, and UnsupportedError where the model needs what Tower or this process does not have, by name.
ExportedModel load_exported(const std::string& path, const ExportedOptions& options = {});

}  // namespace dynamic

/// An exported model as a function of the type `Signature`, such as at::Tensor(at::Tensor, double).
template <class Signature>
class ExportedModel;

template <class Result, class... Args>
class ExportedModel<Result(Args...)> {
 public:
  /// `model`, whose arguments and result have to fit the type. Throws ArgumentError where they do not, with both.
  explicit ExportedModel(dynamic::ExportedModel model) : model_(std::move(model)) {
    using detail::fits_exported;
    const auto& arguments = model_.arguments().children;
    std::size_t next = 0;
    const bool fits = arguments.size() == sizeof...(Args) &&
                      (fits_exported<std::decay_t<Args>>(arguments[next++]) && ... && true) &&
                      fits_exported<std::decay_t<Result>>(model_.results());
    if (!fits) detail::refuse_exported_type(model_.signature(), typeid(Result(std::decay_t<Args>...)));
  }

  /// What the model gives for `args`. Throws ArgumentError where sizes, dtypes or numbers are others than the model's.
  Result operator()(const std::decay_t<Args>&... args) const { return call({}, args...); }

  /// The same with `weights` in the place of the model's own of these names.
  Result call(const NamedTensors& weights, const std::decay_t<Args>&... args) const {
    std::vector<ExportedLeaf> leaves;
    [[maybe_unused]] std::size_t next = 0;
    (detail::append_exported(args, model_.arguments().children[next++], leaves), ...);
    const auto results = model_.call(weights, leaves);
    std::size_t leaf = 0;
    return detail::take_exported<std::decay_t<Result>>(model_.results(), results, leaf);
  }

  /// The parameters, by name, as dynamic::ExportedModel has them.
  const NamedTensors& parameters() const { return model_.parameters(); }
  /// The buffers, by name.
  const NamedTensors& buffers() const { return model_.buffers(); }
  /// The constants, by name.
  const NamedTensors& constants() const { return model_.constants(); }
  /// How it is called, as that of dynamic::ExportedModel.
  std::string signature() const { return model_.signature(); }
  /// As that of dynamic::ExportedModel.
  std::string report() const { return model_.report(); }

 private:
  dynamic::ExportedModel model_;
};

/// dynamic::load_exported, as a function of that type. Throws ArgumentError also where the type does not fit the model.
template <class Signature>
ExportedModel<Signature> load_exported(const std::string& path, const ExportedOptions& options = {}) {
  return ExportedModel<Signature>(dynamic::load_exported(path, options));
}

}  // namespace tower

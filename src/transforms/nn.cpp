// The one file of the library that knows torch::nn::Module, and of torch::nn nothing else.
#include "tower/nn.h"

#include <ATen/Functions.h>
#include <torch/csrc/api/include/torch/nn/module.h>

#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "tower/errors.h"

namespace tower::detail {
namespace {

using Dict = torch::OrderedDict<std::string, at::Tensor>;

NamedTensors values(const Dict& dict) {
  NamedTensors result;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : dict) {
    if (!item.value().defined()) continue;  // such as the bias of a Linear without one
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) result.emplace(item.key(), item.value().detach());
  }
  return result;
}

std::string names(const Dict& dict) {
  std::string text;
  for (const auto& item : dict) {
    if (item.value().defined()) text += (text.empty() ? "" : ", ") + item.key();
  }
  return text.empty() ? "none" : text;
}

std::string shape(const at::Tensor& t) {
  std::ostringstream text;
  text << t.sizes();
  return text.str();
}

using Replacements = std::vector<std::pair<at::Tensor, at::Tensor>>;

/// Appends {the module's own, given}. `kind` is "parameter" or "buffer".
void append(const Dict& own, const NamedTensors& given, const std::string& kind, Replacements& replacements) {
  std::unordered_map<const c10::TensorImpl*, std::pair<std::string, at::Tensor>> replaced;
  for (const auto& [name, value] : given) {
    const at::Tensor* original = own.find(name);
    if (original == nullptr || !original->defined()) {
      throw ArgumentError("functional_call: the module has no " + kind + " named \"" + name +
                          "\"; it has: " + names(own));
    }
    if (!value.defined()) {
      throw ArgumentError("functional_call: " + kind + " \"" + name +
                          "\" is an undefined tensor: leave it out to use the module's own");
    }
    if (!value.sizes().equals(original->sizes())) {
      throw ArgumentError("functional_call: " + kind + " \"" + name + "\" was given with shape " + shape(value) +
                          ", but the module's has shape " + shape(*original) +
                          (value.dim() == original->dim() + 1 ? ": map over its first dimension with vmap" : ""));
    }
    const auto [before, is_new] = replaced.emplace(original->unsafeGetTensorImpl(), std::pair(name, value));
    if (is_new) {
      replacements.emplace_back(*original, value);
    } else if (!before->second.second.is_same(value)) {
      throw ArgumentError("functional_call: \"" + before->second.first + "\" and \"" + name + "\" are one tied " +
                          kind +
                          " of the module, but were given different tensors: give one of them, or both the same");
    }
  }
}

NamedTensors stack(const std::vector<NamedTensors>& all, const std::string& kind) {
  for (size_t i = 0; i < all.size(); ++i) {
    for (const auto& [name, first] : all[0]) {
      const auto found = all[i].find(name);
      if (found == all[i].end()) {
        throw ArgumentError("stack_modules: module " + std::to_string(i) + " has no " + kind + " \"" + name +
                            "\", but module 0 has: stack modules of one architecture");
      }
      const at::Tensor& value = found->second;
      if (!value.sizes().equals(first.sizes()) || value.scalar_type() != first.scalar_type()) {
        throw ArgumentError("stack_modules: " + kind + " \"" + name + "\" of module " + std::to_string(i) + " is " +
                            c10::toString(value.scalar_type()) + shape(value) + ", but that of module 0 is " +
                            c10::toString(first.scalar_type()) + shape(first) + ": stack modules of one architecture");
      }
    }
    if (all[i].size() != all[0].size()) {
      throw ArgumentError("stack_modules: module " + std::to_string(i) + " has " + std::to_string(all[i].size()) + " " +
                          kind + "s, but module 0 has " + std::to_string(all[0].size()) +
                          ": stack modules of one architecture");
    }
  }
  NamedTensors result;
  for (const auto& [name, first] : all[0]) {
    std::vector<at::Tensor> tensors;
    for (const NamedTensors& named : all) tensors.push_back(named.at(name));
    result.emplace(name, at::stack(tensors));
  }
  return result;
}

}  // namespace

NamedTensors parameters_of(const torch::nn::Module& module) { return values(module.named_parameters()); }

NamedTensors buffers_of(const torch::nn::Module& module) { return values(module.named_buffers()); }

Substitution substitute(const torch::nn::Module& module, const NamedTensors& params, const NamedTensors& buffers) {
  Replacements replacements;
  if (!params.empty()) append(module.named_parameters(), params, "parameter", replacements);
  if (!buffers.empty()) append(module.named_buffers(), buffers, "buffer", replacements);
  return Substitution(replacements);
}

std::pair<NamedTensors, NamedTensors> stack_modules(const std::vector<const torch::nn::Module*>& modules) {
  if (modules.empty()) throw ArgumentError("stack_modules: there are no modules to stack");
  std::vector<NamedTensors> params, buffers;
  for (const torch::nn::Module* module : modules) {
    params.push_back(parameters_of(*module));
    buffers.push_back(buffers_of(*module));
  }
  return {stack(params, "parameter"), stack(buffers, "buffer")};
}

}  // namespace tower::detail

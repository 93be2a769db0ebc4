// Axes against the shape of a tree: one walk, whose messages say where in the tree they do not fit.
#include "tower/axes.h"

#include <string>

#include "tower/errors.h"

namespace tower::detail {
namespace {

using Kind = TreeShape::Kind;

std::string entries(std::size_t n) { return n == 1 ? "1 entry" : std::to_string(n) + " entries"; }

std::string what_it_is(const TreeShape& shape) {
  switch (shape.kind) {
    case Kind::tensor:
      return "a tensor";
    case Kind::absent_tensor:
      return "an undefined tensor";
    case Kind::static_value:
      return "no tensor but a static value (a number, a string, …)";
    case Kind::container:
      return "a tree of " + std::to_string(shape.children.size()) + (shape.children.size() == 1 ? " part" : " parts");
  }
  return "";
}

std::string written(std::optional<int64_t> dim) { return dim ? std::to_string(*dim) : "std::nullopt"; }

/// Appends to `dims`. `option` is "in_dims" or "out_dims", `where` names the part of the argument or output.
void append_dims(const Axes& axes, const TreeShape& shape, const std::string& option, const std::string& where,
                 dynamic::Dims& dims) {
  if (!axes.is_list()) {
    if (shape.kind == Kind::static_value && axes.dim()) {
      throw ArgumentError("vmap: " + option + " gives dimension " + written(axes.dim()) + " to " + where +
                          ", which is " + what_it_is(shape) + ": give std::nullopt for it");
    }
    dims.insert(dims.end(), shape.tensors(), axes.dim());
    return;
  }
  if (shape.kind != Kind::container) {
    throw ArgumentError("vmap: " + option + " gives a list of " + entries(axes.parts().size()) + " to " + where +
                        ", which is " + what_it_is(shape) + ": give a number or std::nullopt for it");
  }
  if (axes.parts().size() != shape.children.size()) {
    throw ArgumentError("vmap: " + option + " gives a list of " + entries(axes.parts().size()) + " to " + where +
                        ", which is " + what_it_is(shape) + ": give one entry for each part, or one number for all");
  }
  for (std::size_t i = 0; i < shape.children.size(); ++i) {
    append_dims(axes.parts()[i], shape.children[i], option, shape.child_name(where, i), dims);
  }
}

/// Counts `index` down as it passes tensors; the name of the one at which it is zero.
std::optional<std::string> find_tensor(const TreeShape& shape, const std::string& where, std::size_t& index) {
  if (shape.kind == Kind::tensor && index-- == 0) return where;
  for (std::size_t i = 0; i < shape.children.size(); ++i) {
    if (auto found = find_tensor(shape.children[i], shape.child_name(where, i), index)) return found;
  }
  return std::nullopt;
}

}  // namespace

std::string TreeShape::child_name(const std::string& where, std::size_t child) const {
  return where + "[" + (keys.empty() ? std::to_string(child) : "\"" + keys[child] + "\"") + "]";
}

std::string name_of_tensor(const std::vector<TreeShape>& arguments, std::size_t index) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (auto found = find_tensor(arguments[i], "argument " + std::to_string(i), index)) return *found;
  }
  return "argument";
}

std::size_t TreeShape::tensors() const {
  std::size_t n = kind == Kind::tensor;
  for (const TreeShape& child : children) n += child.tensors();
  return n;
}

void append_in_dims(const Axes& in_dims, const TreeShape& argument, std::size_t index, std::size_t count,
                    dynamic::Dims& dims) {
  if (in_dims.parts().size() != count) {
    throw ArgumentError(
        "vmap: in_dims has " + entries(in_dims.parts().size()) + ", but the function was called with " +
        std::to_string(count) + (count == 1 ? " argument" : " arguments") +
        ": give one entry for each argument (std::nullopt where it is not mapped), or one number for all");
  }
  append_dims(in_dims.parts()[index], argument, "in_dims", "argument " + std::to_string(index), dims);
}

dynamic::Dims out_dims_for(const Axes& axes, const TreeShape& output) {
  dynamic::Dims dims;
  // A list of one entry is that entry where the output is not a container of one: `.out_dims = {1}` for all outputs.
  const bool one_for_all =
      axes.is_list() && axes.parts().size() == 1 && !(output.kind == Kind::container && output.children.size() == 1);
  append_dims(one_for_all ? axes.parts()[0] : axes, output, "out_dims", "the output", dims);
  return dims;
}

}  // namespace tower::detail

// How the arguments and results of exported models (tower/exported.h) are nested, and what their leaves are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace tower {

/// A leaf of what an exported model takes or gives; std::monostate is None.
using ExportedLeaf = std::variant<std::monostate, at::Tensor, int64_t, double, bool, std::string>;

/// How arguments or results of an exported model are nested.
struct ExportedTree {
  /// What has children.
  enum class Kind : uint8_t {
    leaf,      ///< nothing
    sequence,  ///< a tuple, a list, a namedtuple, a dataclass
    mapping,   ///< a dict
  };
  /// What a leaf is, in the order of ExportedLeaf.
  enum class Leaf : uint8_t {
    none,     ///< None
    tensor,   ///< a tensor
    integer,  ///< an int
    number,   ///< a float
    boolean,  ///< a bool
    string,   ///< a str
  };

  Kind kind = Kind::leaf;              ///< what it has
  Leaf leaf = Leaf::none;              ///< of a leaf
  std::string text;                    ///< of a leaf: "Float [s0, 3]", "2"; otherwise Python's type, "tuple"
  std::vector<std::string> keys;       ///< of the children, where they have names
  std::vector<ExportedTree> children;  ///< in order
};

}  // namespace tower

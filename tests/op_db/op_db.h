// The operator database: which operators the matrix of checks (tests/matrix/matrix.h) drives, and with which samples.
//
// It is text, one file per family in this folder (*.ops), so that a line is an operator and a sample is cheap:
//
//   @unary = T{2,3}:$1 | T{}:$1 | T{0,2}:$1                  a list of samples with a hole, for reuse
//   sin cos [complex]      | @unary()                        two operators that share samples
//   sum.dim_IntList [complex]
//     | T{2,3}, 1 | T{2,3}, [0,1], keepdim=True              samples: arguments in the order of the schema, or by name
//     ! T{2,3}, 5                                            a bad sample: the plain call throws, so must every
//     transform
//   nonzero
//     - refuses vmap: the shape of its output depends on the data
//     | T{3}
//
// A tensor is T (of the dtype under test), C (its complex counterpart), R (its real counterpart), I (int64) or
// B (bool), a shape in braces, and modifiers: T{2,3}:pos:t. What the modifiers mean is listed in tensor_spec.h.
// [T{2}, None] is a list. `T` alone, where a dtype is expected, is the dtype under test.
//
// Flags, in brackets after the names:
//   complex       also checked in complex128
//   complex_only  checked in complex128 and nothing else
//   triples       also checked under every three transforms (all operators are when TOWER_TRIPLES is set)
//   fallback      served by the resolution order's last resorts (loop, LibTorch's formula) for now: not an own rule
//   by_address    depends on the layout in memory: only mapped where examples lie as they would on their own
//   by_data       its shape depends on the data, and is one for all examples of its samples: none without examples
//   unspecified   its values are whatever memory held: only shapes and dtypes are compared
// Notes, on lines of their own, each with its reason after a colon:
//   refuses X     the check named X (vmap, vjp, jvp, vjp(vjp), …) must end in a tower::Error
//   no_autograd   LibTorch's autograd is not a usable oracle here
//   no_fd         finite differences are not
//   no_second     second derivatives are not checked
//   no_variants   in-place and out= variants are not checked
//   no_float32    float32 is not checked
//   no_samples    it cannot be called with reproducible results
//   outs i,j      only these outputs have derivatives
//   tolerance t   relative tolerance of derivatives against finite differences
//   compiled n    only the first n samples are compiled (all are when TOWER_WHOLE is set)
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "op_db/tensor_spec.h"

namespace op_db {

using Tensors = std::vector<at::Tensor>;
using Stack = std::vector<c10::IValue>;

/// A tensor inside a sample: argument `arg` itself, or the element `index` of the list that the argument is.
struct Leaf {
  size_t arg = 0;
  std::optional<size_t> index;
  TensorSpec spec;
};

/// One call of an operator, with holes where the tensors go.
struct Sample {
  std::string text;
  bool bad = false;
  Stack arguments;  // everything but the tensors of `leaves`
  std::vector<Leaf> leaves;
};

struct Entry {
  std::string name;    // as in the dispatcher, "aten::" left out
  std::string family;  // the file it stands in
  std::optional<c10::OperatorHandle> op;
  bool complex = false;
  bool real = true;
  bool triples = false;
  bool fallback = false;
  bool by_address = false;
  bool by_data = false;
  bool unspecified = false;
  std::map<std::string, std::string> notes;  // what is excepted -> why
  std::vector<std::string> sample_texts;
  std::vector<int64_t> differentiable_outputs;  // empty: every floating output
  double tolerance = 1e-6;
  size_t compiled_samples = std::numeric_limits<size_t>::max();

  std::string full_name() const { return (name.find("::") == std::string::npos ? "aten::" : "") + name; }
  bool has(const std::string& note) const { return notes.count(note) != 0; }
  bool refuses(const std::string& check) const { return has("refuses " + check); }
  /// How many samples the operator takes.
  size_t good_samples() const {
    return static_cast<size_t>(std::count_if(sample_texts.begin(), sample_texts.end(),
                                             [](const std::string& text) { return text[0] != '!'; }));
  }
};

/// The database: every *.ops file of the folder, filtered by the regular expression in TOWER_OPS. Throws
/// std::runtime_error with file and line where a file is malformed or names an operator that LibTorch lacks.
std::vector<Entry> load(const std::string& folder);

/// The sample that `text` spells for `entry` when the dtype under test is `dtype`.
Sample parse_sample(const Entry& entry, const std::string& text, at::ScalarType dtype);

/// Values for the leaves of a sample: one tensor each, with fresh data for every `example`.
Tensors make_leaves(const Entry& entry, const Sample& sample, at::ScalarType dtype, int example);

/// Calls `op` through the dispatcher with `leaves` in the holes of `sample`; all tensors it returns, in order.
Tensors call(const c10::OperatorHandle& op, const Sample& sample, const Tensors& leaves);

/// The arguments of that call.
Stack fill_in(const Sample& sample, const Tensors& leaves);

/// All tensors on a stack of results, lists of tensors spread out.
Tensors tensors_of(const Stack& results);

}  // namespace op_db

// vmap of an operator is an operator: it maps the implementation to evaluate, and the derivative rules to
// differentiate.
#pragma once

#include "interpreters/vmap.h"

namespace tower {

/// Runs `op` under the vmap level: binds its image one level down, so that the levels there meet an operator with
/// derivative rules of its own.
void bind_mapped(Vmap& level, const Operator& op, Stack& stack);

/// What an image is the image of.
struct ImageOf {
  const Operator& base;
  const Stack& args;                   // of `base`, placeholders for its tensors
  const std::vector<LeafRef>& leaves;  // where each operand goes among them
  const std::vector<int64_t>& dims;    // batch dimension of each operand
  int64_t batch_size;
  uint64_t axis;
  Randomness randomness;
  const char* label;                  // of the vmap
  const Vmap::MakeLevel& make_level;  // of a vmap that is not an ordinary one; else empty
  bool draws;                         // at each run
};
std::optional<ImageOf> image_of(const Operator& op);
/// Tells an image that is not evaluated what it would have found out: the operator that it is of, through all vmaps,
/// gives one list of so many tensors.
void gives_one_list(const Operator& image, int64_t tensors);
/// That it gives nothing.
void gives_nothing(const Operator& image);
/// That it gives what `another` gave, which is the image of a call with another argument, and was evaluated.
void gives_what_gives(const Operator& image, const Operator& another);
/// An image that is told in full.
c10::intrusive_ptr<const Operator> image_from(const ImageOf& image);
/// The same image over other numbers of examples, outermost first.
c10::intrusive_ptr<const Operator> mapped_over(const Operator& image, c10::ArrayRef<int64_t> batch_sizes);
/// The same image of a call whose argument `arg` is another.
c10::intrusive_ptr<const Operator> mapped_with(const Operator& image, size_t arg, const IValue& value);

}  // namespace tower

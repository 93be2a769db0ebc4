// Where a view lies in memory, as the plain call would have it.
#pragma once

#include "core/wrapper.h"

namespace tower::frontend {

// NOTE [Places of views]
// Functions ask for strides and storage_offset(), and as_strided goes by them. A view shows those that follow from what
// its base shows (NOTE [Strides of one example]), as it does in the plain call: whatever lies between the elements of
// an example below, be it the other examples, and whether or not the value below is a view (a small part may be a
// copy). They stay what they are when the base is written to. In a trace, whose tensors lie as the caller's will, they
// are those of the values.

/// Lets `view`, output `out` of `op` on `base`, show its place.
void show_place(Wrapper& view, const Wrapper& base, const Operator& op, const View::Args& args, size_t out);
/// Lets a tensor show the place of another of the same sizes.
void copy_place(Wrapper& to, const Wrapper& from);
/// The tensor takes a new value, and goes on showing its place if it is of the same sizes.
void take_in_place(Wrapper& w, const Tensor& now);

/// Whether it is given places in memory.
bool is_as_strided(const Operator& op);

/// as_strided of a view at a place that is counted from where the memory starts may read what lies before the view or
/// between its elements. So it is a call of the farthest base from which on every view is followed by derivatives: this
/// one. Undefined for other operators, and for what is no view.
Tensor memory_around(const Operator& op, const Tensor& view, const IValue& offset);

}  // namespace tower::frontend

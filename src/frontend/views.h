// Views inside a transform. Interpreters know no aliasing: a view is made by running the view operator as a functional
// one, and the front end remembers from which base, so that a write through any alias reaches all of them.
//
//   y = x[0]          y.view = {base x, select, (0, 0)}
//   y.mul_(2)         x := select_scatter(x, 2·y, 0, 0), generation of x goes up
//   z = x[0]; z       the next reading finds its generation old and runs select again
//
// A view that shows an element of its base more than once (expand, overlapping windows) has no scatter: a write through
// a part of it that shows each element once is carried by the elements' positions, any other is refused.
#pragma once

#include "core/wrapper.h"

namespace tower::frontend {

/// Runs a view operator on a wrapper and ties its outputs to their base.
void make_view(const Operator& op, Stack& stack);

/// Recomputes the payload of a view after its base was written.
void refresh(Wrapper& view);

/// A tensor with the value that `t` has now, which no write to `t` changes, for who keeps it; `t` itself if it is
/// plain.
Tensor as_it_is(const Tensor& t);

/// Whether the tensor is memory from outside of a trace, which a graph writes to at each run: a view of a captured
/// tensor (NOTE [Memory from outside of a trace], graph/trace.cpp).
bool is_memory_outside(Wrapper& w);

/// Whether a write may take the tensor's old value for its own use: it is no view, and its memory is nobody else's.
bool may_give_up(Wrapper& w);

/// What `view` is one level down, as a view of what its root is there. For levels under which a view is made by the
/// same operator as below them: jvp and vjp.
Tensor view_below(Wrapper& view);

/// Throws MutationError if `value`, written to `target`, cannot be carried to the tensors that it views.
void check_writable(Wrapper& target, const Tensor& value, const Operator& writer);

/// Whether a write to the tensor is one operator on its base, which copies the value into it.
bool is_replaced_by_scatter(const Tensor& target);

/// Writes a value to a tensor, its base and (lazily) all other views of that base. Everything that can fail does so
/// before anything is changed. What `is_replaced_by_scatter` may be written a value that is another tensor's
/// (`is_new`: false).
void write_through(Wrapper& target, const Tensor& value, const Operator& writer, bool is_new = true);

/// `value` with the derivatives that `history` carries, at every level: what a write leaves in a tensor when it is not
/// recorded. Without `tangents` only reverse mode's, as under no_grad; with them also forward mode's, as through
/// detach().
Tensor with_history_of(const Tensor& history, const Tensor& value, bool tangents);

}  // namespace tower::frontend

// Views inside a transform. Interpreters know no aliasing: a view is made by running the view operator as a functional
// one, and the front end remembers from which base, so that a write through any alias reaches all of them.
//
//   y = x[0]          y.view = {base x, select, (0, 0)}
//   y.mul_(2)         x := select_scatter(x, 2·y, 0, 0), generation of x goes up
//   z = x[0]; z       the next reading finds its generation old and runs select again
#pragma once

#include "core/wrapper.h"

namespace tower::frontend {

/// Runs a view operator on a wrapper and ties its outputs to their base.
void make_view(const Operator& op, Stack& stack);

/// Recomputes the payload of a view after its base was written.
void refresh(Wrapper& view);

/// Writes a new payload to a tensor, its base and (lazily) all other views of that base.
/// Throws MutationError where the write cannot reach the base.
void write_through(Wrapper& target, Payload payload, const Operator& writer);

}  // namespace tower::frontend

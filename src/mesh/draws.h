// Random numbers of a batch that is spread over processes, each of which has a generator in the same state.
#pragma once

#include "mesh/axis.h"

namespace tower::mesh {

// NOTE [Draws across processes]
// All processes' generators move alike: so a draw that is to be the same for all examples is, without a word. Draws
// that differ between examples are those of the whole batch, of which a process takes its part, where each example's
// take as much of the generator as another's: they are then the same whatever the number of processes. Where that
// depends on the values (Poisson, gamma, …), or nothing is known of the operator, each process draws from a stream of
// its own, seeded by one number of the common generator.

/// Whether the operator may draw random numbers that differ between the examples of a level that maps so.
bool may_draw(const Operator& op);
/// Runs such an operator, its arguments at `level`, by `run`: as one process would that had the batch of its level.
void draw_apart(AxisVmap& level, const Operator& op, Stack& stack, const std::function<void(Vmap&)>& run);

/// Throws RandomnessError unless the generators that the operator draws from stand alike in all processes.
void check_generators(const AxisVmap& level, const Stack& stack);

}  // namespace tower::mesh

// while_loop for operators that are loops themselves.
#pragma once

#include "tower/loops.h"

namespace tower {

/// The last state. With `must_end`, more than options.max_steps steps are an exception.
dynamic::Tensors run_while(const dynamic::Predicate& predicate, const dynamic::Function& step,
                           const dynamic::Tensors& start, const WhileOptions& options, bool must_end);

}  // namespace tower

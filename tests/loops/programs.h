// A database of programs with loops, each of which can be run with Tower's loops or with loops as one writes them by
// hand. The latter ask for values, so they are right for one example and serve as the oracle for it.
#pragma once

#include <string>
#include <vector>

#include "tower/loops.h"

namespace loops {

using tower::dynamic::Tensors;

/// The loops that a program is written with.
struct Loops {
  using While = Tensors(const tower::dynamic::Predicate&, const tower::dynamic::Function&, const Tensors&);
  using Fori = Tensors(int64_t, int64_t, const tower::dynamic::ForiStep&, const Tensors&);
  using Scan = std::pair<Tensors, Tensors>(const tower::dynamic::ScanStep&, const Tensors&, const Tensors&,
                                           bool reverse);
  using Prefixes = Tensors(const tower::dynamic::Combine&, const Tensors&, bool reverse);
  using Call = Tensors(const tower::dynamic::Function&, const Tensors&);

  std::function<While> while_loop;
  std::function<Fori> fori_loop;
  std::function<Scan> scan;
  std::function<Prefixes> associative_scan;
  std::function<Call> checkpoint;
};

/// Both live forever.
const Loops& by_hand();
const Loops& by_tower();
/// Tower's, keeping few states; each number makes another one.
const Loops& by_tower(tower::Checkpoints few);

struct Program {
  std::string name;
  /// Float64 tensors in, float64 tensors out.
  Tensors (*run)(const Loops&, const Tensors& in);
  /// The shapes of one example's inputs.
  std::vector<std::vector<int64_t>> shapes;
};

const std::vector<Program>& programs();

}  // namespace loops

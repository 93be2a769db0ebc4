// Random programs (programs/program.h) that speak of named axes, under random nestings of transforms around and inside
// of the vmaps of these axes.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "mesh/programs.h"
#include "programs/program.h"

namespace mesh_programs {

/// Two named axes; where the examples of each are, and which part of them this process has.
struct World {
  std::array<tower::NamedExamples, 2> axes;
  std::array<Part, 2> parts;
};

/// How many examples the second axis has.
inline constexpr int64_t kInner = 3;

/// A tensor as all processes have it together, and along which of its dimensions each axis is spread: two, where a part
/// was differentiated by a part.
struct Value {
  std::vector<int64_t> sizes;
  std::array<std::vector<int64_t>, 2> spread = {};
  at::Tensor own(const at::Tensor& whole, const World& world) const;
};

/// A program that was drawn.
struct Drawn {
  std::string text;    ///< the program and the transforms
  bool mixes = false;  ///< a Jacobian of, or by, what is spread: across processes it is refused
  std::vector<Value> results;
  std::function<Tensors(const World&)> run;
};

/// The program of a seed; `spread`: how many of its axes are across processes, the first ones.
Drawn draw(uint64_t seed, size_t spread);

}  // namespace mesh_programs

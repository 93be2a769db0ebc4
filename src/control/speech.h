// Along which named axes the examples speak to each other while some code runs: the collectives that it calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <set>
#include <vector>

#include "core/in_force.h"
#include "tower/errors.h"

namespace tower::speech {

/// Numbers of vmaps, Vmap::axis().
using Axes = std::set<uint64_t>;

/// Hears the collectives of this thread while it lives, and so does each one around it.
class Listener {
 public:
  Listener();
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  /// Along which there were collectives.
  const Axes& axes() const { return axes_; }
  /// Along which tangents went through collectives.
  const Axes& axes_of_tangents() const { return axes_of_tangents_; }
  /// Whether an axis was asked for, be it for the number of an example.
  bool asked() const { return asked_; }
  static void note_collective(uint64_t axis);
  static void note_tangents(uint64_t axis);
  static void note_asked();

 private:
  Listener* around_;
  Axes axes_, axes_of_tangents_;
  bool asked_ = false;
};

/// No vmap of that name is running, seen or not.
class NoAxisError : public ArgumentError {
 public:
  using ArgumentError::ArgumentError;
};

/// Whether `t` differs along an axis that has a name, so that those whom it tells apart may speak to each other.
bool differs_along_a_named_axis(const at::Tensor& t);

/// A bool, and whether it holds for any of those whom an example hears along these axes, itself among them.
at::Tensor holds_for_one_heard(const at::Tensor& condition, const Axes& axes);

/// Whether there is a named axis in sight.
bool may_speak();

/// Numbers that were counted in this process's part of `of`, of all processes that it is spread over.
std::vector<int64_t> in_all_processes(const at::Tensor& of, std::vector<int64_t> counts);

/// Of each example the sum over those whom it hears along these axes, itself among them; and how many they are.
at::Tensor sum_of_all_heard(const at::Tensor& t, const Axes& axes);
int64_t number_heard(const Axes& axes);

/// While it lives, steps are made for a part of the examples: NOTE [Examples left out]. A collective then throws.
class LeavingOut : public InForce<LeavingOut> {};

}  // namespace tower::speech

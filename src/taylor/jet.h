// jet: every value carries its first K derivatives by the parameter of a curve that the arguments follow. An operator
// is run in an interpreter of series (taylor/growing.h), which lives as long as its call.
#pragma once

#include "core/level.h"
#include "core/wrapper.h"
#include "tower/taylor.h"

namespace tower::taylor {

class Jet final : public Level {
 public:
  Jet(const char* label, size_t order, Scaling scaling = Scaling::derivatives)
      : Level(Kind::jvp, label), order_(order), scaling_(scaling) {}

  void process(const Operator& op, Stack& stack) override;
  void took(Wrapper& w) override;

 private:
  size_t order_;
  Scaling scaling_;
};

}  // namespace tower::taylor

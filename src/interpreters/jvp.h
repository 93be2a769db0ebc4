// jvp: every value may carry its derivative along the direction that is being followed.
#pragma once

#include "core/level.h"
#include "core/wrapper.h"
#include "interpreters/history.h"

namespace tower {

class Jvp final : public Level {
 public:
  explicit Jvp(const char* label) : Level(Kind::jvp, label) {}

  void process(const Operator& op, Stack& stack) override;
  void took(Wrapper& w) override { History::show_untracked(w); }
};

}  // namespace tower

#include "numbers/thresholds.h"

namespace tower::compiler {

Thresholds& thresholds_to_measure() {
  static constinit Thresholds known;
  return known;
}

const Thresholds& thresholds() { return thresholds_to_measure(); }

}  // namespace tower::compiler

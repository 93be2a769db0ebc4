#include "numbers/thresholds.h"

namespace tower::compiler {
namespace {

constinit Thresholds in_use;

}  // namespace

const Thresholds& thresholds() { return in_use; }

OtherThresholds::OtherThresholds(const Thresholds& numbers) { in_use = numbers; }
OtherThresholds::~OtherThresholds() { in_use = {}; }

}  // namespace tower::compiler

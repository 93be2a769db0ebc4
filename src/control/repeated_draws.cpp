#include "control/repeated_draws.h"

#include "tower/errors.h"

namespace tower {

SharedDraws Draws::here(const dynamic::Tensors& operands) {
  SharedDraws draws;
  draws.note(operands);
  return draws;
}

void Draws::refuse(const char* who) {
  throw RandomnessError(std::string(who) +
                        ": its function draws random numbers and is run once for each example, because it reads "
                        "memory or values of single examples. Draw the numbers outside and pass them in.");
}

}  // namespace tower

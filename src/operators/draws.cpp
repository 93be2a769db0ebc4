#include "operators/draws.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>

#include "tower/errors.h"

namespace tower {

SharedDraws Draws::here(const dynamic::Tensors& operands) {
  SharedDraws draws;
  draws.note(at::globalContext().defaultGenerator(at::kCPU));
  for (const Tensor& t : operands)
    if (at::isAccelerator(t.device().type())) draws.note(at::globalContext().defaultGenerator(t.device()));
  return draws;
}

void Draws::refuse(const char* who) {
  throw RandomnessError(std::string(who) +
                        ": its function draws random numbers and is run once for each example, because it reads "
                        "memory or values of single examples. Draw the numbers outside and pass them in.");
}

}  // namespace tower

// The device for Python's tests (python/tests/conftest.py), by ctypes.
#include <ATen/Context.h>

#include "apart/apart.h"

extern "C" {

void apart_install() { apart::install(); }

void apart_manual_seed(uint64_t seed) {
  for (c10::DeviceIndex d = 0; d < apart::kDevices; ++d) {
    at::Generator generator = at::globalContext().defaultGenerator({c10::DeviceType::PrivateUse1, d});
    generator.set_current_seed(seed);
  }
}
}

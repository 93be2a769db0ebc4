#include "support/device.h"

#include <c10/util/Exception.h>

#include <cstdio>
#include <map>

namespace support {
namespace {

at::Device under_test = at::kCPU;

struct LeftOut {
  long calls = 0;
  std::string why;  // the first time
};
std::map<std::string, LeftOut>& left_out() {
  static std::map<std::string, LeftOut> all;
  return all;
}

}  // namespace

at::Device device() { return under_test; }
void set_device(at::Device device) { under_test = device; }

bool runs_on_device(const std::string& name, const std::function<void()>& plain_call) {
  if (device().is_cpu()) return true;
  try {
    plain_call();
    return true;
  } catch (const c10::Error& error) {
    LeftOut& entry = left_out()[name];
    if (entry.calls++ == 0) entry.why = error.what_without_backtrace();
    return false;
  }
}

void print_left_out() {
  if (device().is_cpu()) return;
  std::printf("on %s LibTorch lacks %zu operators, or some of their calls:\n", device().str().c_str(),
              left_out().size());
  for (const auto& [name, entry] : left_out())
    std::printf("  %s, %ld times: %s\n", name.c_str(), entry.calls, entry.why.substr(0, entry.why.find('\n')).c_str());
}

}  // namespace support

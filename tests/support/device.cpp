#include "support/device.h"

#include <c10/util/Exception.h>

#include <cstdio>
#include <cstdlib>
#include <map>

#include "apart/apart.h"

namespace support {
namespace {

at::Device opened(const char* name) {
  if (!name || !*name) return at::kCPU;
  if (std::string(name).starts_with("apart")) apart::install();
  at::Device device(name);
  if (!device.is_cpu() && !device.has_index()) device.set_index(0);
  return device;
}

struct LeftOut {
  long calls = 0;
  std::string why;  // the first time
};
std::map<std::string, LeftOut>& left_out() {
  static std::map<std::string, LeftOut> all;
  return all;
}
long ran = 0;

}  // namespace

at::Device device() {
  static const at::Device under_test = opened(std::getenv("TOWER_TEST_DEVICE"));
  return under_test;
}

bool runs_on_device(const std::string& name, const std::function<void()>& plain_call) {
  if (device().is_cpu()) return true;
  try {
    plain_call();
    ++ran;
    return true;
  } catch (const c10::Error& error) {
    LeftOut& entry = left_out()[name];
    if (entry.calls++ == 0) entry.why = error.what_without_backtrace();
    return false;
  }
}

long calls_left_out() {
  long calls = 0;
  for (const auto& [name, entry] : left_out()) calls += entry.calls;
  return calls;
}

void print_left_out() {
  if (device().is_cpu()) return;
  const long calls = calls_left_out();
  std::printf("on %s: %ld calls ran, %ld of %zu operators were left out, as LibTorch cannot run them there%s\n",
              device().str().c_str(), ran, calls, left_out().size(), calls ? ":" : "");
  for (const auto& [name, entry] : left_out())
    std::printf("  %s, %ld times: %s\n", name.c_str(), entry.calls, entry.why.substr(0, entry.why.find('\n')).c_str());
}

}  // namespace support

#include "support/device.h"

#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <map>

#include "apart/apart.h"
#include "apart/asserts.h"
#include "apart/values.h"

namespace support {
namespace {

bool given(const char* value) { return value && *value; }

// A backend's library registers its kernels. The device's name some libraries leave to their Python package.
void load_backend(const char* library, const std::string& device) {
  TORCH_CHECK(dlopen(library, RTLD_NOW | RTLD_GLOBAL), "TOWER_TEST_BACKEND: ", dlerror());
  if (!c10::is_privateuse1_backend_registered()) c10::register_privateuse1_backend(device.substr(0, device.find(':')));
}

at::Device opened(const char* name) {
  if (!given(name)) return at::kCPU;
  if (const char* library = std::getenv("TOWER_TEST_BACKEND"); given(library)) load_backend(library, name);
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
long ran = 0, wrong_values = 0;

c10::IValue on_cpu(const c10::IValue& v) {
  if (v.isDevice()) return at::Device(at::kCPU);
  return apart::with_tensors(v, [](const at::Tensor& t) { return t.defined() ? t.cpu() : t; });
}

}  // namespace

torch::jit::Stack on_cpu(const torch::jit::Stack& arguments) {
  torch::jit::Stack result;
  for (const c10::IValue& v : arguments) result.push_back(on_cpu(v));
  return result;
}

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
  } catch (const c10::OutOfMemoryError&) {
    throw;  // no property of the operator
  } catch (const c10::Error& error) {
    LeftOut& entry = left_out()[name];
    if (entry.calls++ == 0) entry.why = error.what_without_backtrace();
    return false;
  }
}

bool loses_device(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  if (device().is_cpu()) return false;
  const torch::jit::Stack there = on_cpu(arguments);
  try {
    torch::jit::Stack call = there;
    op.callBoxed(call);
    return false;
  } catch (const std::exception&) {
    const bool loses = apart::is_refused_for_values(op, there);
    wrong_values += loses;
    return loses;
  }
}

long calls_left_out() {
  long calls = wrong_values;
  for (const auto& [name, entry] : left_out()) calls += entry.calls;
  return calls;
}

void print_left_out() {
  if (device().is_cpu()) return;
  const long calls = calls_left_out() - wrong_values;
  std::printf(
      "on %s: %ld calls ran, %ld of %zu operators were left out, as LibTorch cannot run them there, and %ld with "
      "wrong values, which would lose a GPU%s\n",
      device().str().c_str(), ran, calls, left_out().size(), wrong_values, calls ? ":" : "");
  for (const auto& [name, entry] : left_out())
    std::printf("  %s, %ld times: %s\n", name.c_str(), entry.calls, entry.why.substr(0, entry.why.find('\n')).c_str());
}

}  // namespace support

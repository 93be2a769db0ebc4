#include "support/watch.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "support/device.h"

namespace support {
namespace {

constexpr int kLost = 70;

std::string said_when_waited_for() {
  try {
    c10::impl::VirtualGuardImpl(device().type()).synchronizeDevice(device().index());
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return {};
}

// Memory of the device that something on the CPU reads ends the process: the test's name is worth knowing.
std::string running = "none";
extern "C" void say_which_test(int signal) {
  std::fprintf(stderr, "signal %d in %s\n", signal, running.c_str());
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

class Watch : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    running = std::string(test.test_suite_name()) + "." + test.name();
  }
  void OnTestEnd(const testing::TestInfo&) override {
    const std::string said = what_the_device_says_after(running);
    EXPECT_EQ(said, "") << "said late";
  }
};

}  // namespace

std::string what_the_device_says_after(const std::string& test) {
  const std::string said = said_when_waited_for();
  if (said.empty() || said_when_waited_for().empty()) return said;
  print_left_out();
  std::fflush(stdout);
  std::fprintf(stderr, "%s lost the device: %s\n", test.c_str(), said.c_str());
  std::_Exit(kLost);
}

void watch_device() {
  if (device().is_cpu()) return;
  testing::UnitTest::GetInstance()->listeners().Append(new Watch);
  std::signal(SIGSEGV, say_which_test);
}

}  // namespace support

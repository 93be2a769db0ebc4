// Runs every test of Tower: the ordinary ones, the matrix of operators × transforms (matrix.h), how results lie in
// memory (layout.h), and decompositions against their operators (decompositions.h). TOWER_TEST_DEVICE says on which
// device (support/device.h).
#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "custom_ops/database.h"
#include "decompositions/decompositions.h"
#include "matrix/layout.h"
#include "matrix/matrix.h"
#include "support/device.h"
#include "support/warnings.h"

namespace {

// The first tanh that LibTorch runs on several threads in a process was seen to be off by 4e-5 in one thread's part.
void warm_up() { at::tanh(at::randn({1 << 16})); }

// Memory of the device that something on the CPU reads ends the process: the test's name is worth knowing.
const char* running = "none";
class NamesTheRunning : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    name_ = std::string(test.test_suite_name()) + "." + test.name();
    running = name_.c_str();
  }
  std::string name_;
};
extern "C" void say_which_test(int signal) {
  std::fprintf(stderr, "signal %d in %s\n", signal, running);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

int main(int argc, char** argv) {
  warm_up();
  testing::InitGoogleTest(&argc, argv);
  support::fail_where_kernels_are_refused();
  if (!support::device().is_cpu()) {
    testing::UnitTest::GetInstance()->listeners().Append(new NamesTheRunning);
    std::signal(SIGSEGV, say_which_test);
  }
  const char* folder = std::getenv("TOWER_OP_DB");
  matrix::register_tests(folder != nullptr ? folder : TOWER_OP_DB_DIR);
  matrix::register_layout_test(folder != nullptr ? folder : TOWER_OP_DB_DIR);
  decompositions::register_tests(folder != nullptr ? folder : TOWER_OP_DB_DIR);
  custom_ops::define();
  if (folder == nullptr) matrix::register_tests(TOWER_CUSTOM_OPS_DIR);
  const int result = RUN_ALL_TESTS();
  matrix::print_totals();
  support::print_left_out();
  return result;
}

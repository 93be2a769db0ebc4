// Runs every test of Tower: the ordinary ones, the matrix of operators × transforms (matrix.h), how results lie in
// memory (layout.h), decompositions against their operators (decompositions.h), and calls that throw (wrong_calls.h).
// TOWER_TEST_DEVICE says on which device (support/device.h). With --batches: support/batches.h.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "custom_ops/database.h"
#include "decompositions/decompositions.h"
#include "matrix/layout.h"
#include "matrix/matrix.h"
#include "matrix/wrong_calls.h"
#include "support/batches.h"
#include "support/device.h"
#include "support/warnings.h"
#include "support/watch.h"

namespace {

// The first tanh that LibTorch runs on several threads in a process was seen to be off by 4e-5 in one thread's part.
void warm_up() { at::tanh(at::randn({1 << 16})); }

// What a test draws does not depend on those before it, nor on the day.
class SeedsEach : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override { at::manual_seed(0); }
};

const int threads = at::get_num_threads();

int run() {
  at::set_num_threads(threads);
  warm_up();
  const int result = RUN_ALL_TESTS();
  matrix::print_totals();
  support::print_left_out();
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const bool batches = support::take_batches(argc, argv);
  if (batches) at::set_num_threads(1);  // none are to be there when it forks
  testing::InitGoogleTest(&argc, argv);
  support::fail_where_kernels_are_refused();
  support::watch_device();
  testing::UnitTest::GetInstance()->listeners().Append(new SeedsEach);
  const char* folder = std::getenv("TOWER_OP_DB");
  matrix::register_tests(folder != nullptr ? folder : TOWER_OP_DB_DIR);
  matrix::register_layout_test(folder != nullptr ? folder : TOWER_OP_DB_DIR);
  decompositions::register_tests(folder != nullptr ? folder : TOWER_OP_DB_DIR);
  wrong_calls::register_tests(folder != nullptr ? folder : TOWER_OP_DB_DIR);
  custom_ops::define();
  if (folder == nullptr) matrix::register_tests(TOWER_CUSTOM_OPS_DIR);
  return batches && !testing::GTEST_FLAG(list_tests) ? support::run_batches(run) : run();
}

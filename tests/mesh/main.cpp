// Runs the tests of named axes and of processes, which are forked from this one: it starts no threads. Says how many
// results of several processes were compared with those of one.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <iostream>

#include "mesh/harness.h"
#include "support/warnings.h"
#include "support/watch.h"

int main(int argc, char** argv) {
  at::set_num_threads(1);
  testing::InitGoogleTest(&argc, argv);
  support::fail_where_kernels_are_refused();
  support::watch_device();
  const int status = RUN_ALL_TESTS();
  std::cout << processes::comparisons() << " results of programs across processes were compared with those of one\n";
  return status;
}

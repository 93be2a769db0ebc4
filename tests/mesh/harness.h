// Tests of several processes: a function that each of them runs, on the loopback interface, with a time limit.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "tower/mesh.h"

namespace processes {

struct Ended {
  int status = -1;      ///< what it exited with; -1: a signal ended it
  int signal = 0;       ///< that ended it, if one did
  bool in_time = true;  ///< or the harness killed it
  double seconds = 0;   ///< until it ended
  std::string said;     ///< on standard output and error
};

/// By a process: that one of its results was compared with that of one process.
void count_comparison();
/// How many all processes of all tests counted.
int64_t comparisons();

/// Whether a mesh of processes can be made here.
bool can_start();

/// Forks `count` processes with torchrun's environment, which run `body` and exit: with 0, with 1 if an expectation
/// failed there, or with 2 after an exception. The test's own process starts no threads, so that it can be forked.
std::vector<Ended> start(int count, const std::function<void(int rank)>& body,
                         std::chrono::seconds limit = std::chrono::seconds(30));

/// Expects all of them to have ended well.
void expect_well(const std::vector<Ended>& ended);
void expect_all(int count, const std::function<void(int rank)>& body);

/// One axis "data" over all processes, with a timeout for tests of faults.
tower::Mesh mesh_of_all(bool check = false);

/// Whether something went well in all processes of a mesh. False, too, where it is of no more use: all of them then
/// make another.
bool all_went_well(const tower::Mesh& mesh, bool here);

}  // namespace processes

#include "support/batches.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

namespace support {

bool take_batches(int& argc, char** argv) {
  char** const end = argv + argc;
  char** const kept = std::remove_if(argv, end, [](std::string_view argument) { return argument == "--batches"; });
  argc = static_cast<int>(kept - argv);
  return kept != end;
}

int run_batches(int (*run)()) {
  std::string filter;
  while (std::getline(std::cin, filter)) {
    const pid_t child = fork();
    if (child == 0) {
      GTEST_FLAG_SET(filter, filter);
      std::exit(run());
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) {
      std::perror("a process for tests");
      return 1;
    }
    std::cout << "[ ENDED    ] " << (WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status)) << std::endl;
  }
  return 0;
}

}  // namespace support

// A program of tests that script/in_processes begins once, for what it reads before its first test is worth a test or
// two.
#pragma once

#include <string_view>

namespace support {

/// Takes `--batches` out of the arguments; whether it was there.
bool take_batches(int& argc, char** argv);

/// Calls `run` for each line of the standard input, a filter of GoogleTest's, in a process that is forked from this
/// one, which is to have no threads. After each a line `[ ENDED    ] N`: the process's exit status, or, of one that a
/// signal ended, the signal's number with a minus.
int run_batches(int (*run)());

}  // namespace support

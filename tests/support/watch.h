// What a suite's main adds for a device that is not the CPU (support/device.h): such a device fails late, and some of
// its failures are for good.
#pragma once

#include <string>

namespace support {

/// Waits for the device and returns what it says of its work: nothing, if all went well. Where it says so for ever, as
/// a GPU after a kernel that failed, the process ends, naming the test: to the tests after it, every call would be one
/// that LibTorch cannot run there.
std::string what_the_device_says_after(const std::string& test);

/// After every test, what the device says is a failure of that test; and a crash names the test. On the CPU, nothing.
void watch_device();

}  // namespace support

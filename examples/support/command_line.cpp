#include "support/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <utility>

namespace support {
namespace {

template <class T>
void add(CLI::App& app, const std::string& option, T& value, const std::string& what, const Range& range) {
  CLI::Option* const added = app.add_option(option, value, what)->capture_default_str();
  if (range.is_stated()) added->check(CLI::Range(range.least, range.most));
}

}  // namespace

CommandLine::CommandLine(std::string name, const std::string& what)
    : name_(std::move(name)), app_(std::make_unique<CLI::App>(what)) {}
CommandLine::~CommandLine() = default;

CommandLine& CommandLine::option(const std::string& option, int64_t& value, const std::string& what, Range range) {
  add(*app_, option, value, what, range);
  return *this;
}

CommandLine& CommandLine::option(const std::string& option, double& value, const std::string& what, Range range) {
  add(*app_, option, value, what, range);
  return *this;
}

CommandLine& CommandLine::option(const std::string& option, std::string& value, const std::string& what) {
  app_->add_option(option, value, what)->capture_default_str();
  return *this;
}

CommandLine& CommandLine::flag(const std::string& option, bool& value, const std::string& what) {
  app_->add_flag(option, value, what);
  return *this;
}

int CommandLine::run(int argc, char** argv, const std::function<int()>& example) {
  CLI11_PARSE(*app_, argc, argv);
  try {
    return example();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", name_, error.what());
    return 1;
  }
}

}  // namespace support

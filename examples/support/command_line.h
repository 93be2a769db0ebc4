// What an example's main does: it reads options, runs the example, and says what went wrong.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>

namespace CLI {
class App;
}

namespace support {

/// The numbers that an option takes: all, where nothing is stated.
struct Range {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool is_stated() const { return least > -std::numeric_limits<double>::infinity() || most < -least; }
};

/// The options of an example, of which each has a variable: what it holds is the default. The library that reads them
/// is included by one file, and not by each example.
class CommandLine {
 public:
  /// `name` is the program's, and `what` it does in one line.
  CommandLine(std::string name, const std::string& what);
  ~CommandLine();

  CommandLine& option(const std::string& option, int64_t& value, const std::string& what, Range range = {});
  CommandLine& option(const std::string& option, double& value, const std::string& what, Range range = {});
  CommandLine& option(const std::string& option, std::string& value, const std::string& what);
  CommandLine& flag(const std::string& option, bool& value, const std::string& what);

  /// Reads the command line, runs `example`, and returns the program's exit status: that of `example`, or 1 with a
  /// message where it throws.
  int run(int argc, char** argv, const std::function<int()>& example);

 private:
  std::string name_;
  std::unique_ptr<CLI::App> app_;
};

}  // namespace support

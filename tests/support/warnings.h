// What is warned of while a Warnings lives; and warnings of defects, which fail the test that runs.
#pragma once

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace support {

class Warnings final : public c10::WarningHandler {
 public:
  std::vector<std::string> texts;

 private:
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

/// The thread's handler from now on. A kernel that was printed and then refused is a defect, though what is computed
/// without it is right.
inline void fail_where_kernels_are_refused() {
  class Handler final : public c10::WarningHandler {
    void process(const c10::Warning& warning) override {
      const std::string& text = warning.msg();
      const std::string refused = "operator by operator, not as machine code: ";
      const size_t at = text.find(refused);
      if (at == std::string::npos || text.compare(at + refused.size(), 7, "no LLVM") == 0)
        c10::WarningHandler::process(warning);
      else ADD_FAILURE() << text;
    }
  };
  static Handler handler;
  c10::WarningUtils::set_warning_handler(&handler);
}

}  // namespace support

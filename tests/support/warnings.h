// What is warned of while one of these lives.
#pragma once

#include <c10/util/Exception.h>

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

}  // namespace support

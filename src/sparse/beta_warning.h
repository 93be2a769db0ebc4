// LibTorch warns of the first compressed sparse tensor of a process that their support is in beta state. Who asked
// Tower for a Jacobian did not choose how its entries are kept, and can do nothing about it.
#pragma once

#include <c10/util/Exception.h>

#include <string_view>

namespace tower::sparse {

/// While it lives, that warning does not reach the thread's handler; all others do.
class NoBetaWarning final : public c10::WarningHandler {
 public:
  NoBetaWarning() = default;
  NoBetaWarning(const NoBetaWarning&) = delete;
  NoBetaWarning& operator=(const NoBetaWarning&) = delete;

 private:
  void process(const c10::Warning& warning) override {
    if (std::string_view(warning.msg()).find("support is in beta state") == std::string_view::npos)
      outer_->process(warning);
  }

  c10::WarningHandler* outer_ = c10::WarningUtils::get_warning_handler();
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

}  // namespace tower::sparse

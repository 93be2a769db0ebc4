#include "tower/detail/foreign_frame.h"

#include <utility>

namespace tower::detail {
namespace {

thread_local ForeignFrame* innermost = nullptr;

}  // namespace

ForeignFrame::ForeignFrame() : outer_(innermost) { innermost = this; }
ForeignFrame::~ForeignFrame() {
  innermost = outer_;
  if (!outer_) return;
  outer_->refusal_ |= refusal_;
  if (!outer_->lost_) outer_->lost_ = std::move(lost_);
}

void ForeignFrame::note_refusal() {
  if (innermost) innermost->refusal_ = true;
}

void ForeignFrame::note(std::exception_ptr error) {
  if (innermost) innermost->lost_ = std::move(error);
}

void ForeignFrame::find_again(std::string_view text) const {
  try {
    std::rethrow_exception(lost_);
  } catch (const std::exception& error) {
    if (text != error.what()) return;
    if (outer_) outer_->lost_ = lost_;  // on its way out it may become a text once more
    throw;
  }
}

}  // namespace tower::detail

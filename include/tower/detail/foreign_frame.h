// Code of another language between Tower's: its frames make a text of an exception that passes through them. One kind
// must keep more than that: an operator that met a tensor which its function had captured says which one, so that the
// tensor becomes an operand (operators/higher_order.cpp).
#pragma once

#include <exception>
#include <string_view>

namespace tower::detail {

/// Such a stretch of code on this thread, while it is alive. A binding makes one around a call of the user's function
/// and, where that fails, asks for what was lost.
class ForeignFrame {
 public:
  ForeignFrame();
  ForeignFrame(const ForeignFrame&) = delete;
  ForeignFrame& operator=(const ForeignFrame&) = delete;
  ~ForeignFrame();

  bool has_lost() const { return static_cast<bool>(lost_); }
  /// Whether an operator of LibTorch's refused a batch in it.
  bool has_refusal() const { return refusal_; }
  static void note_refusal();
  /// Throws the exception that became an error with this text, if there is one.
  void find_again(std::string_view text) const;

  /// Throws `error`, which may become a text.
  template <class E>
  [[noreturn]] static void raise(E error) {
    note(std::make_exception_ptr(error));
    throw error;
  }

 private:
  static void note(std::exception_ptr error);

  ForeignFrame* outer_;
  std::exception_ptr lost_;
  bool refusal_ = false;
};

}  // namespace tower::detail

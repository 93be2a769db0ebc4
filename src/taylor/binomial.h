// The factors of Leibniz' rule.
#pragma once

#include <cstddef>

namespace tower::taylor {

/// k over i, for i from 0 on.
class Binomial {
 public:
  explicit Binomial(std::size_t k) : k_(k) {}
  double operator*() const { return value_; }
  void operator++() {
    value_ = value_ * static_cast<double>(k_ - i_) / static_cast<double>(i_ + 1);
    ++i_;
  }

 private:
  std::size_t k_, i_ = 0;
  double value_ = 1;
};

}  // namespace tower::taylor

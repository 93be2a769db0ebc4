// Where bind reports calls to, if somebody listens (tower/explain.h).
#pragma once

#include <chrono>

#include "core/operator.h"

namespace tower {

class CallRecorder {
 public:
  virtual ~CallRecorder() = default;
  virtual void record(const Operator& op, const Level* level, std::chrono::nanoseconds time) = 0;
};

/// Times one call, and reports it when it ends without an exception.
class RecordedCall {
 public:
  RecordedCall(CallRecorder& recorder, const Operator& op, const Level* level)
      : recorder_(recorder), op_(op), level_(level), start_(std::chrono::steady_clock::now()) {}
  void done() { recorder_.record(op_, level_, std::chrono::steady_clock::now() - start_); }

 private:
  CallRecorder& recorder_;
  const Operator& op_;
  const Level* level_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace tower

#include "core/torchscript.h"

#include <torch/csrc/jit/python/update_graph_executor_opt.h>
#include <torch/csrc/jit/runtime/interpreter.h>

namespace tower {

constinit thread_local bool saves_for_torchscript = false;

namespace {
thread_local int entered = 0;
thread_local bool optimized_outside = true;
}  // namespace

void enter_torchscript_as_written() {
  if (entered++ > 0) return;
  optimized_outside = torch::jit::getGraphExecutorOptimize();
  torch::jit::setGraphExecutorOptimize(false);
}

void leave_torchscript_as_written() {
  if (--entered > 0) return;
  torch::jit::setGraphExecutorOptimize(optimized_outside);
  saves_for_torchscript = false;
}

// The operators of a function come from its source. A differentiable graph was made from several, and comes from none.
bool in_differentiable_graph() {
  const auto calls = torch::jit::currentCallstack();
  if (calls.empty() || calls.front().range.source()) return false;
  saves_for_torchscript = true;
  return true;
}

}  // namespace tower

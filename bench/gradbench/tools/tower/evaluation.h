// What the programs of all evaluations share: GradBench's protocol for tools in C++. A program is called as
//
//   ba input.json jacobian
//
// and writes the output as JSON in a line, and then a line for each timing: one `prepare`, in which functions are
// compiled, and an `evaluate` for each run, of which there are at least `min_runs`, and enough for `min_seconds`.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gradbench {

using at::Tensor;
using nlohmann::json;

/// A function that is timed, and made ready for its input before. `compute` makes the whole output, and leaves it in
/// memory where `output` finds it; `report` says what its compiled functions became.
struct Evaluation {
  std::function<void()> compute;
  std::function<json()> output;
  std::function<std::string()> report;
};
/// Makes an evaluation of an input.
using Prepare = std::function<Evaluation(const json& input)>;

/// A function that calls compiled ones, and what tells of these.
template <class F>
struct Plain {
  Plain(F f, std::function<std::string()> report_) : function(std::move(f)), report(std::move(report_)) {}
  template <class... Args>
  auto operator()(const Args&... args) const {
    return function(args...);
  }
  F function;
  std::function<std::string()> report;
};

/// A compiled function, the tensors that it is called with, and what of its result is the output.
template <class F, class ToJson, class... Args>
Evaluation evaluation(F compiled, ToJson to_json, Args... args) {
  using Result = decltype(compiled(args...));
  const auto result = std::make_shared<Result>();
  return {[=] { *result = compiled(args...); }, [=] { return json(to_json(*result)); },
          [=] { return compiled.report(); }};
}

/// Numbers, lists of numbers, … as float64.
Tensor tensor(const json& numbers);
/// Whole numbers, lists of them, … as int64.
Tensor indices(const json& numbers);
/// The other way, for a tensor of float64 or int64.
json as_json(const Tensor& tensor);

/// The main function of a program that has these functions.
int program(int argc, char** argv, const std::map<std::string, Prepare>& functions);

}  // namespace gradbench

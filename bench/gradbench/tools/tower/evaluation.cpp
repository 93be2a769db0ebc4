#include "evaluation.h"

#include <ATen/Parallel.h>
#include <ATen/ops/tensor.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>

#include "calls.h"

namespace gradbench {
namespace {

template <class T>
void flatten(const json& numbers, std::vector<T>& elements) {
  if (!numbers.is_array()) return elements.push_back(numbers.get<T>());
  for (const json& part : numbers) flatten(part, elements);
}

template <class T>
Tensor dense(const json& numbers) {
  std::vector<T> elements;
  flatten(numbers, elements);
  std::vector<int64_t> sizes;
  for (const json* part = &numbers; part->is_array(); part = &part->front()) {
    sizes.push_back(static_cast<int64_t>(part->size()));
    if (part->empty()) break;
  }
  return at::tensor(elements, c10::CppTypeToScalarType<T>::value).view(sizes);
}

template <class T>
json nested(const Tensor& tensor) {
  if (tensor.dim() == 0) return *tensor.const_data_ptr<T>();
  json list = json::array();
  if (tensor.dim() == 1) {
    for (int64_t i = 0; i < tensor.size(0); ++i) list.push_back(tensor.const_data_ptr<T>()[i]);
  } else {
    for (int64_t i = 0; i < tensor.size(0); ++i) list.push_back(nested<T>(tensor.select(0, i)));
  }
  return list;
}

using Clock = std::chrono::steady_clock;

int64_t nanoseconds_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

void print_timing(const char* name, int64_t nanoseconds) {
  std::cout << json{{"name", name}, {"nanoseconds", nanoseconds}} << '\n';
}

void run(const std::string& file, const Prepare& prepare) {
  std::ifstream stream(file);
  const json input = json::parse(stream);
  const int64_t min_runs = input.value("min_runs", 1);
  const double min_seconds = input.value("min_seconds", 0.0);

  const auto start = Clock::now();
  const Evaluation evaluation = prepare(input);
  // A compiled function traces in its first call and makes machine code in its second; the third has it.
  for (int call = 0; call < 3; ++call) evaluation.compute();
  const int64_t prepared = nanoseconds_since(start);

  std::vector<int64_t> times;
  for (double elapsed = 0; static_cast<int64_t>(times.size()) < min_runs || elapsed < min_seconds;) {
    const auto before = Clock::now();
    evaluation.compute();
    times.push_back(nanoseconds_since(before));
    elapsed += static_cast<double>(times.back()) / 1e9;
  }
  std::cout << evaluation.output() << '\n';
  print_timing("prepare", prepared);
  for (const int64_t time : times) print_timing("evaluate", time);
  if (std::getenv("GRADBENCH_REPORT") != nullptr)
    std::cerr << evaluation.report() << "\n" << calls_left(evaluation.compute);
}

}  // namespace

Tensor tensor(const json& numbers) { return dense<double>(numbers); }
Tensor indices(const json& numbers) { return dense<int64_t>(numbers); }

json as_json(const Tensor& tensor) {
  const Tensor whole = tensor.contiguous();
  return whole.scalar_type() == at::kLong ? nested<int64_t>(whole) : nested<double>(whole);
}

int program(int argc, char** argv, const std::map<std::string, Prepare>& functions) try {
  const auto found = argc == 3 ? functions.find(argv[2]) : functions.end();
  if (found == functions.end()) {
    std::cerr << "usage: " << argv[0] << " FILE FUNCTION, where FUNCTION is one of";
    for (const auto& [name, function] : functions) std::cerr << ' ' << name;
    std::cerr << '\n';
    return EXIT_FAILURE;
  }
#ifndef GRADBENCH_MULTITHREADED
  at::set_num_threads(1);
#endif
  run(argv[1], found->second);
  return EXIT_SUCCESS;
} catch (const std::exception& error) {
  std::cerr << argv[0] << ": " << error.what() << '\n';
  return EXIT_FAILURE;
}

}  // namespace gradbench

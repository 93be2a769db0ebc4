// The square of a number, and its derivative: 2x.
#include <tower/tower.h>

#include "evaluation.h"

using at::Tensor;

namespace {

Tensor square(const Tensor& x) { return x * x; }

}  // namespace

int main(int argc, char** argv) {
  using namespace gradbench;
  return program(
      argc, argv,
      {{"square", [](const json& x) { return evaluation(tower::compile(square), as_json, tensor(x)); }},
       {"double", [](const json& x) { return evaluation(tower::compile(tower::grad(square)), as_json, tensor(x)); }}});
}

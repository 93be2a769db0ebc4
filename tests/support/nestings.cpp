#include "support/nestings.h"

#include <algorithm>

#include "support/functions.h"
#include "support/stacked.h"

namespace support {

using tower::dynamic::Dims;
using tower::dynamic::Function;
using TensorList = tower::dynamic::Tensors;

namespace {

Function looped_over_examples(const Function& f) {
  return [f](const TensorList& in) {
    std::vector<TensorList> all;
    for (int64_t i = 0; i < kExamples; ++i) {
      TensorList example;
      for (const at::Tensor& t : in) example.push_back(t[i]);
      all.push_back(f(example));
    }
    return stacked(all);
  };
}

}  // namespace

std::vector<std::string> nestings() {
  std::vector<std::string> all;
  for (const char a : std::string("vjr"))
    for (const char b : std::string("vjr"))
      for (const char c : std::string("vjr")) all.push_back({a, b, c});
  return all;
}

TensorList directions(const TensorList& like, double phase) {
  TensorList result;
  for (const at::Tensor& t : like) result.push_back(waves(t.sizes(), phase + static_cast<double>(result.size())));
  return result;
}

Function transformed(const std::string& kinds, Function f, bool by_loop) {
  for (auto kind = kinds.rbegin(); kind != kinds.rend(); ++kind) {
    const double phase = static_cast<double>(kind - kinds.rbegin());
    if (*kind == 'v') {
      f = by_loop ? looped_over_examples(f)
                  : [f](const TensorList& in) { return tower::dynamic::vmap(f, Dims(in.size(), 0), {0})(in); };
    } else if (*kind == 'j') {
      f = [f, phase](const TensorList& in) { return tower::dynamic::jvp(f, in, directions(in, phase)).second; };
    } else {
      f = [f, phase](const TensorList& in) {
        const auto [outs, pullback] = tower::dynamic::vjp(f, in);
        return pullback(directions(outs, phase + 0.5));
      };
    }
  }
  return f;
}

TensorList inputs_of(const std::vector<std::vector<int64_t>>& shapes, const std::string& kinds) {
  TensorList inputs;
  for (std::vector<int64_t> shape : shapes) {
    shape.insert(shape.begin(), static_cast<size_t>(std::count(kinds.begin(), kinds.end(), 'v')), kExamples);
    inputs.push_back(waves(shape, 0.7 * static_cast<double>(inputs.size()) + 0.1));
  }
  return inputs;
}

}  // namespace support

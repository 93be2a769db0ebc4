#include "op_db/tensor_spec.h"

#include <ATen/ops/add.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <functional>
#include <limits>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>

#include "support/device.h"

namespace op_db {
namespace {

const std::set<std::string> kDomains = {"pos", "unit", "prob", "gt1",  "away", "frac", "distinct", "ints",
                                        "nan", "well", "spd",  "tril", "triu", "herm", "perm",     "sorted"};
const std::set<std::string> kLayouts = {"t", "nc", "cl", "rev"};

double uniform(std::mt19937_64& random, double low, double high) {
  return low + (high - low) * (static_cast<double>(random() >> 11) * 0x1.0p-53);
}

using Draw = std::function<double(std::mt19937_64&)>;

at::Tensor filled(at::IntArrayRef sizes, std::mt19937_64& random, const Draw& draw) {
  at::Tensor result = at::empty(sizes, at::kDouble);
  auto* data = result.mutable_data_ptr<double>();
  for (int64_t i = 0; i < result.numel(); ++i) data[i] = draw(random);
  return result;
}

// 0, 0.4, 0.8, … in random order and shifted to be centred, with a jitter of at most 0.1.
at::Tensor distinct(at::IntArrayRef sizes, std::mt19937_64& random) {
  at::Tensor result = at::empty(sizes, at::kDouble);
  auto* data = result.mutable_data_ptr<double>();
  const int64_t count = result.numel();
  for (int64_t i = 0; i < count; ++i) data[i] = 0.4 * static_cast<double>(i) - 0.2 * static_cast<double>(count) + 0.17;
  for (int64_t i = count - 1; i > 0; --i) std::swap(data[i], data[random() % static_cast<uint64_t>(i + 1)]);
  for (int64_t i = 0; i < count; ++i) data[i] += uniform(random, -0.1, 0.1);
  return result;
}

// Multiples of 1/2 are the kinks of round, floor, ceil, trunc and frac; keep 0.1 away from all of them.
double between_half_integers(std::mt19937_64& random) {
  const auto cell = static_cast<double>(static_cast<int64_t>(random() % 8) - 4);
  return 0.5 * cell + uniform(random, 0.1, 0.4);
}

Draw draw_for(const TensorSpec& spec) {
  if (spec.range) return [range = *spec.range](auto& random) { return uniform(random, range.first, range.second); };
  const std::string& domain = spec.domain;
  if (domain == "pos") return [](auto& random) { return uniform(random, 0.3, 2.0); };
  if (domain == "unit") return [](auto& random) { return uniform(random, -0.85, 0.85); };
  if (domain == "prob") return [](auto& random) { return uniform(random, 0.1, 0.9); };
  if (domain == "gt1") return [](auto& random) { return uniform(random, 1.2, 3.0); };
  if (domain == "frac") return between_half_integers;
  if (domain == "ints") return [](auto& random) { return static_cast<double>(static_cast<int64_t>(random() % 7) - 3); };
  if (domain == "away")
    return [](auto& random) { return uniform(random, 0.3, 2.0) * ((random() >> 20) % 2 == 0 ? 1.0 : -1.0); };
  return [](auto& random) { return uniform(random, -1.5, 1.5); };
}

at::Tensor with_parts(at::Tensor real, at::Tensor imaginary, bool is_complex) {
  return is_complex ? at::complex(real, imaginary) : real;
}

// Square matrices whose inverse, factors and eigenvalues are harmless to differentiate.
at::Tensor matrices(const TensorSpec& spec, bool is_complex, std::mt19937_64& random) {
  const Draw small = [](auto& r) { return uniform(r, -0.4, 0.4); };
  at::Tensor imaginary = filled(spec.sizes, random, small);
  at::Tensor x = with_parts(filled(spec.sizes, random, small), std::move(imaginary), is_complex);
  const int64_t n = std::min(spec.sizes.at(spec.sizes.size() - 2), spec.sizes.back());
  std::vector<double> diagonal;
  for (int64_t i = 0; i < n; ++i) diagonal.push_back(1.5 + 0.9 * static_cast<double>(i) + uniform(random, -0.1, 0.1));
  for (int64_t i = 0; i < n; ++i) x.select(-1, i).select(-1, i).add_(diagonal[static_cast<size_t>(i)]);
  if (spec.domain == "tril") return x.tril();
  if (spec.domain == "triu") return x.triu();
  if (spec.domain == "spd") return at::matmul(x, x.mH());
  if (spec.domain == "herm") return at::add(x, x.mH()).mul(0.5);
  return x;
}

at::Tensor integers(const TensorSpec& spec, std::mt19937_64& random) {
  at::Tensor result = at::empty(spec.sizes, at::kLong);
  const auto [low, high] = spec.range.value_or(std::make_pair(0.0, 2.0));
  const auto span = static_cast<uint64_t>(high - low);
  auto* data = result.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < result.numel(); ++i) {
    data[i] = static_cast<int64_t>(low) + static_cast<int64_t>((random() >> 20) % std::max<uint64_t>(span, 1));
  }
  if (spec.domain == "perm") return at::argsort(filled(spec.sizes, random, draw_for({})), false, -1, false);
  if (spec.domain == "sorted") return std::get<0>(result.sort(-1));
  return result;
}

at::Tensor values(const TensorSpec& spec, at::ScalarType dtype, uint64_t seed) {
  std::mt19937_64 random(seed);
  if (spec.kind == 'I' || spec.kind == 'B') return integers(spec, random).to(dtype);
  const bool is_complex = at::isComplexType(dtype);
  const std::string& domain = spec.domain;
  at::Tensor result;
  if (domain == "well" || domain == "spd" || domain == "tril" || domain == "triu" || domain == "herm") {
    result = matrices(spec, is_complex, random);
  } else if (domain == "distinct" || domain == "nan") {
    at::Tensor real = distinct(spec.sizes, random);
    if (domain == "nan") {
      auto* data = real.mutable_data_ptr<double>();
      for (int64_t i = 1; i < real.numel(); i += 3) data[i] = std::numeric_limits<double>::quiet_NaN();
    }
    result = with_parts(real, distinct(spec.sizes, random), is_complex);
  } else {
    at::Tensor real = filled(spec.sizes, random, draw_for(spec));
    TensorSpec imaginary = spec;
    if (domain != "away" && domain != "frac") {
      imaginary.domain = "unit";
      imaginary.range.reset();
    }
    result = with_parts(real, filled(spec.sizes, random, draw_for(imaginary)), is_complex);
    if (domain == "sorted") result = std::get<0>(result.sort(-1));
  }
  return result.to(dtype);
}

at::Tensor laid_out(const at::Tensor& value, const std::string& layout) {
  const int64_t rank = value.dim();
  if (layout.empty() || rank == 0) return value;
  if (layout == "t") return rank < 2 ? value : value.transpose(-1, -2).contiguous().transpose(-1, -2);
  if (layout == "cl")
    return value.contiguous(rank == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast);
  if (layout == "rev") {
    std::vector<int64_t> order;
    for (int64_t i = rank - 1; i >= 0; --i) order.push_back(i);
    return value.permute(order).contiguous().permute(order);
  }
  auto sizes = value.sizes().vec();
  sizes.back() = 2 * sizes.back() + 1;
  at::Tensor wide = at::zeros(sizes, value.options());
  at::Tensor view = wide.narrow(-1, 1, sizes.back() - 1).unfold(-1, 1, 2).squeeze(-1);
  return view.copy_(value);
}

}  // namespace

at::ScalarType TensorSpec::dtype_under(at::ScalarType tested) const {
  if (dtype) return *dtype;
  if (kind == 'I') return at::kLong;
  if (kind == 'B') return at::kBool;
  if (kind == 'C') return at::toComplexType(tested);
  if (kind == 'R') return at::toRealValueType(tested);
  return tested;
}

TensorSpec parse_tensor_spec(const std::string& text) {
  const auto fail = [&](const std::string& why) { throw std::runtime_error("tensor spec '" + text + "': " + why); };
  TensorSpec spec;
  spec.kind = text.at(0);
  const auto open = text.find('{');
  const auto close = text.find('}');
  if (open != 1 || close == std::string::npos) fail("expected KIND{sizes}");
  std::istringstream sizes(text.substr(2, close - 2));
  for (std::string part; std::getline(sizes, part, ',');) spec.sizes.push_back(std::stoll(part));
  std::istringstream modifiers(text.substr(close + 1));
  for (std::string part; std::getline(modifiers, part, ':');) {
    if (part.empty()) continue;
    const auto dots = part.find("..");
    if (dots != std::string::npos) {
      spec.range = {std::stod(part.substr(0, dots)), std::stod(part.substr(dots + 2))};
    } else if (kDomains.count(part) != 0) {
      spec.domain = part;
    } else if (kLayouts.count(part) != 0) {
      spec.layout = part;
    } else if (part == "const") {
      spec.constant = true;
    } else if (part == "within") {
      spec.within = true;
    } else if (part == "nomap") {
      spec.unmapped = true;
    } else if (part == "f32") {
      spec.dtype = at::kFloat;
    } else if (part == "f64") {
      spec.dtype = at::kDouble;
    } else if (part == "i32") {
      spec.dtype = at::kInt;
    } else {
      fail("unknown modifier '" + part + "'");
    }
  }
  if (spec.domain == "nan") spec.constant = true;
  if (spec.domain == "spd" || spec.domain == "herm") spec.within = true;
  return spec;
}

at::Tensor make_tensor(const TensorSpec& spec, at::ScalarType tested, uint64_t seed) {
  return laid_out(values(spec, spec.dtype_under(tested), seed).to(support::device()), spec.layout);
}

at::Tensor projected(const TensorSpec& spec, const at::Tensor& value) {
  if (!spec.within) return value;
  if (spec.domain == "tril") return value.tril();
  if (spec.domain == "triu") return value.triu();
  return at::add(value, value.mH()).mul(0.5);
}

at::Tensor batch_of(const std::vector<at::Tensor>& examples, int64_t dim) {
  at::Tensor stacked = at::stack(examples, dim);
  if (dim != 0 || examples.empty() || examples[0].is_contiguous() || examples[0].numel() == 0) return stacked;
  int64_t span = 1;
  for (int64_t i = 0; i < examples[0].dim(); ++i) span += (examples[0].size(i) - 1) * examples[0].stride(i);
  const auto count = static_cast<int64_t>(examples.size());
  auto strides = examples[0].strides().vec();
  strides.insert(strides.begin(), span);
  at::Tensor memory = at::zeros({count * span}, stacked.options());
  return memory.as_strided(stacked.sizes(), strides).copy_(stacked);
}

}  // namespace op_db

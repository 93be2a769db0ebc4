// NOTE [Windows found out]
// Which elements of an image a window sees, and with which weights, follows from strides, paddings, scales and the way
// in which LibTorch rounds places. None of it is written down here a second time: LibTorch's operator is run on the
// images of which one element is one and all others are zero. What it makes of these are the columns of its matrix, and
// an element of the result is a row of it. So an operator's transpose, which is another operator, is found out
// likewise.
//
// An image has few elements here (Thresholds::most_of_lane), so these are as many calls.
#include "rules/small_windows.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace tower::rules::small {

using namespace compiler;

namespace {

// Floats that are shorter than these are turned into them by the kernels, too.
at::ScalarType computed_in(const Small& t) { return at::toOpMathType(t.dtype); }

bool is_constant(const SmallCall& c, const Small& t) {
  return std::all_of(t.ids.begin(), t.ids.end(), [&](Id id) { return c.graph.value(id).has_value(); });
}

// A result of the operator, row by row.
struct Made {
  Sizes sizes;
  std::vector<double> elements;
};

// The operator with images in its first operand's place. Of the others it has the values, where these are constants;
// else zeros.
class OfImages {
 public:
  explicit OfImages(const SmallCall& c) : c_(c), x_(*c.operands[0]), tensors_(1) {
    for (const Small* t : c.operands.slice(1)) {
      std::vector<double> values;
      for (const Id id : t->ids) values.push_back(c.graph.value(id).value_or(0));
      tensors_.push_back(at::tensor(values, at::kDouble).to(computed_in(*t)).view(t->sizes));
    }
  }
  // Of an image whose elements are all this number.
  std::vector<Made> all(double number) { return made_of(at::full(x_.sizes, number, computed_in(x_))); }
  // Of images that are zero but for one element: each element in turn.
  std::vector<std::vector<Made>> one_by_one(double number) {
    const auto n = static_cast<int64_t>(x_.ids.size());
    std::vector<std::vector<Made>> made;
    for (int64_t i = 0; i < n; ++i) {
      Tensor image = at::zeros({n}, computed_in(x_));
      image[i] = number;
      made.push_back(made_of(image.view(x_.sizes)));
    }
    return made;
  }

 private:
  std::vector<Made> made_of(const Tensor& image) {
    tensors_[0] = image;
    std::vector<Made> results;
    for (const Tensor& t : c_.run(tensors_)) {
      const Tensor flat = t.to(at::kDouble).contiguous();
      const auto* elements = flat.const_data_ptr<double>();
      results.push_back({Sizes(t.sizes()), {elements, elements + flat.numel()}});
    }
    return results;
  }

  const SmallCall& c_;
  const Small& x_;
  std::vector<Tensor> tensors_;
};

// ---- linear operators ----

// A row of the operator's matrix.
struct RowOfParts {
  struct Part {
    size_t element;
    double factor;
  };
  std::vector<Part> parts;
  bool from_zero = false;  // the kernel adds them to a zero, which of −0 makes +0
};
struct Matrix {
  Sizes sizes;  // of the result
  std::vector<RowOfParts> rows;
};

// Whether a factor of zero is a factor, which makes NaN of infinity. LibTorch's weights have such factors, of elements
// that have another one, too. Images of infinity tell.
enum class Zeros : bool { are_none, count };

Matrix matrix_of(const SmallCall& c, Zeros zeros) {
  const Small& x = *c.operands[0];
  OfImages of(c);
  const auto units = of.one_by_one(1);
  std::vector<std::vector<Made>> infinite;
  if (zeros == Zeros::count) infinite = of.one_by_one(std::numeric_limits<double>::infinity());
  std::optional<Made> of_zeros;
  if (at::isFloatingType(x.dtype)) of_zeros = of.all(-0.0)[0];
  Matrix matrix{units[0][0].sizes, std::vector<RowOfParts>(units[0][0].elements.size())};
  for (size_t k = 0; k < matrix.rows.size(); ++k) {
    RowOfParts& row = matrix.rows[k];
    bool negative = false;
    for (size_t i = 0; i < x.ids.size(); ++i) {
      const double factor = units[i][0].elements[k];
      if (factor != 0) row.parts.push_back({i, factor});
      if (zeros == Zeros::count && std::isnan(infinite[i][0].elements[k])) row.parts.push_back({i, 0});
      negative = negative || factor < 0;
    }
    row.from_zero = of_zeros && !negative && !std::signbit(of_zeros->elements[k]);
  }
  return matrix;
}

// What the parts are added to; none: to nothing.
std::optional<E> start(const SmallCall& c, const RowOfParts& row) {
  if (!row.from_zero && !row.parts.empty()) return std::nullopt;
  return c.constant(c.type(0), 0);
}
E element(const SmallCall& c, const RowOfParts::Part& part) { return c.at(*c.operands[0], part.element, 0); }

template <class Term>
E sum_of(const SmallCall& c, const RowOfParts& row, const Term& term) {
  std::optional<E> sum = start(c, row);
  for (const RowOfParts::Part& part : row.parts) sum = sum ? *sum + term(part) : term(part);
  return *sum;
}

// Of which whole number a factor is the reciprocal, as LibTorch has rounded it in one division or two; none: of none.
std::optional<double> divisor(const SmallCall& c, double factor) {
  const double whole = std::round(1 / factor);
  const double rounding =
      c.type(0) == Type::f64 ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
  if (std::abs(whole * factor - 1) > 2 * rounding) return std::nullopt;
  return whole;
}

using OfRow = std::function<std::optional<E>(const RowOfParts& row)>;
SmallResults by_rows(const SmallCall& c, Zeros zeros, const OfRow& of_row) {
  const Matrix matrix = matrix_of(c, zeros);
  std::vector<E> elements;
  for (const RowOfParts& row : matrix.rows) {
    const std::optional<E> e = of_row(row);
    if (!e) return {};
    elements.push_back(*e);
  }
  return c.give(matrix.sizes, elements);
}

}  // namespace

SmallResults sums(const SmallCall& c) {
  return by_rows(c, Zeros::are_none, [&](const RowOfParts& row) -> std::optional<E> {
    for (const RowOfParts::Part& part : row.parts)
      if (part.factor != 1) return std::nullopt;
    return sum_of(c, row, [&](const RowOfParts::Part& part) { return element(c, part); });
  });
}

SmallResults means(const SmallCall& c) {
  if (!is_float(c.type(0))) return {};
  return by_rows(c, Zeros::are_none, [&](const RowOfParts& row) -> std::optional<E> {
    const E sum = sum_of(c, row, [&](const RowOfParts::Part& part) { return element(c, part); });
    if (row.parts.empty()) return sum;
    const double factor = row.parts[0].factor;
    for (const RowOfParts::Part& part : row.parts)
      if (part.factor != factor) return std::nullopt;
    const auto by = divisor(c, factor);
    return by ? std::optional<E>(sum / *by) : std::nullopt;
  });
}

SmallResults shares(const SmallCall& c) {
  if (!is_float(c.type(0))) return {};
  return by_rows(c, Zeros::are_none, [&](const RowOfParts& row) -> std::optional<E> {
    for (const RowOfParts::Part& part : row.parts)
      if (!divisor(c, part.factor)) return std::nullopt;
    return sum_of(c, row, [&](const RowOfParts::Part& part) { return element(c, part) / *divisor(c, part.factor); });
  });
}

SmallResults weighted(const SmallCall& c) {
  if (!is_float(c.type(0))) return {};
  return by_rows(c, Zeros::count, [&](const RowOfParts& row) {
    std::optional<E> sum = start(c, row);
    for (const RowOfParts::Part& part : row.parts) {
      const E x = element(c, part), factor = x.like(part.factor);
      sum = sum ? fma(x, factor, *sum) : x * factor;
    }
    return sum;
  });
}

// ---- maximum pooling ----

// The greatest is one where the window sees the only one there is, and its index is then that one's. Windows are gone
// through row by row: NaN takes the place of what was there before, also of NaN, and of equals the first stays.
SmallResults greatest_of_windows(const SmallCall& c) {
  for (const Small* t : c.operands.slice(1))
    if (!is_constant(c, *t)) return {};  // where windows are follows from it
  const Small& x = *c.operands[0];
  const auto units = OfImages(c).one_by_one(1);
  SmallResults results;
  for (size_t r = 0; r < c.dtypes.size(); ++r) results.push_back({units[0][r].sizes, {}, c.dtypes[r]});
  for (size_t k = 0; k < units[0][0].elements.size(); ++k) {
    std::optional<E> best, place;
    for (size_t i = 0; i < x.ids.size(); ++i) {
      if (units[i][0].elements[k] != 1) continue;
      const E e = c.at(x, i, 0), here = c.constant(c.type(1), units[i][1].elements[k]);
      if (!best) {
        best = e;
        place = here;
        continue;
      }
      E takes = e > *best;
      if (e.floating()) takes = takes | isnan(e);
      best = where(takes, e, *best);
      place = where(takes, here, *place);
    }
    if (!best) return {};  // a window that sees nothing
    results[0].ids.push_back(best->id());
    results[1].ids.push_back(place->id());
  }
  return results;
}

}  // namespace tower::rules::small

// Products of small vectors and matrices.
#include "fuse/small.h"

namespace tower::compiler {
namespace {

// A vector is a matrix with one row or column.
struct Matrix {
  const Small& t;
  size_t rows, columns;
  size_t first = 0;  // element

  size_t at(size_t i, size_t j) const { return first + i * columns + j; }
};
size_t size_at(const Small& t, size_t d) { return static_cast<size_t>(t.sizes[d]); }
Matrix matrix(const Small& t) { return {t, size_at(t, 0), size_at(t, 1)}; }

// Σ a(i, k) b(k, j), each term rounded with the sum.
std::vector<E> product(const SmallCall& c, const Matrix& a, const Matrix& b) {
  std::vector<E> result;
  const Type type = c.type(0);
  for (size_t i = 0; i < a.rows; ++i)
    for (size_t j = 0; j < b.columns; ++j) {
      if (a.columns == 0) {
        result.push_back(c.constant(type, 0));
        continue;
      }
      E sum = c.at(a.t, a.at(i, 0), 0) * c.at(b.t, b.at(0, j), 0);
      for (size_t k = 1; k < a.columns; ++k) sum = fma(c.at(a.t, a.at(i, k), 0), c.at(b.t, b.at(k, j), 0), sum);
      result.push_back(sum);
    }
  return result;
}

SmallResults give(const SmallCall& c, Sizes sizes, const std::vector<E>& elements) {
  Small t{std::move(sizes), {}, c.dtypes[0]};
  for (const E& e : elements) t.ids.push_back(e.id());
  return {t};
}

SmallResults dot(const SmallCall& c) {
  const Small &a = *c.operands[0], &b = *c.operands[1];
  return give(c, {}, product(c, {a, 1, a.ids.size()}, {b, b.ids.size(), 1}));
}

SmallResults mv(const SmallCall& c) {
  const Small &a = *c.operands[0], &b = *c.operands[1];
  return give(c, {a.sizes[0]}, product(c, matrix(a), {b, size_at(b, 0), 1}));
}

SmallResults mm(const SmallCall& c) {
  const Small &a = *c.operands[0], &b = *c.operands[1];
  return give(c, {a.sizes[0], b.sizes[1]}, product(c, matrix(a), matrix(b)));
}

std::vector<E> batched(const SmallCall& c, const Small& a, const Small& b) {
  std::vector<E> result;
  const size_t n = size_at(a, 1), k = size_at(a, 2), m = size_at(b, 2);
  for (size_t i = 0; i < size_at(a, 0); ++i) {
    const std::vector<E> one = product(c, {a, n, k, i * n * k}, {b, k, m, i * k * m});
    result.insert(result.end(), one.begin(), one.end());
  }
  return result;
}

SmallResults bmm(const SmallCall& c) {
  const Small &a = *c.operands[0], &b = *c.operands[1];
  return give(c, {a.sizes[0], a.sizes[1], b.sizes[2]}, batched(c, a, b));
}

// beta · self + alpha · product, self broadcast; where beta is 0, self is not read.
SmallResults added(const SmallCall& c, const Sizes& sizes, const std::vector<E>& product) {
  const Small& self = *c.operands[0];
  const Type type = c.type(0);
  const auto number = [&](size_t arg) { return E(c.graph, c.graph.constant(type, c.arg(arg).toScalar().toDouble())); };
  const E beta = number(3), alpha = number(4);
  const bool reads = c.arg(3).toScalar().toDouble() != 0;
  std::vector<E> result;
  for (size_t i = 0; i < product.size(); ++i) {
    // The number of self's element, from the last dimension on.
    size_t left = i, from = 0, stride = 1;
    for (size_t d = sizes.size(); d-- > 0;) {
      const auto n = static_cast<size_t>(sizes[d]);
      const size_t missing = sizes.size() - self.sizes.size();
      if (d >= missing) {
        if (self.sizes[d - missing] != 1) from += left % n * stride;
        stride *= size_at(self, d - missing);
      }
      left /= n;
    }
    const E term = alpha * product[i];
    result.push_back(reads ? beta * c.at(self, from, 0) + term : term);
  }
  return give(c, sizes, result);
}

SmallResults addmm(const SmallCall& c) {
  const Small &a = *c.operands[1], &b = *c.operands[2];
  return added(c, {a.sizes[0], b.sizes[1]}, product(c, matrix(a), matrix(b)));
}
SmallResults addmv(const SmallCall& c) {
  const Small &a = *c.operands[1], &b = *c.operands[2];
  return added(c, {a.sizes[0]}, product(c, matrix(a), {b, size_at(b, 0), 1}));
}
SmallResults baddbmm(const SmallCall& c) {
  const Small &a = *c.operands[1], &b = *c.operands[2];
  return added(c, {a.sizes[0], a.sizes[1], b.sizes[2]}, batched(c, a, b));
}

SmallResults trace(const SmallCall& c) {
  const Small& a = *c.operands[0];
  E sum = c.constant(c.type(0), 0);
  for (size_t i = 0; i < std::min(size_at(a, 0), size_at(a, 1)); ++i) {
    const E next = c.at(a, i * size_at(a, 1) + i, 0);
    sum = i == 0 ? next : sum + next;
  }
  return give(c, {}, {sum});
}

}  // namespace

const SmallRules& small_products() {
  static const SmallRules& rules = *new SmallRules{
      {"aten::dot", dot},     {"aten::vdot", dot},        {"aten::mv", mv},
      {"aten::mm", mm},       {"aten::bmm", bmm},         {"aten::addmm", addmm},
      {"aten::addmv", addmv}, {"aten::baddbmm", baddbmm}, {"aten::trace", trace},
  };
  return rules;
}

}  // namespace tower::compiler

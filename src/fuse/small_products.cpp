// Products of small vectors and matrices, by the letters of their records.
#include <algorithm>
#include <map>

#include "fuse/small.h"

namespace tower::compiler {
namespace {

// An operand's elements, and by how many elements one is from the next along each letter.
struct Lettered {
  const Small& t;
  std::map<char, size_t> strides = {};

  Lettered(const Small& tensor, const std::string& letters) : t(tensor) {
    size_t stride = 1;
    for (size_t d = letters.size(); d-- > 0; stride *= t.size(d)) strides[letters[d]] = stride;
  }
  size_t stride(char letter) const {
    const auto found = strides.find(letter);
    return found == strides.end() ? 0 : found->second;
  }
};

// The places in a factor along these letters, the last of which is next to itself.
std::vector<size_t> places(const Lettered& f, const std::string& letters, const std::map<char, size_t>& sizes) {
  std::vector<size_t> result{0};
  for (const char letter : letters) {
    std::vector<size_t> next;
    for (const size_t place : result)
      for (size_t i = 0; i < sizes.at(letter); ++i) next.push_back(place + i * f.stride(letter));
    result = std::move(next);
  }
  return result;
}

std::string summed_letters(const Contraction& how) {
  std::string summed;
  for (const char letter : how.a)
    if (how.result.find(letter) == std::string::npos) summed += letter;
  return summed;
}

}  // namespace

SmallResults contracted(const SmallCall& c) {
  const Contraction& how = *c.op.contraction;
  const size_t first = how.adds;
  // Products of half types are the library's: how it adds them up depends on the CPU.
  if (c.operands.size() != first + 2 || is_half(c.type(0))) return {};
  const Small &left = *c.operands[first], &right = *c.operands[first + 1];
  if (left.sizes.size() != how.a.size() || right.sizes.size() != how.b.size()) return {};
  const Lettered a(left, how.a), b(right, how.b);
  std::map<char, size_t> size;
  for (size_t d = 0; d < how.a.size(); ++d) size[how.a[d]] = left.size(d);
  for (size_t d = 0; d < how.b.size(); ++d) size[how.b[d]] = right.size(d);
  Sizes sizes;
  for (const char letter : how.result) sizes.push_back(static_cast<int64_t>(size[letter]));

  const std::string summed = summed_letters(how);
  const auto of_a = places(a, how.result, size), of_b = places(b, how.result, size), along_a = places(a, summed, size),
             along_b = places(b, summed, size);
  std::vector<E> elements;
  for (size_t i = 0; i < of_a.size(); ++i) {
    // Each term is rounded with the sum.
    std::optional<E> sum;
    for (size_t k = 0; k < along_a.size(); ++k) {
      const E x = c.at(left, of_a[i] + along_a[k], 0), y = c.at(right, of_b[i] + along_b[k], 0);
      sum = sum ? fma(x, y, *sum) : x * y;
    }
    elements.push_back(sum ? *sum : c.constant(c.type(0), 0));
  }
  if (!how.adds) return c.give(sizes, elements);

  // beta · self + alpha · product; where beta is 0, self is not read.
  const Small& self = *c.operands[0];
  const E beta = c.constant(c.type(0), c.arg(3).toScalar().toDouble()),
          alpha = c.constant(c.type(0), c.arg(4).toScalar().toDouble());
  const bool reads = c.arg(3).toScalar().toDouble() != 0;
  const std::vector<size_t> from = broadcast(self.sizes, sizes);
  for (size_t i = 0; i < elements.size(); ++i) {
    const E term = alpha * elements[i];
    elements[i] = reads ? beta * c.at(self, from[i], 0) + term : term;
  }
  return c.give(sizes, elements);
}

}  // namespace tower::compiler

// associative_scan: pairs of neighbours are combined, the prefixes of the pairs found by the same means, and what lies
// between filled in: two calls of combine for each halving (Blelloch).
#include <ATen/Functions.h>

#include "core/operator.h"
#include "frontend/effects.h"
#include "tower/errors.h"
#include "tower/loops.h"

namespace tower::dynamic {
namespace {

Tensors sliced(const Tensors& all, int64_t start, int64_t end, int64_t step) {
  Tensors result;
  for (const Tensor& t : all) result.push_back(at::slice(t, 0, start, end, step));
  return result;
}

// The elements of `even`, of which there are as many as of `odd` or one more, and between them those of `odd`.
Tensor interleaved(const Tensor& even, const Tensor& odd) {
  const int64_t pairs = odd.size(0);
  const Tensor both = at::stack({even.narrow(0, 0, pairs), odd}, 1).flatten(0, 1);
  return even.size(0) == pairs ? both : at::cat({both, even.narrow(0, pairs, 1)});
}

Tensors prefixes(const Combine& combine, const Tensors& elements) {
  const int64_t count = elements[0].size(0);
  if (count < 2) return elements;
  const Tensors odd = prefixes(combine, combine(sliced(elements, 0, count - 1, 2), sliced(elements, 1, count, 2)));
  const Tensors first = sliced(elements, 0, 1, 1);
  Tensors even = first;
  if (count > 2) {
    even = combine(sliced(odd, 0, (count - 1) / 2, 1), sliced(elements, 2, count, 2));
    for (size_t k = 0; k < even.size(); ++k) even[k] = at::cat({first[k], even[k]});
  }
  Tensors all;
  for (size_t k = 0; k < even.size(); ++k) all.push_back(interleaved(even[k], odd[k]));
  return all;
}

void check_combined(const Tensors& combined, const Tensors& element) {
  if (combined.size() != element.size())
    throw ArgumentError("associative_scan: an element has " + std::to_string(element.size()) +
                        " tensors, but combine returned " + std::to_string(combined.size()) + ".");
  for (size_t k = 0; k < element.size(); ++k)
    if (!combined[k].defined() || !Meta(element[k]).matches(combined[k]))
      throw ArgumentError("associative_scan: tensor " + std::to_string(k) + " of an element is " +
                          describe(element[k]) + ", but combine made it " + describe(combined[k]) +
                          ". It returns an element like the two that it was given.");
}

}  // namespace

Tensors associative_scan(const Combine& combine, const Tensors& elements, AssociativeScanOptions options) {
  if (elements.empty()) throw ArgumentError("associative_scan: there is nothing to scan: no tensors were given.");
  Tensors along_first;
  for (size_t k = 0; k < elements.size(); ++k) {
    const Tensor& t = elements[k];
    const int64_t dim = t.defined() && options.dim < 0 ? options.dim + t.dim() : options.dim;
    if (!t.defined() || dim < 0 || dim >= t.dim())
      throw ArgumentError("associative_scan: dim is " + std::to_string(options.dim) + ", but tensor " +
                          std::to_string(k) + " is " + describe(t) + ".");
    along_first.push_back(t.movedim(dim, 0));
    if (options.reverse) along_first.back() = along_first.back().flip(0);
    if (along_first[k].size(0) != along_first[0].size(0))
      throw ArgumentError("associative_scan: along dimension " + std::to_string(options.dim) + " tensor 0 is " +
                          describe(elements[0]) + " and tensor " + std::to_string(k) + " " + describe(t) +
                          ": all must have the same number of elements.");
  }
  const size_t size = elements.size();
  const Function mapped = vmap(
      [&](const Tensors& both) {
        const auto middle = both.begin() + static_cast<std::ptrdiff_t>(size);
        const Tensors a(both.begin(), middle), b(middle, both.end());
        frontend::NoEffects guard(both, []() -> frontend::NoEffects::Why {
          return {"associative_scan: combine", "but one call of it combines many pairs, in an order of its own."};
        });
        Tensors combined = combine(a, b);
        guard.check_operands();
        check_combined(combined, a);
        return combined;
      },
      Dims(2 * size, 0), {0});
  const auto combine_all = [&](const Tensors& a, const Tensors& b) {
    Tensors both = a;
    both.insert(both.end(), b.begin(), b.end());
    return mapped(both);
  };
  Tensors result = prefixes(combine_all, along_first);
  for (Tensor& t : result) {
    if (options.reverse) t = t.flip(0);
    t = t.movedim(0, options.dim);
  }
  return result;
}

}  // namespace tower::dynamic

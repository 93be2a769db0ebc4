#include "rules/look_ups.h"

#include <ATen/WrapDimUtils.h>

namespace tower::rules::look_ups {

using compiler::LookUp;
using compiler::LookUpCall;

namespace {

using Result = std::optional<LookUp>;

// The result has the table's dimensions, with those of the index in the place of `dim`.
LookUp in_place_of(const LookUpCall& c, size_t index, int64_t dim, bool from_the_end) {
  LookUp made{index, dim, {}, {}, from_the_end};
  for (int64_t d = 0; d < c.dims[0]; ++d) {
    if (d != dim) {
      made.of_table.push_back(d);
      made.of_index.push_back(LookUp::kNone);
      continue;
    }
    for (int64_t i = 0; i < c.dims[index]; ++i) {
      made.of_table.push_back(LookUp::kNone);
      made.of_index.push_back(i);
    }
  }
  return made;
}

}  // namespace

Result index(const LookUpCall& c) {
  if (c.dims.size() != 2 || c.places[1].element >= c.dims[0]) return std::nullopt;
  return in_place_of(c, 1, c.places[1].element, /*from_the_end=*/true);
}

// An index that is a number stands for one element, and the dimension stays.
Result index_select(const LookUpCall& c) {
  if (c.dims[0] == 0) return std::nullopt;
  const int64_t dim = at::maybe_wrap_dim(c.args[1].toInt(), c.dims[0]);
  LookUp made = in_place_of(c, 1, dim, false);
  if (c.dims[1] == 0) {
    made.of_table.insert(made.of_table.begin() + dim, LookUp::kNone);
    made.of_index.insert(made.of_index.begin() + dim, LookUp::kNone);
  }
  return made;
}

Result gather(const LookUpCall& c) {
  if (c.dims[0] == 0 || c.dims[0] != c.dims[1]) return std::nullopt;
  const int64_t dim = at::maybe_wrap_dim(c.args[1].toInt(), c.dims[0]);
  LookUp made{1, dim, {}, {}, false};
  for (int64_t d = 0; d < c.dims[0]; ++d) {
    made.of_table.push_back(d == dim ? LookUp::kNone : d);
    made.of_index.push_back(d);
  }
  return made;
}

Result take(const LookUpCall& c) {
  LookUp made{1, LookUp::kAll, {}, {}, true};
  for (int64_t d = 0; d < c.dims[1]; ++d) {
    made.of_table.push_back(LookUp::kNone);
    made.of_index.push_back(d);
  }
  return made;
}

Result embedding(const LookUpCall& c) { return c.dims[0] == 2 ? Result(in_place_of(c, 1, 0, false)) : std::nullopt; }

// self, dim, index, source, alpha
Result index_add(const LookUpCall& c) {
  if (c.dims.size() != 3 || c.dims[0] == 0 || c.dims[1] != 1 || c.dims[2] != c.dims[0] ||
      !c.args[4].toScalar().equal(1))
    return std::nullopt;
  return in_place_of(c, 1, at::maybe_wrap_dim(c.args[1].toInt(), c.dims[0]), false);
}

}  // namespace tower::rules::look_ups

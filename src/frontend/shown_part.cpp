#include "frontend/shown_part.h"

#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "core/bind.h"
#include "core/reuse.h"
#include "frontend/views.h"

namespace tower::frontend {
namespace {

constexpr int64_t kAdded = -1;  // a dimension of size 1 that the base has not

enum class ViewKind : uint8_t {
  same,
  select,
  slice,
  unbind,
  split,
  split_with_sizes,
  transpose,
  t,
  permute,
  squeeze,
  unsqueeze
};

const ViewKind* kind_of(const Operator& op) {
  static const auto* kinds = [] {
    auto* found = new std::unordered_map<const Operator*, ViewKind>;
    const auto add = [&](const char* name, const char* overload, ViewKind kind) {
      if (const Operator* op = Operator::find(name, overload)) found->emplace(op, kind);
    };
    add("aten::alias", "", ViewKind::same);
    add("aten::select", "int", ViewKind::select);
    add("aten::slice", "Tensor", ViewKind::slice);
    add("aten::unbind", "int", ViewKind::unbind);
    add("aten::split", "Tensor", ViewKind::split);
    add("aten::split_with_sizes", "", ViewKind::split_with_sizes);
    add("aten::transpose", "int", ViewKind::transpose);
    add("aten::t", "", ViewKind::t);
    add("aten::permute", "", ViewKind::permute);
    for (const char* overload : {"", "dim", "dims"}) add("aten::squeeze", overload, ViewKind::squeeze);
    add("aten::unsqueeze", "", ViewKind::unsqueeze);
    return found;
  }();
  const auto found = kinds->find(&op);
  return found == kinds->end() ? nullptr : &found->second;
}

const Operator& known(const char* name, const char* overload) { return *Operator::find(name, overload); }

Tensor call(const Operator& op, Stack stack) {
  bind_call(op, stack);
  return std::move(stack[0]).toTensor();
}

}  // namespace

ShownPart::ShownPart(Wrapper& base) : base_(&base) {
  for (const int64_t size : base.sizes()) {
    dims_.push_back(static_cast<int64_t>(ranges_.size()));
    ranges_.push_back({0, 1, size, size});
  }
}

std::optional<ShownPart> ShownPart::along(Wrapper& base, c10::ArrayRef<const View*> links) {
  ShownPart part(base);
  for (size_t k = links.size(); k-- > 0;) {
    const View& link = *links[k];
    if (!part.show(*link.op, link.args, link.out)) return std::nullopt;
    (link.recorded ? part.any_recorded_ : part.any_unrecorded_) = true;
  }
  return part;
}

namespace {
// The views from `view` on that are of known kinds, nearest first, and the base of the last of them.
std::pair<c10::SmallVector<const View*, 4>, Wrapper*> known_links(Wrapper& view) {
  c10::SmallVector<const View*, 4> links;
  Wrapper* base = &view;
  for (; base->view() && kind_of(*base->view()->op); base = &base_of(*base->view()))
    links.push_back(base->view().get());
  return {std::move(links), base};
}
}  // namespace

std::optional<ShownPart> ShownPart::shown_by(Wrapper& view) {
  const auto [links, base] = known_links(view);
  return links.empty() ? std::nullopt : along(*base, links);
}

std::optional<ShownPart> ShownPart::shown_by(Wrapper& base, const Operator& op, c10::ArrayRef<IValue> args) {
  const ViewKind* kind = kind_of(op);
  if (!kind || (*kind != ViewKind::select && *kind != ViewKind::slice)) return std::nullopt;
  // What is wrong with the call, the operator itself is to say.
  const int64_t dim = args[1].toInt(), rank = base.dim();
  if (dim < -rank || dim >= rank) return std::nullopt;
  if (*kind == ViewKind::slice && args[4].toInt() <= 0) return std::nullopt;
  if (*kind == ViewKind::select) {
    const int64_t index = args[2].toInt(), size = base.size(dim < 0 ? dim + rank : dim);
    if (index < -size || index >= size) return std::nullopt;
  }
  const auto [links, farthest] = known_links(base);
  auto part = along(*farthest, links);
  if (part && !part->show(op, args, 0)) part.reset();
  return part;
}

// ---- what a view shows ---------------------------------------------------------------------------------------------

int64_t ShownPart::size(int64_t dim) const {
  const int64_t of = dims_[static_cast<size_t>(dim)];
  return of == kAdded ? 1 : ranges_[static_cast<size_t>(of)].length;
}

int64_t ShownPart::numel() const {
  int64_t product = 1;
  for (const Range& r : ranges_) product *= r.length;
  return product;
}

bool ShownPart::keeps(size_t base_dim) const {
  return std::find(dims_.begin(), dims_.end(), static_cast<int64_t>(base_dim)) != dims_.end();
}

void ShownPart::slice(int64_t dim, int64_t start, int64_t end, int64_t step) {
  const int64_t of = dims_[static_cast<size_t>(dim)];
  Range added{0, 1, 1, 1};
  Range& r = of == kAdded ? added : ranges_[static_cast<size_t>(of)];
  const auto place = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + r.length : at, 0, r.length); };
  const int64_t from = place(start), to = std::max(place(end), from);
  r.start += from * r.step;
  r.step *= step;
  r.length = (to - from + step - 1) / step;
}

void ShownPart::select(int64_t dim, int64_t index) {
  if (index < 0) index += size(dim);
  slice(dim, index, index + 1, 1);
  dims_.erase(dims_.begin() + dim);
}

void ShownPart::squeeze(const std::vector<int64_t>& dims) {
  for (int64_t d = rank(); d-- > 0;)
    if (size(d) == 1 && std::find(dims.begin(), dims.end(), d) != dims.end()) dims_.erase(dims_.begin() + d);
}

bool ShownPart::show(const Operator& op, c10::ArrayRef<IValue> args, size_t out) {
  const auto dim_at = [&](size_t i) { return at::maybe_wrap_dim(args[i].toInt(), rank()); };
  const auto number = [&](size_t i, int64_t otherwise) { return args[i].isNone() ? otherwise : args[i].toInt(); };
  constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();
  switch (*kind_of(op)) {
    case ViewKind::same:
      break;
    case ViewKind::select:
      select(dim_at(1), args[2].toInt());
      break;
    case ViewKind::slice: {
      const int64_t dim = dim_at(1);
      if (dims_[static_cast<size_t>(dim)] == kAdded) return false;
      slice(dim, number(2, 0), number(3, kEnd), number(4, 1));
      break;
    }
    case ViewKind::unbind:
      select(dim_at(1), static_cast<int64_t>(out));
      break;
    case ViewKind::split: {
      const int64_t dim = dim_at(2), each = args[1].toInt(), start = static_cast<int64_t>(out) * each;
      if (dims_[static_cast<size_t>(dim)] == kAdded) return false;
      slice(dim, start, start + each, 1);
      break;
    }
    case ViewKind::split_with_sizes: {
      const auto sizes = args[1].toIntVector();
      const int64_t dim = dim_at(2);
      int64_t start = 0;
      for (size_t k = 0; k < out; ++k) start += sizes[k];
      if (dims_[static_cast<size_t>(dim)] == kAdded) return false;
      slice(dim, start, start + sizes[out], 1);
      break;
    }
    case ViewKind::transpose:
      if (rank() == 0) break;  // LibTorch allows 0 and -1, as if there were one dimension
      std::swap(dims_[static_cast<size_t>(dim_at(1))], dims_[static_cast<size_t>(dim_at(2))]);
      break;
    case ViewKind::t:
      std::reverse(dims_.begin(), dims_.end());
      break;
    case ViewKind::permute: {
      const auto before = dims_;
      const auto to = args[1].toIntVector();
      for (size_t k = 0; k < to.size(); ++k) dims_[k] = before[static_cast<size_t>(at::maybe_wrap_dim(to[k], rank()))];
      break;
    }
    case ViewKind::squeeze: {
      std::vector<int64_t> dims;
      if (args.size() == 1)
        for (int64_t d = 0; d < rank(); ++d) dims.push_back(d);
      else
        for (const int64_t d : args[1].isInt() ? std::vector<int64_t>{args[1].toInt()} : args[1].toIntVector())
          dims.push_back(at::maybe_wrap_dim(d, rank()));
      squeeze(dims);
      break;
    }
    case ViewKind::unsqueeze:
      dims_.insert(dims_.begin() + at::maybe_wrap_dim(args[1].toInt(), rank() + 1), kAdded);
      break;
  }
  return true;
}

// ---- reading and writing it ----------------------------------------------------------------------------------------

// The views by which the part is reached from the base: that which leaves the least comes first.
std::vector<ShownPart::Step> ShownPart::steps() const {
  static const Operator &select = known("aten::select", "int"), &slice = known("aten::slice", "Tensor");
  std::vector<size_t> chosen;
  for (size_t d = 0; d < ranges_.size(); ++d)
    if (ranges_[d].length != ranges_[d].size || ranges_[d].step != 1 || !keeps(d)) chosen.push_back(d);
  std::stable_sort(chosen.begin(), chosen.end(), [&](size_t a, size_t b) {
    return ranges_[a].length * ranges_[b].size < ranges_[b].length * ranges_[a].size;
  });
  std::vector<Step> steps;
  std::vector<size_t> gone;
  for (const size_t d : chosen) {
    const auto before = std::count_if(gone.begin(), gone.end(), [&](size_t g) { return g < d; });
    const int64_t dim = static_cast<int64_t>(d) - before;
    const Range& r = ranges_[d];
    if (keeps(d)) {
      const int64_t end = r.length == 0 ? r.start : r.start + (r.length - 1) * r.step + 1;
      steps.push_back({&slice, {IValue(), dim, r.start, end, r.step}});
    } else {
      steps.push_back({&select, {IValue(), dim, r.start}});
      gone.push_back(d);
    }
  }
  return steps;
}

// For each dimension of the view that the base has: its place among those of them in the base's order.
std::vector<int64_t> ShownPart::order() const {
  std::vector<int64_t> order;
  for (const int64_t d : dims_)
    if (d != kAdded)
      order.push_back(std::count_if(dims_.begin(), dims_.end(), [&](int64_t e) { return e != kAdded && e < d; }));
  return order;
}

Tensor ShownPart::arranged(Tensor t) const {
  static const Operator &permute = known("aten::permute", ""), &unsqueeze = known("aten::unsqueeze", "");
  const auto to = order();
  if (!std::is_sorted(to.begin(), to.end())) t = call(permute, {std::move(t), to});
  for (int64_t k = 0; k < rank(); ++k)
    if (dims_[static_cast<size_t>(k)] == kAdded) t = call(unsqueeze, {std::move(t), k});
  return t;
}

Tensor ShownPart::arranged_back(Tensor t) const {
  static const Operator &permute = known("aten::permute", ""), &squeeze = known("aten::squeeze", "dim");
  for (int64_t k = rank(); k-- > 0;)
    if (dims_[static_cast<size_t>(k)] == kAdded) t = call(squeeze, {std::move(t), k});
  const auto to = order();
  if (std::is_sorted(to.begin(), to.end())) return t;
  std::vector<int64_t> back(to.size());
  for (size_t k = 0; k < to.size(); ++k) back[static_cast<size_t>(to[k])] = static_cast<int64_t>(k);
  return call(permute, {std::move(t), back});
}

Tensor ShownPart::read() const {
  Tensor t(c10::intrusive_ptr<Wrapper>::reclaim_copy(base_));
  for (const Step& step : steps()) t = call(*step.view, call_on_part(std::move(t), step.args));
  return arranged(std::move(t));
}

Tensor ShownPart::write(const Tensor& value, Wrapper* replaced) const {
  const auto steps = this->steps();
  const auto before = [&] { return as_it_is(Tensor(c10::intrusive_ptr<Wrapper>::reclaim_copy(base_))); };
  Tensor part = arranged_back(value);
  if (steps.empty()) return part;
  std::vector<Tensor> around;  // what is left of the base after each step but the last
  for (size_t k = 0; k + 1 < steps.size(); ++k)
    around.push_back(call(*steps[k].view, call_on_part(k == 0 ? before() : around.back(), steps[k].args)));
  for (size_t k = steps.size(); k-- > 1; around.pop_back()) {
    const Reuse copying;  // what is around, and no more of its memory
    part = call(*scatter_of(*steps[k].view), call_on_part(std::move(around.back()), std::move(part), steps[k].args));
  }
  Stack whole = call_on_part(before(), std::move(part), steps[0].args);
  std::optional<Reuse> reuse;
  if (replaced) reuse.emplace(*replaced);
  bind_call(*scatter_of(*steps[0].view), whole);
  return std::move(whole[0]).toTensor();
}

}  // namespace tower::frontend

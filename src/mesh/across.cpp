#include "mesh/across.h"

#include <ATen/Dispatch.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/bind.h"
#include "core/tensor_lists.h"
#include "interpreters/libtorch_bridge.h"

namespace tower::mesh {

std::string Group::where(const char* name) const {
  return std::string(name) + " over axis '" + axis_ + "' (process " + std::to_string(rank_) + " of " +
         std::to_string(size_) + ")";
}

std::vector<int64_t> Group::gather_number(const char* name, int64_t number) {
  DispatchGuard keys;
  keys.see_no_operator();  // a trace does not record it
  const Tensor all = gather(name, {at::scalar_tensor(number, at::kLong).view({1})},
                            std::vector<int64_t>(static_cast<size_t>(size()), 1))[0];
  return {all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + all.numel()};
}

namespace {

// One that runs on plain tensors, where all other levels are done.
class AcrossOperator : public ListOperator {
 public:
  void call(Stack& stack) const final {
    if (record_in_libtorch(*this, stack)) return;
    const Tensors results = evaluate(tensors_of(stack[0]));
    stack.clear();
    stack.emplace_back(c10::List<Tensor>(results));
  }

 protected:
  AcrossOperator(const char* name, GroupPointer group)
      : ListOperator(std::string("tower::") + name), group_(std::move(group)) {}

  virtual Tensors evaluate(const Tensors& operands) const = 0;

  GroupPointer group_;
};

// Linear in each operand: what it does to a tangent it does to the value, and its transpose to a cotangent.
class LinearOperator : public AcrossOperator {
 protected:
  using AcrossOperator::AcrossOperator;
  virtual Tensors transpose(const Tensors& cotangents) const = 0;
  virtual bool moves_dimensions() const { return false; }

 private:
  Tensors pull_back(c10::ArrayRef<IValue>, c10::ArrayRef<Tensor> cotangents) const final {
    return of_defined(cotangents, [this](const Tensors& given) { return transpose(given); });
  }
  Tensors push_forward(c10::ArrayRef<IValue>, c10::ArrayRef<Tensor> tangents) const final {
    return of_defined(tangents, [this](const Tensors& given) { return (*this)(given); });
  }
  void map(VmapFrame& frame) const final { map_alongside(frame, moves_dimensions()); }
};

class Sum final : public LinearOperator {
 public:
  Sum(GroupPointer group, const char* name) : LinearOperator("sum_across", std::move(group)), name_(name) {}

 private:
  Tensors evaluate(const Tensors& operands) const override { return group_->sum(name_, operands); }
  Tensors transpose(const Tensors& cotangents) const override { return vary(group_, cotangents); }
  const char* name_;
};

class Vary final : public LinearOperator {
 public:
  explicit Vary(GroupPointer group) : LinearOperator("vary_across", std::move(group)) {}

 private:
  Tensors evaluate(const Tensors& operands) const override {
    group_->check_agreement("a value that begins to differ, number", operands);
    Tensors results;
    for (const Tensor& t : operands) results.push_back(at::alias(t));
    return results;
  }
  Tensors transpose(const Tensors& cotangents) const override { return sum(group_, kName, cotangents); }
  bool begin_pull_back(const VjpFrame& frame) const override {
    PendingGradients* pending = PendingGradients::of(frame);
    if (!pending) return false;
    Tensors parts;
    std::vector<LeafRef> leaves;
    for (size_t k = 0; k < frame.cotangents.size(); ++k) {
      if (!frame.cotangents[k].defined()) continue;
      parts.push_back(frame.cotangents[k]);
      leaves.push_back({0, static_cast<uint16_t>(k)});
    }
    pending->expect(group_->begin_sum(kName, parts), leaves);
    return true;
  }
  static constexpr const char* kName = "sum of derivatives";
};

class Gather final : public LinearOperator {
 public:
  Gather(GroupPointer group, const char* name, Counts counts)
      : LinearOperator("gather_across", std::move(group)), name_(name), counts_(std::move(counts)) {}

 private:
  Tensors evaluate(const Tensors& operands) const override { return group_->gather(name_, operands, *counts_); }
  Tensors transpose(const Tensors& cotangents) const override { return part(group_, counts_, cotangents); }
  bool moves_dimensions() const override { return true; }
  const char* name_;
  Counts counts_;
};

// The first row of each process, and the end.
std::vector<int64_t> starts_of(const std::vector<int64_t>& counts) {
  std::vector<int64_t> starts{0};
  for (const int64_t count : counts) starts.push_back(starts.back() + count);
  return starts;
}

class Part final : public LinearOperator {
 public:
  Part(GroupPointer group, Counts counts)
      : LinearOperator("part_across", std::move(group)), counts_(std::move(counts)) {}

 private:
  Tensors evaluate(const Tensors& operands) const override {
    const auto rank = static_cast<size_t>(group_->rank());
    const int64_t start = starts_of(*counts_)[rank];
    Tensors results;
    for (const Tensor& t : operands) results.push_back(t.narrow(0, start, (*counts_)[rank]));
    return results;
  }
  Tensors transpose(const Tensors& cotangents) const override {
    return gather(group_, "gather of derivatives", counts_, cotangents);
  }
  bool moves_dimensions() const override { return true; }
  Counts counts_;
};

// Of this process's rows those that go to each process, and those that come from each.
struct Route {
  int64_t here;
  std::vector<std::vector<int64_t>> go, come;
};

std::shared_ptr<const Route> route_of(const Group& group, const std::vector<int64_t>& counts,
                                      const std::vector<std::pair<int64_t, int64_t>>& pairs) {
  const std::vector<int64_t> starts = starts_of(counts);
  const auto process_of = [&](int64_t row) {
    return static_cast<size_t>(std::upper_bound(starts.begin(), starts.end(), row) - starts.begin() - 1);
  };
  const auto own = static_cast<size_t>(group.rank());
  Route route{counts[own], std::vector<std::vector<int64_t>>(counts.size()),
              std::vector<std::vector<int64_t>>(counts.size())};
  for (const auto& [from, to] : pairs) {
    const size_t source = process_of(from), target = process_of(to);
    if (source == own) route.go[target].push_back(from - starts[own]);
    if (target == own) route.come[source].push_back(to - starts[own]);
  }
  return std::make_shared<const Route>(std::move(route));
}

// With integers in the place of numbers of which LibTorch has hardly an operator.
Tensor as_known(const Tensor& t) {
  if (!c10::isBarebonesUnsignedType(t.scalar_type()) && !c10::isFloat8Type(t.scalar_type())) return t;
  switch (t.element_size()) {
    case 1:
      return t.view(at::kByte);
    case 2:
      return t.view(at::kShort);
    case 4:
      return t.view(at::kInt);
    default:
      return t.view(at::kLong);
  }
}

class Permute final : public LinearOperator {
 public:
  Permute(GroupPointer group, const char* name, std::shared_ptr<const Route> route)
      : LinearOperator("permute_across", std::move(group)), name_(name), route_(std::move(route)) {}

 private:
  Tensors evaluate(const Tensors& given) const override {
    const size_t processes = route_->go.size();
    Tensors operands;
    for (const Tensor& t : given) operands.push_back(as_known(t));
    std::vector<Tensors> give(processes), take(processes);
    for (size_t r = 0; r < processes; ++r)
      for (const Tensor& t : operands) {
        give[r].push_back(t.index_select(0, rows(route_->go[r], t)));
        Sizes room(t.sizes());
        room[0] = static_cast<int64_t>(route_->come[r].size());
        take[r].push_back(at::empty(room, t.options()));
      }
    group_->exchange(name_, given, give, take);
    Tensors results;
    for (size_t k = 0; k < operands.size(); ++k) {
      Sizes sizes(operands[k].sizes());
      sizes[0] = route_->here;
      results.push_back(at::zeros(sizes, operands[k].options()));
      for (size_t r = 0; r < processes; ++r) results[k].index_copy_(0, rows(route_->come[r], operands[k]), take[r][k]);
      results[k] = results[k].view(given[k].scalar_type());
    }
    return results;
  }
  static Tensor rows(const std::vector<int64_t>& numbers, const Tensor& like) {
    return at::tensor(numbers, at::kLong).to(like.device());
  }
  Tensors transpose(const Tensors& cotangents) const override {
    const Route back{route_->here, route_->come, route_->go};
    return (*c10::make_intrusive<Permute>(group_, name_, std::make_shared<const Route>(back)))(cotangents);
  }
  bool moves_dimensions() const override { return true; }
  const char* name_;
  std::shared_ptr<const Route> route_;
};

class Regroup final : public LinearOperator {
 public:
  Regroup(GroupPointer group, const char* name, Counts counts)
      : LinearOperator("regroup_across", std::move(group)), name_(name), counts_(std::move(counts)) {}

 private:
  Tensors evaluate(const Tensors& operands) const override {
    const std::vector<int64_t> starts = starts_of(*counts_);
    const size_t processes = counts_->size();
    const int64_t here = (*counts_)[static_cast<size_t>(group_->rank())];
    Tensors results;
    for (const Tensor& t : operands) results.push_back(at::empty(t.sizes(), t.options()));
    std::vector<Tensors> give(processes), take(processes);
    for (size_t r = 0; r < processes; ++r)
      for (const Tensor& t : operands) {
        give[r].push_back(t.narrow(1, starts[r], (*counts_)[r]).transpose(0, 1).contiguous());
        Sizes room(t.sizes());
        room[0] = here;
        room[1] = (*counts_)[r];
        take[r].push_back(at::empty(room, t.options()));
      }
    group_->exchange(name_, operands, give, take);
    for (size_t k = 0; k < results.size(); ++k)
      for (size_t r = 0; r < processes; ++r) results[k].narrow(1, starts[r], (*counts_)[r]).copy_(take[r][k]);
    return results;
  }
  Tensors transpose(const Tensors& cotangents) const override { return regroup(group_, name_, counts_, cotangents); }
  bool moves_dimensions() const override { return true; }
  const char* name_;
  Counts counts_;
};

// What stands for a part without elements.
at::Scalar neutral(at::ScalarType type, Extremum which) {
  const bool largest = which == Extremum::largest;
  if (c10::isFloatingType(type)) return (largest ? -1 : 1) * std::numeric_limits<double>::infinity();
  if (type == at::kBool) return !largest;
  return AT_DISPATCH_INTEGRAL_TYPES(type, "extremum_across", [&]() -> at::Scalar {
    return largest ? std::numeric_limits<scalar_t>::lowest() : std::numeric_limits<scalar_t>::max();
  });
}

class ExtremumOperator final : public AcrossOperator {
 public:
  ExtremumOperator(GroupPointer group, const char* name, Extremum which)
      : AcrossOperator("extremum_across", std::move(group)), name_(name), which_(which) {
    save = [](c10::ArrayRef<IValue> args, c10::ArrayRef<IValue> outs) { return Values{args[0], outs[0]}; };
  }

 private:
  Tensors evaluate(const Tensors& operands) const override {
    Tensors results;
    for (const Tensor& t : operands) {
      if (t.size(0) == 0)
        results.push_back(at::full(t.sizes().slice(1), neutral(t.scalar_type(), which_), t.options()));
      else results.push_back(which_ == Extremum::largest ? t.amax(0) : t.amin(0));
    }
    return group_->extremum(name_, which_, results);
  }

  // Those that hold the extremum, and how many they are among all processes' elements.
  std::pair<Tensors, Tensors> holders_and_counts(c10::ArrayRef<IValue> saved, c10::ArrayRef<Tensor> needed) const {
    const Tensors xs = tensors_of(saved[0]), outs = tensors_of(saved[1]);
    Tensors held, counts;
    for (size_t k = 0; k < xs.size(); ++k) {
      if (!needed[k].defined()) continue;
      held.push_back(holders(xs[k], outs[k]));
      counts.push_back(held.back().sum(0));
    }
    return {std::move(held), held.empty() ? Tensors{} : sum(group_, name_, counts)};
  }

  Tensors pull_back(c10::ArrayRef<IValue> saved, c10::ArrayRef<Tensor> cotangents) const override {
    const auto [held, counts] = holders_and_counts(saved, cotangents);
    return of_defined(cotangents, [&, &held = held, &counts = counts](const Tensors& given) {
      Tensors shares;
      for (size_t k = 0; k < given.size(); ++k) shares.push_back(given[k] / counts[k]);
      shares = vary(group_, shares);
      for (size_t k = 0; k < given.size(); ++k) shares[k] = shares[k] * held[k];
      return shares;
    });
  }
  Tensors push_forward(c10::ArrayRef<IValue> saved, c10::ArrayRef<Tensor> tangents) const override {
    const auto [held, counts] = holders_and_counts(saved, tangents);
    return of_defined(tangents, [&, &held = held, &counts = counts](const Tensors& given) {
      Tensors totals;
      for (size_t k = 0; k < given.size(); ++k) totals.push_back((given[k] * held[k]).sum(0));
      totals = sum(group_, name_, totals);
      for (size_t k = 0; k < given.size(); ++k) totals[k] = totals[k] / counts[k];
      return totals;
    });
  }
  void map(VmapFrame& frame) const override { map_alongside(frame, true); }

  const char* name_;
  Extremum which_;
};

template <class Op, class... Args>
Tensors call(const Tensors& operands, Args&&... args) {
  const auto op = c10::make_intrusive<Op>(std::forward<Args>(args)...);
  return (*op)(operands);
}

}  // namespace

Tensors sum(const GroupPointer& group, const char* name, const Tensors& parts) { return call<Sum>(parts, group, name); }
Tensors vary(const GroupPointer& group, const Tensors& shared) { return call<Vary>(shared, group); }
Tensors gather(const GroupPointer& group, const char* name, const Counts& counts, const Tensors& parts) {
  return call<Gather>(parts, group, name, counts);
}
Tensors part(const GroupPointer& group, const Counts& counts, const Tensors& shared) {
  return call<Part>(shared, group, counts);
}
Tensors permute(const GroupPointer& group, const char* name, const Counts& counts,
                const std::vector<std::pair<int64_t, int64_t>>& pairs, const Tensors& parts) {
  return call<Permute>(parts, group, name, route_of(*group, *counts, pairs));
}
Tensors regroup(const GroupPointer& group, const char* name, const Counts& counts, const Tensors& parts) {
  return call<Regroup>(parts, group, name, counts);
}
Tensors extremum(const GroupPointer& group, const char* name, Extremum which, const Tensors& parts) {
  return call<ExtremumOperator>(parts, group, name, which);
}

Tensor holders(const Tensor& x, const Tensor& of) { return at::eq(x, of.unsqueeze(0)).to(x.scalar_type()); }

}  // namespace tower::mesh

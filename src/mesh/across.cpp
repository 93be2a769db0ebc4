#include "mesh/across.h"

#include <ATen/Dispatch.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <limits>
#include <numeric>

#include "core/bind.h"
#include "operators/libtorch_bridge.h"

namespace tower::mesh {

std::vector<int64_t> Group::gather_number(const char* name, int64_t number) {
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
    Tensors results;
    for (const Tensor& t : operands) results.push_back(at::alias(t));
    return results;
  }
  Tensors transpose(const Tensors& cotangents) const override { return sum(group_, "sum of derivatives", cotangents); }
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

class Part final : public LinearOperator {
 public:
  Part(GroupPointer group, Counts counts)
      : LinearOperator("part_across", std::move(group)), counts_(std::move(counts)) {}

 private:
  Tensors evaluate(const Tensors& operands) const override {
    const auto here = counts_->begin() + group_->rank();
    const int64_t start = std::accumulate(counts_->begin(), here, int64_t{0});
    Tensors results;
    for (const Tensor& t : operands) results.push_back(t.narrow(0, start, *here));
    return results;
  }
  Tensors transpose(const Tensors& cotangents) const override {
    return gather(group_, "gather of derivatives", counts_, cotangents);
  }
  bool moves_dimensions() const override { return true; }
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
Tensors extremum(const GroupPointer& group, const char* name, Extremum which, const Tensors& parts) {
  return call<ExtremumOperator>(parts, group, name, which);
}

Tensor holders(const Tensor& x, const Tensor& of) { return at::eq(x, of.unsqueeze(0)).to(x.scalar_type()); }

}  // namespace tower::mesh

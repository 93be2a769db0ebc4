#include "control/kept_calls.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/memory.h"
#include "core/of_thread.h"
#include "interpreters/surface.h"
#include "interpreters/vjp.h"
#include "tower/errors.h"

namespace tower {
namespace {

using dynamic::Function;
using dynamic::Tensors;

// "aten::add" names all overloads of it, "aten::add.Tensor" one.
bool names(const std::string& given, const std::string& op) {
  return op.compare(0, given.size(), given) == 0 && (op.size() == given.size() || op[given.size()] == '.');
}

// The level that a checkpoint's function is evaluated on.
class Keeper final : public Vjp {
 public:
  /// At the first evaluation.
  Keeper(const CheckpointOptions& options, KeptCalls& kept) : Vjp("checkpoint"), options_(&options), chosen_(&kept) {}
  /// At a further one; with `known` results, for a pullback.
  Keeper(const KeptCalls& kept, const Tensors* known) : Vjp("checkpoint"), planned_(&kept), known_results_(known) {}

  void process(const Operator& op, Stack& stack) override {
    if (is_compiled() && DecidedByValues::depth() > decided_outside_) {
      Vjp::process(op, stack);
    } else {
      const Place before = place_;
      try {
        count(op, stack);
      } catch (...) {
        known_ = nullptr;
        place_ = before;  // a call that turns out to capture a tensor is made again, with that as an operand
        throw;
      }
    }
    if (!known_results_) tape().release_newest();  // nobody will pull back
  }

  /// The function gave a value a name.
  void name(Tensor t, const std::string& name) {
    if (!options_ ||
        std::find(options_->keep_names.begin(), options_->keep_names.end(), name) == options_->keep_names.end())
      return;
    while (Wrapper* w = as_wrapper(t)) {
      if (as_wrapper_of(t, *this)) {
        Wrapper& root = w->root();
        if (&root.level() != this) return;
        const Payload& whole = root.payload();
        const auto made = producers_.find(whole.index);
        if (made != producers_.end()) keep(made->second.first, *made->second.second, {whole});
        return;
      }
      Tensor value = w->payload().value;
      t = std::move(value);
    }
  }

  /// What the kept calls gave, as tensors of this level.
  Tensors take_results() {
    Tensors all;
    if (options_) chosen_->calls.clear();
    for (auto& [number, kept] : results_) {
      if (options_) chosen_->calls.push_back({number, kept.op, kept.results.size()});
      for (Payload& result : kept.results) all.push_back(wrap(*this, std::move(result)));
    }
    if (planned_ && results_.size() != planned_->calls.size()) refuse_other_calls(planned_->calls[results_.size()].op);
    results_.clear();
    return all;
  }

 private:
  // Values as they are now, whatever is written to the tensors later. (Tensors of this level would keep it alive.)
  struct Results {
    std::string op;
    std::vector<Payload> results;
  };

  // Where an evaluation has come to.
  struct Place {
    int64_t calls = 0;
    size_t next = 0, given = 0;  // among the planned calls and their results
  };

  bool is_compiled() const { return (options_ ? chosen_ : planned_)->compiled; }

  void count(const Operator& op, Stack& stack) {
    const int64_t number = place_.calls++;
    if (!options_) return again(number, op, stack);
    Vjp::process(op, stack);
    choose(number, op, stack);
  }

  void keep(int64_t number, const Operator& op, std::vector<Payload> results) {
    results_.try_emplace(number, Results{op.name(), std::move(results)});
  }

  std::vector<Payload> payloads(const Stack& results) const {
    std::vector<Payload> all;
    for (const IValue& v : results) {
      Wrapper* w = as_wrapper_of(v.toTensor(), *this);
      all.push_back(w ? w->payload() : Payload{v.toTensor(), {}, -1});
    }
    return all;
  }

  // Random numbers must be drawn all the same, and a view is made of what is there.
  static bool can_be_kept(const Operator& op, const Stack& results) {
    return !op.random() && !op.is_view() && !results.empty() &&
           std::all_of(results.begin(), results.end(),
                       [](const IValue& v) { return v.isTensor() && v.toTensor().defined(); });
  }

  void choose(int64_t number, const Operator& op, const Stack& stack) {
    if (!can_be_kept(op, stack)) return;
    if (!options_->keep_names.empty() && stack.size() == 1)
      if (Wrapper* w = as_wrapper_of(stack[0].toTensor(), *this); w && w->payload().index >= 0)
        producers_[w->payload().index] = {number, &op};
    bool chosen = std::any_of(options_->keep.begin(), options_->keep.end(),
                              [&](const std::string& given) { return names(given, op.name()); });
    if (!chosen && options_->policy) {
      Tensors values;
      for (const Payload& result : payloads(stack)) values.push_back(result.value);
      const Below below(*this);
      chosen = options_->policy(op.name(), values);
    }
    if (chosen) keep(number, op, payloads(stack));
  }

  void again(int64_t number, const Operator& op, Stack& stack) {
    if (place_.next == planned_->calls.size() || planned_->calls[place_.next].number != number) {
      known_ = nullptr;
      return Vjp::process(op, stack);
    }
    const KeptCalls::Kept& call = planned_->calls[place_.next++];
    if (call.op != op.name()) refuse_other_calls(call.op);
    Stack known;
    if (known_results_) {
      for (size_t k = 0; k < call.results; ++k) known.emplace_back((*known_results_)[place_.given++]);
      known_ = &known;
    }
    Vjp::process(op, stack);
    known_ = nullptr;
    keep(number, op, payloads(stack));
  }

  [[noreturn]] static void refuse_other_calls(const std::string& op) {
    throw DerivativeError("checkpoint: a result of " + op +
                          " was kept, but evaluated again the function called other operators. It must do the same at "
                          "each evaluation.");
  }

  const CheckpointOptions* options_ = nullptr;
  KeptCalls* chosen_ = nullptr;
  const KeptCalls* planned_ = nullptr;
  const Tensors* known_results_ = nullptr;
  const int64_t decided_outside_ = DecidedByValues::depth();
  Place place_;
  std::map<int64_t, Results> results_;                                // by number
  std::map<int64_t, std::pair<int64_t, const Operator*>> producers_;  // by slot
};

std::vector<int64_t> differentiable(const Tensors& operands) {
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < operands.size(); ++i)
    if (operands[i].is_floating_point() || operands[i].is_complex()) numbers.push_back(static_cast<int64_t>(i));
  return numbers;
}

// Outputs of the function and then what is kept.
Evaluated evaluate_on(const c10::intrusive_ptr<Keeper>& keeper, const Function& f, const Tensors& operands,
                      size_t* outs = nullptr) {
  const auto with_results = [&](const Tensors& given) {
    Tensors all = f(given);
    if (outs) *outs = all.size();
    for (Tensor& t : keeper->take_results()) all.push_back(std::move(t));
    return std::pair(std::move(all), Tensors());
  };
  return evaluate(with_results, operands, differentiable(operands), keeper);
}

}  // namespace

void check_options(const CheckpointOptions& options) {
  const auto is_there = [](const std::string& name) {
    struct Kept {
      std::set<std::string> names;
    };
    auto& known = of_thread<Kept>().names;
    if (known.count(name)) return true;
    for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames())
      if (names(name, op.overload_name.empty() ? op.name : op.name + "." + op.overload_name))
        return known.insert(name).second;
    return false;
  };
  for (const std::string& name : options.keep)
    if (!is_there(name))
      throw ArgumentError("checkpoint: keep names the operator '" + name +
                          "', which LibTorch does not know. Operators have names like 'aten::mm'; explain() lists "
                          "those that a function calls.");
}

Tensors evaluate_and_choose(const Function& f, const Tensors& operands, const CheckpointOptions& options,
                            KeptCalls& kept) {
  const memory::InTransform here;
  return evaluate_on(c10::make_intrusive<Keeper>(options, kept), f, operands, &kept.outs).outs;
}

Tensors evaluate_as_chosen(const Function& f, const Tensors& operands, const KeptCalls& kept) {
  const memory::InTransform here;
  return evaluate_on(c10::make_intrusive<Keeper>(kept, nullptr), f, operands).outs;
}

Tensors pull_back_with_kept(const Function& f, const Tensors& operands, const Tensors& results, const KeptCalls& kept,
                            const Tensors& cotangents, const std::vector<bool>& needs) {
  const memory::InTransform here;
  Evaluated e = evaluate_on(c10::make_intrusive<Keeper>(kept, &results), f, operands);
  e.outs.clear();
  Tensors found = pull_back(e, cotangents, "checkpoint", /*consume=*/true), gradients(operands.size());
  size_t next = 0;
  for (const int64_t i : differentiable(operands)) {
    Tensor& gradient = found[next++];
    if (needs[static_cast<size_t>(i)] && gradient.defined()) gradients[static_cast<size_t>(i)] = std::move(gradient);
  }
  return gradients;
}

Tensor checkpoint_name(const Tensor& t, const std::string& name) {
  for (Level* level = top(); level; level = level->below())
    if (auto* keeper = dynamic_cast<Keeper*>(level)) keeper->name(t, name);
  return t;
}

}  // namespace tower

#include "compile/loop_rules.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "compile/loop_backwards.h"
#include "core/tensor_lists.h"
#include "fuse/fused_plan.h"
#include "graph/trace.h"
#include "operators/differentiate.h"
#include "tower/errors.h"

namespace tower::compiler {

using dynamic::Function;
using dynamic::Tensors;

std::vector<bool> are_defined(const Tensors& tensors) {
  std::vector<bool> result;
  for (const Tensor& t : tensors) result.push_back(t.defined());
  return result;
}
Tensors only_defined(Tensors tensors) {
  std::erase_if(tensors, [](const Tensor& t) { return !t.defined(); });
  return tensors;
}
Tensors in_places(const std::vector<bool>& places, Tensors::const_iterator next) {
  Tensors result(places.size());
  for (size_t k = 0; k < places.size(); ++k)
    if (places[k]) result[k] = *next++;
  return result;
}
Tensor or_zeros(const Tensor& t, const Tensor& like) { return t.defined() ? t : at::zeros_like(like); }

Function pullback_of(const Function& f, const std::vector<bool>& given, const std::vector<bool>& needs) {
  return [=](const Tensors& all) {
    const auto split = all.begin() + static_cast<std::ptrdiff_t>(needs.size());
    const Tensors operands(all.begin(), split);
    const Tensors gradients = pull_back_through(f, operands, in_places(given, split), needs);
    Tensors found;
    for (size_t i = 0; i < needs.size(); ++i)
      if (needs[i]) found.push_back(or_zeros(gradients[i], operands[i]));
    return found;
  };
}

namespace {

HigherOrderRules rules_of_call(const std::string& name, const std::shared_ptr<const KnownCode>& code,
                               const Function& f);

// `f` as one call where a trace runs.
Tensors called(const std::string& name, const std::shared_ptr<const KnownCode>& code, const Function& f,
               const Tensors& operands) {
  return tracing() ? call_known(rules_of_call(name, code, f), code, operands) : f(operands);
}

// A function that is not traced: what it calls depends on values. Its derivatives are calls, too.
HigherOrderRules rules_of_call(const std::string& name, const std::shared_ptr<const KnownCode>& code,
                               const Function& f) {
  HigherOrderRules rules;
  rules.name = name;
  rules.forward = [f](const Tensors& operands, const Attributes&) { return f(operands); };
  rules.save = [](const Tensors& operands, const Tensors&, const Attributes&) { return Residuals{operands, {}}; };
  rules.jvp = [=](const Residuals& saved, const Tensors& tangents, const Attributes&) {
    const auto along = [f, given = are_defined(tangents)](const Tensors& all) {
      const auto split = all.begin() + static_cast<std::ptrdiff_t>(given.size());
      auto [outs, found] = dynamic::jvp(f, Tensors(all.begin(), split), in_places(given, split));
      for (size_t k = 0; k < found.size(); ++k) found[k] = or_zeros(found[k], outs[k]);
      return std::move(found);
    };
    return called(name + "_forward", code, along, joined(saved.tensors, only_defined(tangents)));
  };
  rules.vjp = [=](const Residuals& saved, const Tensors& cotangents, const std::vector<bool>& needs,
                  const Attributes&) {
    const Function back = pullback_of(f, are_defined(cotangents), needs);
    const Tensors found = called(name + "_backward", code, back, joined(saved.tensors, only_defined(cotangents)));
    return in_places(needs, found.begin());
  };
  return rules;
}

Function run_of(const std::shared_ptr<const Loop>& loop) {
  return [loop](const Tensors& operands) { return loop->run(operands); };
}
// What makes the loop's steps again, and is otherwise not known.
std::shared_ptr<const KnownCode> code_of_steps(const Loop& loop) {
  const auto code = std::make_shared<KnownCode>();
  code->random = loop.random;
  code->foreign = loop.foreign;
  return code;
}

// NOTE [Derivatives of a loop's pullback]
// A loop's pullback is no loop that could be traced, but its derivatives come to loops that are. With J the loop's
// derivative at x, c cotangents and u what multiplies the gradients: ⟨u, Jᵀc⟩ = ⟨Ju, c⟩, and Ju is the loop over state
// and tangents. So the gradient of the pullback by x is that loop's pullback of c, and by c it is that loop itself. As
// second derivatives do not depend on their order, u may as well be a direction in which x moves: the pullback's
// tangent is the same pullback, and Jᵀ of the tangents of c. This is for steps whose derivatives are all those of their
// values: what users say about theirs is code that is not known, and is differentiated as it is written.
class PullbackOfLoop {
 public:
  PullbackOfLoop(std::shared_ptr<const Loop> loop, const std::vector<bool>& given, const std::vector<bool>& needs)
      : loop_(std::move(loop)), given_(given), needs_(needs) {}

  // The gradients that are asked for, as a call; `all`: operands of the loop, and the cotangents that are given.
  Tensors call(const Tensors& all) const {
    const Tensors operands(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(needs_.size()));
    const auto code = std::make_shared<const LoopBackwards>(loop_, given_, needs_, operands);
    // A loop over large tensors whose way back is no such is traced as its steps.
    if (loop_->in_tiles() && !code->is_in_tiles()) {
      const auto written_out = [loop = loop_](const Tensors& x) { return loop->run_written_out(x); };
      return pullback_of(written_out, given_, needs_)(all);
    }
    return call_known(rules(code), code, all);
  }

  HigherOrderRules rules(const std::shared_ptr<const LoopBackwards>& code) const {
    HigherOrderRules rules = rules_of_call(loop_->name() + std::string("_backward"), code_of_steps(*loop_),
                                           pullback_of(run_of(loop_), given_, needs_));
    rules.forward = [code, plain = rules.forward](const Tensors& all, const Attributes& attributes) {
      auto found = is_plain(all) ? code->run_in_tiles(all) : std::nullopt;
      return found ? *std::move(found) : plain(all, attributes);
    };
    if (loop_->random || loop_->foreign) return rules;
    rules.vjp = [self = *this, plain = rules.vjp](const Residuals& saved, const Tensors& u,
                                                  const std::vector<bool>& needs, const Attributes& attributes) {
      if (!tracing()) return plain(saved, u, needs, attributes);
      try {
        return self.pull_back(saved.tensors, u, needs);
      } catch (const UnsupportedError&) {  // an operator that has no forward mode
        return plain(saved, u, needs, attributes);
      }
    };
    rules.jvp = [self = *this, plain = rules.jvp](const Residuals& saved, const Tensors& tangents,
                                                  const Attributes& attributes) {
      if (!tracing()) return plain(saved, tangents, attributes);
      try {
        return self.push_forward(saved.tensors, tangents);
      } catch (const UnsupportedError&) {
        return plain(saved, tangents, attributes);
      }
    };
    return rules;
  }

 private:
  Tensors pull_back(const Tensors& all, const Tensors& u, const std::vector<bool>& needs) const {
    const auto operands = static_cast<std::ptrdiff_t>(needs_.size());
    Tensors tangents(needs_.size());
    for (size_t i = 0, k = 0; i < needs_.size(); ++i)
      if (needs_[i]) tangents[i] = u[k++];
    const Tensors x(all.begin(), all.begin() + operands);
    Tensors gradients(all.size());
    const std::vector<bool> by_x(needs.begin(), needs.begin() + operands);
    if (std::find(by_x.begin(), by_x.end(), true) != by_x.end()) {
      const Tensors found = along(x, tangents, all, by_x);
      std::copy(found.begin(), found.end(), gradients.begin());
    }
    if (std::find(needs.begin() + operands, needs.end(), true) == needs.end()) return gradients;
    const Tensors moved = loop_->push_forward(x, tangents);
    for (size_t k = 0, next = needs_.size(); k < given_.size(); ++k)
      if (given_[k]) gradients[next++] = moved[k];
    return gradients;
  }

  Tensors push_forward(const Tensors& all, const Tensors& tangents) const {
    const auto operands = static_cast<std::ptrdiff_t>(needs_.size());
    const Tensors x(all.begin(), all.begin() + operands), dx(tangents.begin(), tangents.begin() + operands);
    const auto is_defined = [](const Tensor& t) { return t.defined(); };
    Tensors result(static_cast<size_t>(std::count(needs_.begin(), needs_.end(), true)));
    if (std::any_of(dx.begin(), dx.end(), is_defined)) {
      const Tensors found = along(x, dx, all, needs_);
      for (size_t i = 0, k = 0; i < needs_.size(); ++i)
        if (needs_[i]) result[k++] = found[i];
    }
    if (std::none_of(tangents.begin() + operands, tangents.end(), is_defined)) return result;
    std::vector<bool> given = given_;
    for (size_t k = 0, next = needs_.size(); k < given.size(); ++k)
      if (given_[k]) given[k] = tangents[next++].defined();
    const Tensors of_cotangents =
        PullbackOfLoop(loop_, given, needs_)
            .call(joined(x, only_defined(Tensors(tangents.begin() + operands, tangents.end()))));
    for (size_t k = 0; k < result.size(); ++k)
      result[k] = result[k].defined() ? result[k] + of_cotangents[k] : of_cotangents[k];
    return result;
  }

  // The gradient of ⟨c, J(x) u⟩ by x.
  Tensors along(const Tensors& x, const Tensors& u, const Tensors& all, const std::vector<bool>& needs) const {
    Tensors c;
    for (size_t k = 0, next = needs_.size(); k < given_.size(); ++k)
      if (given_[k]) c.push_back(all[next++]);
    const auto moved = [&](const Tensors& at) {
      const Tensors tangents = loop_->push_forward(at, u);
      Tensors found;
      for (size_t k = 0; k < given_.size(); ++k)
        if (given_[k]) found.push_back(tangents[k]);
      return found;
    };
    return pull_back_through(moved, x, c, needs);
  }

  std::shared_ptr<const Loop> loop_;
  std::vector<bool> given_, needs_;  // cotangents of the results; gradients of the operands
};

}  // namespace

// A loop is traced, and so is its forward mode. Its pullback makes as many steps as there were: in a kernel, or again.
HigherOrderRules rules_of(const std::shared_ptr<const Loop>& loop) {
  const Function run = run_of(loop);
  HigherOrderRules rules = rules_of_call(loop->name(), code_of_steps(*loop), run);
  rules.vjp = [=](const Residuals& saved, const Tensors& cotangents, const std::vector<bool>& needs,
                  const Attributes&) {
    const std::vector<bool> given = are_defined(cotangents);
    const Tensors all = joined(saved.tensors, only_defined(cotangents));
    const Tensors found =
        tracing() ? PullbackOfLoop(loop, given, needs).call(all) : pullback_of(run, given, needs)(all);
    return in_places(needs, found.begin());
  };
  rules.jvp = [loop](const Residuals& saved, const Tensors& tangents, const Attributes&) {
    return loop->push_forward(saved.tensors, tangents);
  };
  return rules;
}

HigherOrderRules rules_of_pullback(const std::shared_ptr<const LoopBackwards>& code,
                                   const std::shared_ptr<const Loop>& loop, const std::vector<bool>& given,
                                   const std::vector<bool>& needs) {
  return PullbackOfLoop(loop, given, needs).rules(code);
}

}  // namespace tower::compiler

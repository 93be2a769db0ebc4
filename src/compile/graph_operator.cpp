#include "compile/graph_operator.h"

#include <algorithm>

#include "compile/compiled_graph.h"
#include "compile/specialisations.h"
#include "graph/split.h"
#include "graph/trace.h"

namespace tower::compiler {
namespace {

using dynamic::Dims;
using dynamic::Function;
using dynamic::Tensors;

constexpr size_t kMostImages = 16;  // of one transform

enum class Mode : uint8_t { pullback, tangents };

// Which operands a derivative is for, along what, and in which modes of the thread it is computed.
struct DerivativeKind {
  Mode mode;
  std::vector<bool> active;            // operands
  std::vector<TensorKind> directions;  // cotangents of the outputs, or tangents of the operands; undefined: zero
  Modes modes;

  bool operator==(const DerivativeKind&) const = default;
};

struct Derivative {
  Derivative(DerivativeKind of, Graph joint, Halves halves, const std::shared_ptr<Kernels>& kernels)
      : kind(std::move(of)),
        whole(std::move(joint), kernels),
        from_operands(std::move(halves.from_operands)),
        first(std::move(halves.first), kernels),
        second(std::move(halves.second), kernels) {}

  DerivativeKind kind;
  CompiledGraph whole;  // of operands and directions
  std::vector<size_t> from_operands;
  CompiledGraph first, second;
};

template <class T>
Tensors chosen(const Tensors& all, const T& which) {
  Tensors some;
  for (size_t i = 0; i < all.size(); ++i)
    if (which[i]) some.push_back(all[i]);
  return some;
}

// `all`, with those that `which` says replaced by `some`, in order.
template <class T>
Tensors with_chosen(Tensors all, const T& which, const Tensors& some) {
  auto next = some.begin();
  for (size_t i = 0; i < all.size(); ++i)
    if (which[i]) all[i] = *next++;
  return all;
}

}  // namespace

class GraphOperator::Images {
 public:
  Images(Graph graph, std::shared_ptr<Kernels> kernels)
      : outs_(graph.results.size()),
        operands_(graph.arguments.size()),
        plan_(std::move(graph), kernels),
        kernels_(std::move(kernels)) {}

  Tensors run(const Tensors& operands) const { return plan_.run(operands); }
  Tensors operator_by_operator(const Tensors& x) const { return plan_.plain().run(x); }

  Tensors map(const Dims& in_dims, const Tensors& operands) const {
    const detail::Specialisations image = image_for(in_dims);
    const Function f = dynamic::vmap([this](const Tensors& x) { return operator_by_operator(x); }, in_dims, {0});
    return image
        .run(
            operands, detail::StaticKey::of(), f, [] { return detail::Specialisations::Rest(); },
            detail::Specialisations::always_same)
        .first;
  }

  // The results; and to save, the operands, then what the second half of the latest derivative needs besides.
  std::pair<Tensors, Residuals> run_and_save(const Tensors& operands) const {
    const std::shared_ptr<const Derivative> derivative = latest();
    if (!derivative) return {run(operands), {operands, {}}};
    const Tensors all = derivative->first.run(operands);
    const auto split = all.begin() + static_cast<std::ptrdiff_t>(outs_);
    Residuals saved{operands, derivative};
    saved.tensors.insert(saved.tensors.end(), split, all.end());
    return {Tensors(all.begin(), split), std::move(saved)};
  }

  Tensors pull_back(const Residuals& saved, const Tensors& cotangents, const std::vector<bool>& needs) const {
    const Tensors gradients =
        differentiate(Mode::pullback, saved, needs, cotangents, [&](const Tensors& x, const Tensors& cts) {
          auto [outs, pullback] =
              dynamic::vjp([&](const Tensors& some) { return operator_by_operator(with_chosen(x, needs, some)); },
                           chosen(x, needs), {.consume = true});
          return std::pair(std::move(outs), pullback(cts));
        });
    return with_chosen(Tensors(operands_), needs, gradients);
  }

  Tensors push_forward(const Residuals& saved, const Tensors& tangents) const {
    std::vector<bool> active;
    for (const Tensor& t : tangents) active.push_back(t.defined());
    return differentiate(Mode::tangents, saved, active, tangents, [&](const Tensors& x, const Tensors& ts) {
      return dynamic::jvp([&](const Tensors& some) { return operator_by_operator(with_chosen(x, active, some)); },
                          chosen(x, active), chosen(ts, active));
    });
  }

  Report report() const {
    std::list<MappedImage> mapped;
    std::list<std::shared_ptr<const Derivative>> derivatives;
    {
      const std::lock_guard lock(mutex_);
      mapped = mapped_;
      derivatives = derivatives_;
    }
    Report report;
    for (const auto& [dims, image] : mapped) report.add_below("under vmap", image->report());
    for (const auto& derivative : derivatives) {
      const bool reverse = derivative->kind.mode == Mode::pullback;
      report.add_below(reverse ? "under vjp, recorded" : "under jvp, recorded", derivative->first.report());
      report.add_below(reverse ? "under vjp, pulled back" : "under jvp, tangents", derivative->second.report());
    }
    return report;
  }

 private:
  using MappedImage = std::pair<Dims, std::shared_ptr<detail::Specialisations::State>>;

  detail::Specialisations image_for(const Dims& in_dims) const {
    const auto fresh = std::make_shared<detail::Specialisations::State>(kernels_);
    std::list<MappedImage> forgotten;  // freed after the lock
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(mapped_.begin(), mapped_.end(), [&](const auto& m) { return m.first == in_dims; });
    if (found != mapped_.end()) return detail::Specialisations(found->second);
    mapped_.emplace_front(in_dims, fresh);
    if (mapped_.size() > kMostImages) forgotten.splice(forgotten.begin(), mapped_, std::prev(mapped_.end()));
    return detail::Specialisations(fresh);
  }

  std::shared_ptr<const Derivative> latest() const {
    const std::lock_guard lock(mutex_);
    return derivatives_.empty() ? nullptr : derivatives_.front();
  }

  std::shared_ptr<const Derivative> find(const DerivativeKind& kind) const {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(derivatives_.begin(), derivatives_.end(),
                                    [&](const auto& derivative) { return derivative->kind == kind; });
    if (found == derivatives_.end()) return nullptr;
    derivatives_.splice(derivatives_.begin(), derivatives_, found);
    return derivatives_.front();
  }

  // Keeps a derivative, if no other thread has made the same meanwhile.
  void note(std::shared_ptr<const Derivative> made) const {
    std::list<std::shared_ptr<const Derivative>> forgotten;  // freed after the lock
    const std::lock_guard lock(mutex_);
    for (const auto& derivative : derivatives_)
      if (derivative->kind == made->kind) return;
    derivatives_.push_front(std::move(made));
    if (derivatives_.size() > kMostImages)
      forgotten.splice(forgotten.begin(), derivatives_, std::prev(derivatives_.end()));
  }

  // `f(x, directions)`: the outputs, and the derivative along the directions.
  template <class F>
  Tensors differentiate(Mode mode, const Residuals& saved, const std::vector<bool>& active, const Tensors& directions,
                        const F& f) const {
    const auto end = saved.tensors.begin() + static_cast<std::ptrdiff_t>(operands_);
    DerivativeKind kind{mode, active, std::vector<TensorKind>(directions.begin(), directions.end()), {}};
    std::vector<bool> given;
    for (const Tensor& t : directions) given.push_back(t.defined());
    const Tensors along = chosen(directions, given);
    Tensors args(saved.tensors.begin(), end);
    if (const auto derivative = find(kind)) {
      const bool is_first_half = saved.other == derivative;
      if (is_first_half) {
        args.clear();
        for (const size_t i : derivative->from_operands) args.push_back(saved.tensors[i]);
        args.insert(args.end(), end, saved.tensors.end());
      }
      args.insert(args.end(), along.begin(), along.end());
      return (is_first_half ? derivative->second : derivative->whole).run(args);
    }
    args.insert(args.end(), along.begin(), along.end());
    const Function joint = [&](const Tensors& all) {
      const auto split = all.begin() + static_cast<std::ptrdiff_t>(operands_);
      auto [outs, derivatives] =
          f(Tensors(all.begin(), split), with_chosen(directions, given, Tensors(split, all.end())));
      outs.insert(outs.end(), derivatives.begin(), derivatives.end());
      return std::move(outs);
    };
    Traced traced = trace(joint, args, "compile");
    traced.graph.simplify();
    Halves halves = split_linear(traced.graph, operands_, outs_);
    auto made = std::make_shared<const Derivative>(std::move(kind), without_results(traced.graph, outs_),
                                                   std::move(halves), kernels_);
    note(std::move(made));
    return Tensors(traced.results.begin() + static_cast<std::ptrdiff_t>(outs_), traced.results.end());
  }

  size_t outs_, operands_;
  FusedPlan plan_;
  std::shared_ptr<Kernels> kernels_;
  mutable std::mutex mutex_;  // of the lists: NOTE [Nobody else's code under a lock]
  mutable std::list<MappedImage> mapped_;
  mutable std::list<std::shared_ptr<const Derivative>> derivatives_;  // last used first
};

GraphOperator::GraphOperator(Graph graph, const std::shared_ptr<Kernels>& kernels)
    : images_(std::make_shared<Images>(std::move(graph), kernels)), op_([images = images_] {
        HigherOrderRules rules;
        rules.name = "compiled function";
        rules.forward = [images](const Tensors& x, const Attributes&) { return images->run(x); };
        rules.forward_and_save = [images](const Tensors& x, const Attributes&) { return images->run_and_save(x); };
        rules.saves_at_every_level = true;
        rules.vjp = [images](const Residuals& saved, const Tensors& cts, const std::vector<bool>& needs,
                             const Attributes&) { return images->pull_back(saved, cts, needs); };
        rules.jvp = [images](const Residuals& saved, const Tensors& tangents, const Attributes&) {
          return images->push_forward(saved, tangents);
        };
        rules.sparsity = [images](const Tensors& x, const Attributes&) { return images->operator_by_operator(x); };
        rules.vmap = [images](const VmapInfo&, const Dims& in_dims, const Tensors& x, const Attributes&) {
          return std::pair(images->map(in_dims, x), Dims{0});
        };
        return rules;
      }()) {}

Report GraphOperator::report() const { return images_->report(); }

}  // namespace tower::compiler

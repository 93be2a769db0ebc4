#include "tower/compile.h"

#include <algorithm>
#include <list>
#include <mutex>

#include "compile/call_kind.h"
#include "compile/compiled_graph.h"
#include "compile/trace.h"
#include "core/bind.h"
#include "tower/graph.h"

namespace tower {

using dynamic::Function;
using dynamic::Tensors;

// ---- static arguments ----------------------------------------------------------------------------------------------

bool detail::same_number(const at::Scalar& a, const at::Scalar& b) {
  if (a.type() != b.type()) return false;
  if (a.isComplex()) {
    const auto x = a.toComplexDouble(), y = b.toComplexDouble();
    return same_number(x.real(), y.real()) && same_number(x.imag(), y.imag());
  }
  return a.isFloatingPoint() ? same_number(a.toDouble(), b.toDouble()) : a.equal(b.toLong());
}

std::string detail::text_of(const at::TensorOptions& options) { return c10::toString(options); }

bool detail::StaticKey::operator==(const StaticKey& other) const {
  return type_ == other.type_ && shape_ == other.shape_ &&
         std::equal(parts_.begin(), parts_.end(), other.parts_.begin(), other.parts_.end(),
                    [](const Part& a, const Part& b) { return a.same(a.value.get(), b.value.get()); });
}

// ---- specialisation ------------------------------------------------------------------------------------------------

namespace {

// What is traced for one kind of call.
struct Specialisation {
  std::vector<compiler::TensorKind> tensors;
  detail::StaticKey statics;
  compiler::Modes modes;
  std::shared_ptr<const compiler::CompiledGraph> graph;
  detail::Specialisations::Rest rest;
};

constexpr size_t kMostGraphs = 64;

}  // namespace

struct detail::Specialisations::State {
  std::mutex mutex;
  std::list<Specialisation> known;  // last used first
  std::shared_ptr<compiler::Kernels> kernels = std::make_shared<compiler::Kernels>();
};

detail::Specialisations::Specialisations() : state_(std::make_shared<State>()) {}

std::size_t detail::Specialisations::count() const {
  const std::lock_guard lock(state_->mutex);
  return state_->known.size();
}

std::string detail::Specialisations::report() const {
  const std::lock_guard lock(state_->mutex);
  std::string text;
  for (const Specialisation& s : state_->known) {
    text += "graph";
    for (const compiler::TensorKind& t : s.tensors)
      text += t.defined ? " " + std::string(c10::toString(t.dtype)) + " " + c10::str(at::IntArrayRef(t.sizes)) : " -";
    text += "\n" + s.graph->report();
  }
  return text;
}

std::pair<Tensors, detail::Specialisations::Rest> detail::Specialisations::run(
    const Tensors& args, const StaticKey& statics, const Function& f, const std::function<Rest()>& rest) const {
  // LibTorch's forward mode keeps tangents where a graph does not see them.
  if (std::any_of(args.begin(), args.end(), [](const Tensor& t) { return t.defined() && is_libtorch_dual(t); })) {
    Tensors results = f(args);
    return {std::move(results), rest()};
  }
  std::vector<compiler::TensorKind> tensors(args.begin(), args.end());
  const compiler::Modes modes;
  const auto is_wanted = [&](const Specialisation& s) {
    return s.tensors == tensors && s.modes == modes && s.statics == statics;
  };
  std::shared_ptr<const compiler::CompiledGraph> graph;
  Rest static_parts;
  {
    const std::lock_guard lock(state_->mutex);
    auto& known = state_->known;
    const auto found = std::find_if(known.begin(), known.end(), is_wanted);
    if (found != known.end()) {
      known.splice(known.begin(), known, found);
      graph = found->graph;
      static_parts = found->rest;
    }
  }
  if (graph && graph->fits()) return {graph->run(args), static_parts};

  compiler::Traced traced = compiler::trace(f, args, "compile");
  traced.graph.simplify();
  Specialisation made{std::move(tensors), statics, modes,
                      std::make_shared<const compiler::CompiledGraph>(std::move(traced.graph), state_->kernels),
                      rest()};
  static_parts = made.rest;
  const std::lock_guard lock(state_->mutex);
  auto& known = state_->known;
  known.remove_if([&](const Specialisation& s) {
    return s.tensors == made.tensors && s.modes == made.modes && s.statics == made.statics;
  });
  known.push_front(std::move(made));
  if (known.size() > kMostGraphs) known.pop_back();
  return {std::move(traced.results), static_parts};
}

Function dynamic::compile(Function f) {
  return [f = std::move(f), specialisations = detail::Specialisations()](const Tensors& args) {
    return specialisations.run(args, detail::StaticKey::of(), f, [] { return detail::Specialisations::Rest(); }).first;
  };
}

std::function<Graph(const Tensors&)> dynamic::graph(Function f) {
  return [f = std::move(f)](const Tensors& args) {
    compiler::Traced traced = compiler::trace(f, args, "graph");
    traced.graph.simplify();
    return compiler::published(traced.graph);
  };
}

}  // namespace tower

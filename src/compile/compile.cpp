#include "tower/compile.h"

#include <algorithm>
#include <list>
#include <mutex>

#include "compile/call_kind.h"
#include "compile/compiled_graph.h"
#include "compile/lanes.h"
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

// A graph for one kind of call.
struct Specialisation {
  std::vector<compiler::TensorKind> tensors;
  detail::StaticKey statics;
  compiler::Modes modes;
  std::shared_ptr<const compiler::CompiledGraph> graph;
  detail::Specialisations::Rest rest;
  bool traced;
};

// Two of them that differ in the number of examples, and so give the graph for any.
struct Family {
  compiler::LaneKinds tensors;
  compiler::LaneGraph graph;
  detail::StaticKey statics;
  compiler::Modes modes;
  detail::Specialisations::Rest rest;
};

constexpr int kMostGraphs = 64;  // that were traced, and as many that follow from these
constexpr size_t kMostFamilies = 8;
constexpr size_t kOften = 32;  // traced, which somebody should hear of

std::vector<compiler::TensorKind> kinds_of(const Tensors& args) { return {args.begin(), args.end()}; }

std::string kinds_text(const std::vector<compiler::TensorKind>& kinds) {
  std::string text;
  for (const compiler::TensorKind& t : kinds)
    text += t.defined ? " " + std::string(c10::toString(t.dtype)) + " " + c10::str(at::IntArrayRef(t.sizes)) : " -";
  return text;
}

// What differs between two calls, as a warning names it.
std::string difference(const Specialisation& a, const Specialisation& b) {
  for (size_t i = 0; i < a.tensors.size() && i < b.tensors.size(); ++i)
    if (!(a.tensors[i] == b.tensors[i])) {
      const bool shown = kinds_text({a.tensors[i]}) != kinds_text({b.tensors[i]});
      return "argument " + std::to_string(i) + " was" + kinds_text({a.tensors[i]}) +
             (shown ? ", and is" + kinds_text({b.tensors[i]}) : ", too, but with other strides or another history");
    }
  if (!(a.statics == b.statics)) return "a static argument (a number, a string, the structure of a tree) differs";
  if (!(a.modes == b.modes)) return "grad mode, autocast or the default dtype differs";
  return "a captured tensor changed its shape";
}

}  // namespace

struct detail::Specialisations::State {
  std::mutex mutex;
  std::list<Specialisation> known;  // last used first
  std::list<Family> families;       // newest first
  size_t traced = 0;
  std::shared_ptr<compiler::Kernels> kernels = std::make_shared<compiler::Kernels>();

  // These need the lock.
  void add(Specialisation made) {
    known.remove_if([&](const Specialisation& s) {
      return s.tensors == made.tensors && s.modes == made.modes && s.statics == made.statics;
    });
    const bool traced_too = made.traced;
    known.push_front(std::move(made));
    const auto alike = [&](const Specialisation& s) { return s.traced == traced_too; };
    if (std::count_if(known.begin(), known.end(), alike) > kMostGraphs)
      known.erase(std::prev(std::find_if(known.rbegin(), known.rend(), alike).base()));
  }

  void note_traced(const Specialisation& made, SameRest* same) {
    if (++traced == kOften && !known.empty())
      TORCH_WARN("tower::compile: a function was traced ", kOften, " times. From the call before to this one, ",
                 difference(known.front(), made), ". Every kind of call has a graph of its own; the last ", kMostGraphs,
                 " are kept.");
    if (!same) return;
    for (const Specialisation& s : known) {
      if (!s.traced || !(s.statics == made.statics) || !(s.modes == made.modes) || !same(s.rest, made.rest)) continue;
      const auto kinds = compiler::LaneKinds::of(s.tensors, made.tensors);
      if (!kinds) continue;
      auto graph = compiler::LaneGraph::of(s.graph->graph(), made.graph->graph(), kinds->lanes());
      if (!graph) continue;
      families.push_front({*kinds, std::move(*graph), made.statics, made.modes, made.rest});
      if (families.size() > kMostFamilies) families.pop_back();
      return;
    }
  }
};

detail::Specialisations::Specialisations() : state_(std::make_shared<State>()) {}

std::size_t detail::Specialisations::count() const {
  const std::lock_guard lock(state_->mutex);
  return static_cast<size_t>(
      std::count_if(state_->known.begin(), state_->known.end(), [](const Specialisation& s) { return s.traced; }));
}

std::string detail::Specialisations::report() const {
  const std::lock_guard lock(state_->mutex);
  std::string text;
  for (const Specialisation& s : state_->known) text += "graph" + kinds_text(s.tensors) + "\n" + s.graph->report();
  return text;
}

std::pair<Tensors, detail::Specialisations::Rest> detail::Specialisations::run(const Tensors& args,
                                                                               const StaticKey& statics,
                                                                               const Function& f,
                                                                               const std::function<Rest()>& rest,
                                                                               SameRest* same) const {
  // LibTorch's forward mode keeps tangents where a graph does not see them.
  if (std::any_of(args.begin(), args.end(), [](const Tensor& t) { return t.defined() && is_libtorch_dual(t); })) {
    Tensors results = f(args);
    return {std::move(results), rest()};
  }
  const compiler::Modes modes;
  std::vector<compiler::TensorKind> tensors;  // made where no graph is found
  std::shared_ptr<const compiler::CompiledGraph> graph;
  Rest static_parts;
  {
    const std::lock_guard lock(state_->mutex);
    auto& known = state_->known;
    const auto found = std::find_if(known.begin(), known.end(), [&](const Specialisation& s) {
      return std::equal(s.tensors.begin(), s.tensors.end(), args.begin(), args.end(),
                        [](const compiler::TensorKind& kind, const Tensor& t) { return kind.is_of(t); }) &&
             s.modes == modes && s.statics == statics;
    });
    if (found != known.end()) {
      if (found != known.begin()) known.splice(known.begin(), known, found);
      graph = found->graph;
      static_parts = found->rest;
    } else {
      tensors = kinds_of(args);
      for (const Family& family : state_->families) {
        if (!(family.modes == modes) || !(family.statics == statics)) continue;
        const auto n = family.tensors.count(tensors);
        if (!n) continue;
        graph = std::make_shared<const compiler::CompiledGraph>(family.graph.with(*n), state_->kernels);
        static_parts = family.rest;
        state_->add({tensors, statics, modes, graph, static_parts, /*traced=*/false});
        break;
      }
    }
  }
  if (graph && graph->fits()) return {graph->run(args), static_parts};

  // Of a graph that no longer fits they were not needed.
  if (tensors.empty()) tensors = kinds_of(args);
  compiler::Traced traced = compiler::trace(f, args, "compile");
  traced.graph.simplify();
  graph = std::make_shared<const compiler::CompiledGraph>(std::move(traced.graph), state_->kernels);
  Specialisation made{std::move(tensors), statics, modes, std::move(graph), rest(), /*traced=*/true};
  static_parts = made.rest;
  const std::lock_guard lock(state_->mutex);
  state_->note_traced(made, same);
  state_->add(std::move(made));
  return {std::move(traced.results), static_parts};
}

Function dynamic::compile(Function f) {
  return [f = std::move(f), specialisations = detail::Specialisations()](const Tensors& args) {
    return specialisations
        .run(
            args, detail::StaticKey::of(), f, [] { return detail::Specialisations::Rest(); },
            detail::Specialisations::always_same)
        .first;
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

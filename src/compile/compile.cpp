#include "tower/compile.h"

#include <algorithm>

#include "compile/specialisations.h"
#include "compile/trace.h"
#include "core/bind.h"
#include "tower/errors.h"
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

std::string compiler::kinds_text(const std::vector<TensorKind>& kinds) {
  std::string text;
  for (const TensorKind& t : kinds)
    text += t.defined ? " " + std::string(c10::toString(t.dtype)) + " " + c10::str(at::IntArrayRef(t.sizes)) : " -";
  return text;
}

namespace {

using compiler::kinds_text;
using compiler::Specialisation;

constexpr int kMostGraphs = 64;  // that were traced, and as many that follow from these
constexpr size_t kMostFamilies = 8;
constexpr size_t kOften = 32;  // traced, which somebody should hear of

std::vector<compiler::TensorKind> kinds_of(const Tensors& args) { return {args.begin(), args.end()}; }

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

using State = detail::Specialisations::State;

State::Found State::find(const Tensors& args, const StaticKey& statics, const compiler::Modes& modes, bool as_plain) {
  const auto found = std::find_if(known.begin(), known.end(), [&](const Specialisation& s) {
    return std::equal(s.tensors.begin(), s.tensors.end(), args.begin(), args.end(),
                      [&](const compiler::TensorKind& kind, const Tensor& t) { return kind.is_of(t, as_plain); }) &&
           s.modes == modes && s.statics == statics && s.graph->assumptions_hold();
  });
  if (found != known.end()) {
    if (found != known.begin()) known.splice(known.begin(), known, found);
    return {found->graph, found->rest};
  }
  if (families.empty()) return {};
  std::vector<compiler::TensorKind> tensors = kinds_of(args);
  if (as_plain)
    for (compiler::TensorKind& kind : tensors) {
      kind.requires_grad = false;
      kind.leaf = true;
    }
  for (const compiler::Family& family : families) {
    if (!(family.modes == modes) || !(family.statics == statics)) continue;
    const auto n = family.tensors.count(tensors);
    if (!n) continue;
    auto graph = std::make_shared<const compiler::CompiledGraph>(family.graph.with(*n), kernels);
    add({std::move(tensors), statics, modes, graph, family.rest, /*traced=*/false});
    return {std::move(graph), family.rest};
  }
  return {};
}

void State::add(Specialisation made) {
  known.remove_if([&](const Specialisation& s) {
    return s.tensors == made.tensors && s.modes == made.modes && s.statics == made.statics && !s.graph->assumes();
  });
  const bool traced_too = made.traced;
  known.push_front(std::move(made));
  const auto alike = [&](const Specialisation& s) { return s.traced == traced_too; };
  if (std::count_if(known.begin(), known.end(), alike) > kMostGraphs)
    known.erase(std::prev(std::find_if(known.rbegin(), known.rend(), alike).base()));
}

void State::note_traced(const Specialisation& made, SameRest* same) {
  if (++traced == kOften && !known.empty() && file.empty())
    TORCH_WARN("tower::compile: a function was traced ", kOften, " times. From the call before to this one, ",
               difference(known.front(), made), ". Every kind of call has a graph of its own; the last ", kMostGraphs,
               " are kept.");
  if (!same || made.graph->assumes()) return;
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

State::Found State::find_in_file(const Tensors& args, const StaticKey& statics, const compiler::Modes& modes) {
  if (Found found = find(args, statics, modes); found.first) return found;
  if (Found found = find(args, statics, modes, /*as_plain=*/true); found.first) return found;
  const bool recorded =
      top() || std::any_of(args.begin(), args.end(), [](const Tensor& t) { return t.defined() && t.requires_grad(); });
  if (!recorded)
    if (Found found = find(args, statics, modes.recording(), /*as_plain=*/true); found.first) return found;
  std::string kinds;
  for (const Specialisation& s : known)
    if (s.traced)
      kinds += std::string("\n ") + kinds_text(s.tensors) + (s.modes.grad ? "" : ", without grad mode") +
               (s.modes.autocast ? ", under autocast" : "");
  throw UnsupportedError(
      "load: the function in " + file + " has no graph for arguments" + kinds_text(kinds_of(args)) +
      (c10::GradMode::is_enabled() ? "" : " without grad mode") +
      ", and cannot be traced: it was saved with graphs for" + kinds +
      "\nCall it with such arguments (sizes, strides, requires_grad and static arguments count, too) "
      "before it is saved; with two numbers of examples, for any.");
}

detail::Specialisations::Specialisations(const CompileOptions& options)
    : Specialisations(std::make_shared<State>(std::make_shared<compiler::Kernels>(options))) {}

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
    if (!state_->file.empty())
      throw UnsupportedError("load: LibTorch's forward mode cannot follow a function from a file. Use tower::jvp.");
    Tensors results = f(args);
    return {std::move(results), rest()};
  }
  const compiler::Modes modes;
  std::shared_ptr<const compiler::CompiledGraph> graph;
  Rest static_parts;
  {
    const std::lock_guard lock(state_->mutex);
    std::tie(graph, static_parts) =
        state_->file.empty() ? state_->find(args, statics, modes) : state_->find_in_file(args, statics, modes);
  }
  if (graph && graph->fits()) return {graph->run(args), static_parts};

  compiler::Traced traced = compiler::trace(f, args, "compile");
  traced.graph.simplify();
  graph = std::make_shared<const compiler::CompiledGraph>(std::move(traced.graph), state_->kernels,
                                                          std::move(traced.assumptions));
  Specialisation made{kinds_of(args), statics, modes, std::move(graph), rest(), /*traced=*/true};
  static_parts = made.rest;
  const std::lock_guard lock(state_->mutex);
  state_->note_traced(made, same);
  state_->add(std::move(made));
  return {std::move(traced.results), static_parts};
}

namespace {

// Of functions of lists, which have no static parts.
struct KeptNothing final : detail::Kept {
  std::string signature() const override { return "tower::dynamic::Function"; }
  std::string stored() const override { return ""; }
};

// What `dynamic::compile` and `dynamic::load` give.
struct CompiledFunction {
  Tensors operator()(const Tensors& args) const {
    return specialisations
        .run(
            args, detail::StaticKey::of(), f, [] { return std::make_shared<const KeptNothing>(); },
            detail::Specialisations::always_same)
        .first;
  }

  Function f;
  detail::Specialisations specialisations;
};

}  // namespace

Function dynamic::compile(Function f, const CompileOptions& options) {
  return CompiledFunction{std::move(f), detail::Specialisations(options)};
}

void dynamic::save(const Function& compiled, const std::string& path) {
  const auto* function = compiled.target<CompiledFunction>();
  if (!function) throw ArgumentError("save: the function is not one that compile or load gave.");
  detail::Specialisations::save(path, {function->specialisations});
}

Function dynamic::load(const std::string& path) {
  const auto restore = [](size_t, const std::string&) {
    return std::pair<detail::StaticKey, detail::Specialisations::Rest>(detail::StaticKey::of(),
                                                                       std::make_shared<const KeptNothing>());
  };
  return CompiledFunction{nullptr, detail::Specialisations::load(path, KeptNothing().signature(), restore,
                                                                 detail::Specialisations::always_same)[0]};
}

std::function<Graph(const Tensors&)> dynamic::graph(Function f) {
  return [f = std::move(f)](const Tensors& args) {
    compiler::Traced traced = compiler::trace(f, args, "graph");
    traced.graph.simplify();
    return compiler::published(traced.graph);
  };
}

}  // namespace tower

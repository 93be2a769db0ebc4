#include "tower/compile.h"

#include <algorithm>

#include "compile/specialisations.h"
#include "core/bind.h"
#include "frontend/substitution.h"
#include "graph/trace.h"
#include "tower/detail/spellings.h"
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

using compiler::Family;
using compiler::kinds_text;
using compiler::KnownGraphs;
using compiler::Specialisation;

constexpr int kMostGraphs = 64;  // that were traced, and as many that follow from these
constexpr size_t kMostFamilies = 8;
constexpr size_t kOften = 32;      // times that a function is traced before a warning says so
constexpr int kMostAttempts = 16;  // to publish: an == of the user's may call the function, and so publish, each time

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

std::shared_ptr<const KnownGraphs> State::known() const {
  const std::lock_guard lock(mutex_);
  return known_;
}

// `after` takes what was known, which is freed when the lock is not held.
bool State::exchange(std::shared_ptr<const KnownGraphs>& before, std::shared_ptr<const KnownGraphs> after) {
  {
    const std::lock_guard lock(mutex_);
    if (known_ == before) {
      known_.swap(after);
      return true;
    }
    after = known_;
  }
  before.swap(after);
  return false;
}

template <class Change>
void State::publish(const Change& change) {
  std::shared_ptr<const KnownGraphs> before = known();
  for (int attempts = 0; attempts < kMostAttempts; ++attempts) {
    KnownGraphs after = *before;
    change(after);
    if (exchange(before, std::make_shared<const KnownGraphs>(std::move(after)))) return;
  }
}

State::Found State::find(const Tensors& args, const StaticKey& statics, const compiler::Modes& modes, bool as_plain) {
  const std::shared_ptr<const KnownGraphs> now = known();
  const auto found = std::find_if(now->graphs.begin(), now->graphs.end(), [&](const Found& s) {
    return std::equal(s->tensors.begin(), s->tensors.end(), args.begin(), args.end(),
                      [&](const compiler::TensorKind& kind, const Tensor& t) { return kind.is_of(t, as_plain); }) &&
           s->modes == modes && s->statics == statics && s->graph->assumptions_hold(args);
  });
  if (found != now->graphs.end()) {
    if (found != now->graphs.begin()) use_first(now, static_cast<size_t>(found - now->graphs.begin()));
    return *found;
  }
  if (now->families.empty()) return {};
  std::vector<compiler::TensorKind> tensors = kinds_of(args);
  if (as_plain)
    for (compiler::TensorKind& kind : tensors) {
      kind.requires_grad = false;
      kind.leaf = true;
    }
  for (const auto& family : now->families) {
    if (!(family->modes == modes) || !(family->statics == statics)) continue;
    const auto n = family->tensors.count(tensors);
    if (!n || !family->graph.serves(*n)) continue;
    auto graph = std::make_shared<const compiler::CompiledGraph>(family->graph.with(*n), kernels);
    return add(std::make_shared<const Specialisation>(
        Specialisation{std::move(tensors), statics, modes, std::move(graph), family->rest, /*traced=*/false}));
  }
  return {};
}

namespace {

bool same_calls(const Specialisation& a, const Specialisation& b) {
  return a.tensors == b.tensors && a.modes == b.modes && a.statics == b.statics;
}

// Of those that were traced, or of the others, the one that was not used for longest goes where there are too many.
void keep_few(std::vector<State::Found>& graphs, bool traced) {
  const auto alike = [&](const State::Found& s) { return s->traced == traced; };
  if (std::count_if(graphs.begin(), graphs.end(), alike) > kMostGraphs)
    graphs.erase(std::prev(std::find_if(graphs.rbegin(), graphs.rend(), alike).base()));
}

void put_first(KnownGraphs& known, std::shared_ptr<const Family> family) {
  known.families.insert(known.families.begin(), std::move(family));
  if (known.families.size() > kMostFamilies) known.families.pop_back();
}

// Two graphs that differ in the number of examples give the graph for any.
std::shared_ptr<const Family> family_of(const KnownGraphs& known, const Specialisation& made,
                                        detail::Specialisations::SameRest* same) {
  if (!same || made.graph->assumes()) return nullptr;
  for (const State::Found& s : known.graphs) {
    if (!s->traced || !(s->statics == made.statics) || !(s->modes == made.modes) || !same(s->rest, made.rest)) continue;
    const auto kinds = compiler::LaneKinds::of(s->tensors, made.tensors);
    if (!kinds) continue;
    auto graph = compiler::LaneGraph::of(s->graph->graph(), made.graph->graph(), kinds->lanes());
    if (graph)
      return std::make_shared<const Family>(
          Family{*kinds, std::move(*graph), s->graph, made.graph, made.statics, made.modes, made.rest});
  }
  return nullptr;
}

}  // namespace

// If another thread has published something meanwhile, the order stays as that thread left it.
void State::use_first(std::shared_ptr<const KnownGraphs> now, size_t i) {
  KnownGraphs after = *now;
  const auto used = after.graphs.begin() + static_cast<std::ptrdiff_t>(i);
  std::rotate(after.graphs.begin(), used, used + 1);
  exchange(now, std::make_shared<const KnownGraphs>(std::move(after)));
}

State::Found State::add(Found made, SameRest* same) {
  Found kept;
  std::string warning;
  publish([&](KnownGraphs& known) {
    kept = made;
    warning.clear();
    if (made->traced) {
      if (++known.traced == kOften && !known.graphs.empty() && file.empty())
        warning = difference(*known.graphs.front(), *made);
      if (auto family = family_of(known, *made, same)) put_first(known, std::move(family));
    }
    std::erase_if(known.graphs, [&](const Found& s) {
      if (s->graph->assumes() || !same_calls(*s, *made)) return false;
      // Another thread was faster.
      if (s->graph->fits() && (s->traced || !made->traced)) kept = s;
      return true;
    });
    known.graphs.insert(known.graphs.begin(), kept);
    keep_few(known.graphs, kept->traced);
  });
  if (!warning.empty())
    TORCH_WARN("compile: a function was traced ", kOften, " times. From the call before to this one, ", warning,
               ". Every kind of call has a graph of its own; the last ", kMostGraphs, " are kept.");
  return kept;
}

void State::add_family(const std::shared_ptr<const Family>& family) {
  publish([&](KnownGraphs& known) { put_first(known, family); });
}

State::Found State::find_in_file(const Tensors& args, const StaticKey& statics, const compiler::Modes& modes) {
  if (Found found = find(args, statics, modes)) return found;
  if (Found found = find(args, statics, modes, /*as_plain=*/true)) return found;
  const bool recorded =
      top() || std::any_of(args.begin(), args.end(), [](const Tensor& t) { return t.defined() && t.requires_grad(); });
  if (!recorded)
    if (Found found = find(args, statics, modes.recording(), /*as_plain=*/true)) return found;
  std::string kinds;
  const auto all = known();  // another thread may publish others meanwhile
  for (const Found& s : all->graphs)
    if (s->traced)
      kinds += std::string("\n ") + kinds_text(s->tensors) + (s->modes.grad ? "" : ", without grad mode") +
               (s->modes.autocast ? ", under autocast" : "");
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
  const auto known = state_->known();
  return static_cast<size_t>(
      std::count_if(known->graphs.begin(), known->graphs.end(), [](const auto& s) { return s->traced; }));
}

compiler::Report detail::Specialisations::State::report() const {
  compiler::Report report;
  const auto all = known();  // another thread may publish others meanwhile
  for (const auto& s : all->graphs) {
    report.lines += "graph" + kinds_text(s->tensors) + "\n";
    report.add(s->graph->report());
  }
  return report;
}

std::string detail::Specialisations::report() const {
  const auto known = state_->known();
  if (known->graphs.empty()) return "graphs: 0\n";
  return compiler::first_page("graphs: " + std::to_string(known->graphs.size()) + "; in the one used last, " +
                              known->graphs.front()->graph->report().summary() + listing());
}

std::string detail::Specialisations::listing() const { return state_->report().lines; }

std::pair<Tensors, detail::Specialisations::Rest> detail::Specialisations::run(const Tensors& given,
                                                                               const StaticKey& statics,
                                                                               const Function& f,
                                                                               const std::function<Rest()>& rest,
                                                                               SameRest* same) const {
  const Tensors stand_ins = thread_state.substitutions ? frontend::stand_ins(given) : Tensors();
  const Tensors& args = thread_state.substitutions ? stand_ins : given;
  // LibTorch's forward mode keeps tangents where a graph does not see them.
  if (std::any_of(args.begin(), args.end(), [](const Tensor& t) { return t.defined() && is_libtorch_dual(t); })) {
    if (!state_->file.empty())
      throw UnsupportedError("load: LibTorch's forward mode cannot follow a function from a file. Use " +
                             std::string(detail::spellings().jvp) + ".");
    Tensors results = f(args);
    return {std::move(results), rest()};
  }
  const compiler::Modes modes;
  if (const State::Found found =
          state_->file.empty() ? state_->find(args, statics, modes) : state_->find_in_file(args, statics, modes);
      found && found->graph->fits())
    return {found->graph->run(args), found->rest};

  compiler::Traced traced = compiler::trace_with_reads(f, args, "compile");
  traced.graph.simplify();
  auto graph = std::make_shared<const compiler::CompiledGraph>(std::move(traced.graph), state_->kernels,
                                                               std::move(traced.assumptions), std::move(traced.reads));
  const auto made = std::make_shared<const Specialisation>(
      Specialisation{kinds_of(args), statics, modes, std::move(graph), rest(), /*traced=*/true});
  state_->add(made, same);
  return {std::move(traced.results), made->rest};
}

namespace {

// What belongs to graphs of functions of lists, which have no static parts: nothing.
struct KeptNothing final : detail::Kept {
  std::string signature() const override { return "Tensors(Tensors)"; }
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

const detail::Specialisations& compiler::specialisations_of(const Function& compiled, const char* who) {
  const auto* function = compiled.target<CompiledFunction>();
  if (!function) throw ArgumentError(std::string(who) + ": the function is not one that compile or load gave.");
  return function->specialisations;
}

void dynamic::save(const Function& compiled, const std::string& path) {
  detail::Specialisations::save(path, {compiler::specialisations_of(compiled, "save")});
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

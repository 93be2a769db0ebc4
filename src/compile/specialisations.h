// The graphs of one function (tower/compile.h), by the calls that they are for.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "compile/compiled_graph.h"
#include "fuse/pointer_program.h"
#include "graph/call_kind.h"
#include "graph/lanes.h"
#include "tower/compile.h"

namespace tower {

namespace compiler {

/// A graph for one kind of call.
struct Specialisation {
  std::vector<TensorKind> tensors;
  tower::detail::StaticKey statics;
  Modes modes;
  std::shared_ptr<const CompiledGraph> graph;
  tower::detail::Specialisations::Rest rest;
  bool traced;
};

/// Two specialisations that differ in the number of examples, and so give the graph for any.
struct Family {
  LaneKinds tensors;
  LaneGraph graph;
  std::weak_ptr<const CompiledGraph> first, second;
  tower::detail::StaticKey statics;
  Modes modes;
  tower::detail::Specialisations::Rest rest;
};

/// " Float[2, 3] Long[]".
std::string kinds_text(const std::vector<TensorKind>& kinds);

/// Those of a function that dynamic::compile or dynamic::load gave; another one is an ArgumentError of `who`.
const tower::detail::Specialisations& specialisations_of(const dynamic::Function& compiled, const char* who);

}  // namespace compiler

// NOTE [Nobody else's code under a lock]
// To find a graph is to run code of others: a static argument's ==, the veneer's == of two trees (which takes Python's
// lock), what a graph assumes (which may ask other processes). To forget one destroys what belonged to it. Each may
// take locks, wait for another thread or process, or call the function again. So what is known never changes: a call
// looks at what was known when it came, makes of that what it adds, and publishes it if nobody was faster, else once
// more of what is known then. The mutex is held while a pointer is copied or exchanged. Where two threads make the
// same, the first stays. What is compiled, traced or derived in graph/, fuse/ and kernels/ keeps to the same rule.

namespace compiler {

/// The graphs of a function that there are at one time. Never changed: NOTE [Nobody else's code under a lock].
struct KnownGraphs {
  std::vector<std::shared_ptr<const Specialisation>> graphs;  // last used first
  std::vector<std::shared_ptr<const Family>> families;        // newest first
  size_t traced = 0;
};

}  // namespace compiler

struct detail::Specialisations::State {
  /// `kernels` are those of the function that this one is an image of, if it is.
  explicit State(std::shared_ptr<compiler::Kernels> of) : kernels(std::move(of)) {}
  static const State& of(const Specialisations& function) { return *function.state_; }

  using Found = std::shared_ptr<const compiler::Specialisation>;
  /// The graph for a call, and what belongs to it; none: it has to be traced. `as_plain`: for tensors that no gradient
  /// is asked for.
  Found find(const dynamic::Tensors& args, const StaticKey& statics, const compiler::Modes& modes,
             bool as_plain = false);
  /// The same of a function from a file, whose graphs also serve where less, or more, is recorded than when they were
  /// traced. Throws UnsupportedError.
  Found find_in_file(const dynamic::Tensors& args, const StaticKey& statics, const compiler::Modes& modes);
  /// Notes a graph; gives it, or the same that another thread has made meanwhile. `same` tells whether what belongs to
  /// two graphs is equal.
  Found add(Found made, SameRest* same = nullptr);
  void add_family(const std::shared_ptr<const compiler::Family>& family);

  std::shared_ptr<const compiler::KnownGraphs> known() const;
  /// Of all graphs, last used first.
  compiler::Report report() const;
  /// As Specialisations::by_pointers, which throws the same, with these kernels and options.
  std::shared_ptr<const compiler::PointerProgram> by_pointers(const char* who,
                                                              const std::shared_ptr<compiler::Kernels>& made_by,
                                                              const compiler::PointerProgram::Options& options) const;

  const std::shared_ptr<compiler::Kernels> kernels;
  std::string file;  // where the graphs are from; empty: they are traced

 private:
  /// Publishes what `change` makes of what is known, which may take several attempts. Where other threads always are
  /// faster, the change is given up: the next call makes it again.
  template <class Change>
  void publish(const Change& change);
  /// Publishes `after` if `before` still is what is known; if not, `before` becomes that.
  bool exchange(std::shared_ptr<const compiler::KnownGraphs>& before,
                std::shared_ptr<const compiler::KnownGraphs> after);
  void use_first(std::shared_ptr<const compiler::KnownGraphs> now, size_t i);

  mutable std::mutex mutex_;
  std::shared_ptr<const compiler::KnownGraphs> known_ = std::make_shared<const compiler::KnownGraphs>();
};

}  // namespace tower

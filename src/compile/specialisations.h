// The graphs of one function (tower/compile.h), by the calls that they are for.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "compile/call_kind.h"
#include "compile/compiled_graph.h"
#include "compile/lanes.h"
#include "tower/compile.h"

namespace tower {

namespace compiler {

/// A graph for one kind of call.
struct Specialisation {
  std::vector<TensorKind> tensors;
  detail::StaticKey statics;
  Modes modes;
  std::shared_ptr<const CompiledGraph> graph;
  detail::Specialisations::Rest rest;
  bool traced;
};

/// Two of them that differ in the number of examples, and so give the graph for any.
struct Family {
  LaneKinds tensors;
  LaneGraph graph;
  detail::StaticKey statics;
  Modes modes;
  detail::Specialisations::Rest rest;
};

/// " Float[2, 3] Long[]".
std::string kinds_text(const std::vector<TensorKind>& kinds);

}  // namespace compiler

struct detail::Specialisations::State {
  /// `kernels` are those of the function that this one is an image of, if it is.
  explicit State(std::shared_ptr<compiler::Kernels> of) : kernels(std::move(of)) {}

  // These need the lock.
  using Found = std::pair<std::shared_ptr<const compiler::CompiledGraph>, Rest>;
  /// The graph for a call, and what belongs to it; none: it has to be traced. `as_plain`: for tensors that no gradient
  /// is asked for.
  Found find(const dynamic::Tensors& args, const StaticKey& statics, const compiler::Modes& modes,
             bool as_plain = false);
  /// The same of a function from a file, whose graphs also serve where less, or more, is recorded than when they were
  /// traced. Throws UnsupportedError.
  Found find_in_file(const dynamic::Tensors& args, const StaticKey& statics, const compiler::Modes& modes);
  void add(compiler::Specialisation made);
  void note_traced(const compiler::Specialisation& made, SameRest* same);

  std::mutex mutex;
  std::list<compiler::Specialisation> known;  // last used first
  std::list<compiler::Family> families;       // newest first
  size_t traced = 0;
  std::shared_ptr<compiler::Kernels> kernels;
  std::string file;  // where the graphs are from; empty: they are traced
};

}  // namespace tower

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
  /// The graph for a call, and what belongs to it; none: it has to be traced.
  std::pair<std::shared_ptr<const compiler::CompiledGraph>, Rest> find(
      const dynamic::Tensors& args, const StaticKey& statics, const compiler::Modes& modes);
  void add(compiler::Specialisation made);
  void note_traced(const compiler::Specialisation& made, SameRest* same);
  [[noreturn]] void refuse(const std::vector<compiler::TensorKind>& tensors) const;

  std::mutex mutex;
  std::list<compiler::Specialisation> known;  // last used first
  std::list<compiler::Family> families;       // newest first
  size_t traced = 0;
  std::shared_ptr<compiler::Kernels> kernels;
  std::string file;  // where the graphs are from; empty: they are traced
};

}  // namespace tower

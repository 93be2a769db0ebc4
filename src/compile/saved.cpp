// Compiled functions in files. In a file, in this order: who wrote it and for which CPU; tensors; for each function its
// graphs, each with the kind of calls that it is for; the machine code of their kernels, by the keys under which a
// source of code has it. What is fused is found anew from the graphs, which takes no LLVM: it then has the same keys.
// Loops, choices and checkpoints are in stored_code.h.
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/version.h>

#include <algorithm>

#include "compile/specialisations.h"
#include "compile/stored_code.h"
#include "graph/stored_graph.h"
#include "kernels/checked_file.h"
#include "kernels/cpu.h"
#include "tower/errors.h"
#include "tower/version.h"

namespace tower {
namespace {

using compiler::Binary;
using compiler::ByteReader;
using compiler::BytesError;
using compiler::ByteWriter;
using compiler::CodeSource;
using compiler::CompiledGraph;
using compiler::Cpu;
using compiler::Family;
using compiler::GraphReader;
using compiler::GraphWriter;
using compiler::Kernels;
using compiler::LaneGraph;
using compiler::LaneKinds;
using compiler::Modes;
using compiler::read_file;
using compiler::sealed;
using compiler::Specialisation;
using compiler::TensorKind;
using compiler::TensorWriter;
using compiler::unsealed;
using compiler::write_file;
using detail::Specialisations;

void write_kind(ByteWriter& out, const TensorKind& kind) {
  out.number(kind.defined);
  out.number(kind.requires_grad);
  out.number(kind.leaf);
  out.number(kind.number);
  out.number(static_cast<int64_t>(kind.dtype));
  out.text(kind.device.str());
  out.numbers(kind.sizes);
  out.numbers(kind.strides);
}

TensorKind read_kind(ByteReader& in) {
  TensorKind kind;
  kind.defined = in.number() != 0;
  kind.requires_grad = in.number() != 0;
  kind.leaf = in.number() != 0;
  kind.number = in.number() != 0;
  kind.dtype = read_dtype(in);
  kind.device = at::Device(std::string(in.text()));
  kind.sizes = in.numbers<Sizes>();
  kind.strides = in.numbers<Sizes>();
  if (kind.sizes.size() != kind.strides.size()) ByteReader::fail();
  return kind;
}

void write_modes(ByteWriter& out, const Modes& modes) {
  out.number(modes.grad);
  out.number(modes.forward_grad);
  out.number(modes.inference);
  out.number(static_cast<int64_t>(c10::typeMetaToScalarType(modes.default_dtype)));
  out.number(static_cast<int64_t>(modes.autocast));
  out.numbers(modes.autocast_dtypes);
}

Modes read_modes(ByteReader& in) {
  Modes modes;
  modes.grad = in.number() != 0;
  modes.forward_grad = in.number() != 0;
  modes.inference = in.number() != 0;
  modes.default_dtype = c10::scalarTypeToTypeMeta(read_dtype(in));
  modes.autocast = static_cast<uint64_t>(in.number());
  if (in.count() != modes.autocast_dtypes.size()) ByteReader::fail();
  for (at::ScalarType& dtype : modes.autocast_dtypes) dtype = read_dtype(in);
  return modes;
}

[[noreturn]] void refuse_file(const std::string& path, const std::string& why) {
  throw ArgumentError("load: " + path + " cannot be loaded: " + why + ".");
}

void write_origin(ByteWriter& out) {
  out.text(version());
  out.text(TORCH_VERSION);
  out.list(Cpu::get().features(), [&](const std::string& name) { out.text(name); });
  out.number(Cpu::get().vector_bytes());
}

// Refuses a file for another Tower, LibTorch or CPU. Gives the bytes of the vectors in its machine code.
int64_t check_origin(ByteReader& in, const std::string& path) {
  const std::string tower(in.text()), torch(in.text());
  if (tower != version()) refuse_file(path, "it was saved by Tower " + tower + ", and this is " + version());
  if (torch != TORCH_VERSION)
    refuse_file(path, "it was saved with LibTorch " + torch + ", and this is " + TORCH_VERSION);
  std::vector<std::string> features;
  for (size_t n = in.count(); n-- > 0;) features.emplace_back(in.text());
  const std::string missing = Cpu::get().lacks(features);
  if (!missing.empty()) refuse_file(path, "its machine code is for a CPU with " + missing + ", which this one lacks");
  const int64_t vector_bytes = in.number();
  return vector_bytes > 0 ? vector_bytes : Cpu::get().vector_bytes();
}

void restore_family(Specialisations::State& state, const Specialisation& first, const Specialisation& second,
                    int64_t fewest) {
  const auto kinds = LaneKinds::of(first.tensors, second.tensors);
  if (!kinds) return;
  auto graph = LaneGraph::from_file(first.graph->graph(), second.graph->graph(), kinds->lanes(), fewest);
  if (graph)
    state.add_family(std::make_shared<const Family>(
        Family{*kinds, std::move(*graph), first.graph, second.graph, second.statics, second.modes, second.rest}));
}

}  // namespace

void Specialisations::save(const std::string& path, const std::vector<Specialisations>& functions) {
  ByteWriter graphs;
  TensorWriter tensors;
  bool any = false;
  graphs.list(functions, [&](const Specialisations& function) {
    const auto all = function.state_->known();
    std::vector<State::Found> known;
    for (const auto& s : all->graphs) {
      if (s->traced) known.push_back(s);
      s->graph->compile();  // A graph that follows for other examples is not stored, but its kernels are
    }
    any = any || !known.empty();
    std::reverse(known.begin(), known.end());  // as they were made
    graphs.number(static_cast<int64_t>(function.state_->kernels->source().math()));
    graphs.list(known, [&](const State::Found& s) {
      if (s->graph->reads_values())
        throw UnsupportedError(
            "save: the function read a value (bool(x.any()), equal(), a number in a captured tensor) "
            "when it was traced for arguments" +
            kinds_text(s->tensors) +
            ". Its graph is for that value, and with others the function is traced again, which "
            "a file cannot do. Leave the reading outside of the compiled function.");
      graphs.text(s->rest->signature());
      graphs.text(s->rest->stored());
      graphs.list(s->tensors, [&](const TensorKind& kind) { write_kind(graphs, kind); });
      write_modes(graphs, s->modes);
      GraphWriter(graphs, tensors).write(s->graph->graph());
    });
    // Families, by the places of their two graphs.
    std::vector<std::shared_ptr<const Family>> families(all->families.rbegin(), all->families.rend());
    const auto place = [&](const std::weak_ptr<const CompiledGraph>& graph) {
      const auto found =
          std::find_if(known.begin(), known.end(), [&](const State::Found& s) { return s->graph == graph.lock(); });
      return static_cast<int64_t>(found - known.begin());
    };
    std::erase_if(families, [&](const auto& family) {
      return std::max(place(family->first), place(family->second)) == static_cast<int64_t>(known.size());
    });
    graphs.list(families, [&](const auto& family) {
      graphs.number(place(family->first));
      graphs.number(place(family->second));
      graphs.number(family->graph.fewest());
    });
    Kernels& kernels = *function.state_->kernels;
    CodeSource::Known code = kernels.source().known();
    for (const auto& kernel : kernels.all()) code.insert_or_assign(kernel->key(), kernel->binary());
    graphs.list(code, [&](const auto& entry) {
      graphs.text(entry.first);
      entry.second.write(graphs);
    });
  });
  if (!any)
    throw ArgumentError(
        "save: the function has no graph yet. Call it with arguments of the kinds that it will be called with.");
  ByteWriter out;
  write_origin(out);
  tensors.write(out);
  out.text(graphs.bytes());
  if (const std::string why = write_file(path, sealed(out.bytes())); !why.empty())
    throw ArgumentError("save: " + path + " cannot be written: " + why + ".");
}

std::vector<Specialisations> Specialisations::load(const std::string& path, const std::string& signature,
                                                   const std::function<Restore>& restore, SameRest* same) {
  std::string why_not;
  const auto file = read_file(path, &why_not);
  if (!file) refuse_file(path, why_not);
  try {
    ByteReader in(unsealed(*file));
    const int64_t vector_bytes = check_origin(in, path);
    GraphReader reader(read_tensors(in), compiler::read_code);
    ByteReader graphs(in.text());
    std::vector<Specialisations> functions;
    std::string others;
    bool any = false;
    for (size_t f = 0, count = graphs.count(); f < count; ++f) {
      CompileOptions options;
      options.math = static_cast<Math>(graphs.index(2));
      Specialisations& function =
          functions.emplace_back(std::make_shared<State>(std::make_shared<Kernels>(options, vector_bytes)));
      State& state = *function.state_;
      state.file = path;
      std::vector<State::Found> read;
      for (size_t n = graphs.count(); n-- > 0;) {
        const std::string of(graphs.text()), stored(graphs.text());
        std::vector<TensorKind> tensors;
        for (size_t k = graphs.count(); k-- > 0;) tensors.push_back(read_kind(graphs));
        const Modes modes = read_modes(graphs);
        compiler::Graph graph = reader.read(graphs);
        if (graph.arguments.size() != tensors.size()) ByteReader::fail();
        if (of != signature) {
          others += (others.empty() ? "" : ", ") + of;
          read.emplace_back();
          continue;
        }
        any = true;
        auto [statics, rest] = restore(f, stored);
        auto made = std::make_shared<const Specialisation>(
            Specialisation{std::move(tensors), std::move(statics), modes,
                           std::make_shared<const CompiledGraph>(std::move(graph), state.kernels), std::move(rest),
                           /*traced=*/true});
        read.push_back(made);
        state.add(std::move(made));
      }
      for (size_t n = graphs.count(); n-- > 0;) {
        const auto &first = read.at(graphs.index(read.size())), &second = read.at(graphs.index(read.size()));
        const int64_t fewest = graphs.number();
        if (first && second && same && same(first->rest, second->rest)) restore_family(state, *first, *second, fewest);
      }
      CodeSource::Known code;
      for (size_t n = graphs.count(); n-- > 0;) {
        std::string key(graphs.text());
        code.emplace(std::move(key), Binary::read(graphs));
      }
      state.kernels->source().add(std::move(code));
    }
    if (!graphs.done() || !in.done()) ByteReader::fail();
    if (!any) refuse_file(path, "it has no function of the type " + signature + ", but of " + others);
    return functions;
  } catch (const BytesError& e) {
    refuse_file(path, e.what());
  } catch (const c10::Error& e) {
    // LibTorch was given tensors or attributes that `save` would not have written.
    refuse_file(path, "what is in it does not fit together (" + std::string(e.what_without_backtrace()) + ")");
  }
}

// ---- static parts --------------------------------------------------------------------------------------------------

std::string detail::readable(const std::type_info& type) { return c10::demangle(type.name()); }

void detail::refuse_stored(const std::type_info& type) {
  throw UnsupportedError("save: static arguments and results of the type " + readable(type) +
                         " cannot be written to a file. Tensors, numbers, enums, strings, containers of these, and "
                         "structs that name all their fields (tower_fields) and can be made without arguments, can.");
}

namespace {
[[noreturn]] void refuse_static_parts() {
  throw ArgumentError("load: the static parts of the function do not fit its type.");
}
}  // namespace

void detail::StaticReader::raw(void* data, std::size_t size) {
  if (size > bytes_.size() - next_) refuse_static_parts();
  std::memcpy(data, bytes_.data() + next_, size);
  next_ += size;
}

std::size_t detail::StaticReader::count() {
  std::uint64_t n = 0;
  raw(&n, sizeof n);
  if (n > bytes_.size() - next_) refuse_static_parts();
  return n;
}

std::string detail::StaticReader::text() {
  std::string t(count(), '\0');
  raw(t.data(), t.size());
  return t;
}

void detail::StaticReader::finish() const {
  if (next_ != bytes_.size()) refuse_static_parts();
}

}  // namespace tower

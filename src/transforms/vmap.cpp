#include "interpreters/vmap.h"

#include <ATen/Functions.h>

#include <numeric>
#include <optional>

#include "core/bind.h"
#include "core/memory.h"
#include "frontend/arguments.h"
#include "frontend/substitution.h"
#include "interpreters/surface.h"
#include "mesh/axis.h"
#include "mesh/mesh.h"
#include "mesh/owner.h"
#include "tower/collectives.h"
#include "tower/detail/flat.h"
#include "tower/detail/spellings.h"
#include "tower/errors.h"
#include "transforms/vmap.h"

namespace tower {
namespace {

using dynamic::Dims;

// The mapped dimension of each argument, counted from the front, and the batch size they agree on.
std::pair<Dims, int64_t> resolve_in_dims(const Dims& in_dims, const Tensors& args, const char* label,
                                         const detail::NameTensor& name) {
  const std::string start = std::string(label) + ": ";
  if (in_dims.size() != args.size())
    throw ArgumentError(start + "in_dims has " + std::to_string(in_dims.size()) +
                        " entries, but the function was called with " + std::to_string(args.size()) +
                        " arguments. Give one entry for each (" + detail::spellings().absent_dim + ": not mapped).");
  Dims dims = in_dims;
  std::optional<int64_t> size;
  bool agree = true;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!dims[i]) continue;
    if (!args[i].defined())
      throw ArgumentError(start + name(i) + " is an undefined tensor but is mapped over dimension " +
                          std::to_string(*dims[i]) + ".");
    check_supported(args[i], label, ordinal("argument", i));
    const int64_t rank = args[i].dim();
    if (rank == 0)
      throw ArgumentError(start + name(i) + " is a scalar tensor without dimensions, so in_dim " +
                          std::to_string(*dims[i]) + " cannot be mapped. Leave its in_dim " +
                          detail::spellings().absent_dim + ".");
    if (*dims[i] < -rank || *dims[i] >= rank)
      throw ArgumentError(start + "in_dim " + std::to_string(*dims[i]) + " of " + name(i) +
                          " is out of range: the argument has " + std::to_string(rank) + " dimensions, " +
                          describe(args[i]) + ".");
    if (*dims[i] < 0) *dims[i] += rank;
    const int64_t here = args[i].size(*dims[i]);
    agree = agree && (!size || *size == here);
    size = here;
  }
  if (!size)
    throw ArgumentError(start + "nothing to map: every in_dim is " + detail::spellings().absent_dim +
                        ". Give at least one argument an in_dim.");
  if (!agree) {
    std::string found;
    for (size_t i = 0; i < args.size(); ++i)
      if (dims[i])
        found += (found.empty() ? "" : ", ") + name(i) + " has size " + std::to_string(args[i].size(*dims[i])) +
                 " along dimension " + std::to_string(*dims[i]);
    throw ArgumentError(start + "the mapped dimensions differ in size: " + found + ".");
  }
  return {std::move(dims), *size};
}

std::optional<int64_t> out_dim_of(const Dims& out_dims, size_t k, size_t count, const char* label) {
  if (out_dims.size() != count && out_dims.size() != 1)
    throw ArgumentError(std::string(label) + ": out_dims has " + std::to_string(out_dims.size()) +
                        " entries, but the function returned " + std::to_string(count) +
                        " outputs. Give one for each, or one for all.");
  return out_dims.size() == 1 ? out_dims[0] : out_dims[k];
}

// A result with its batch dimension where the caller wants it.
Tensor take_out(const Tensor& out, Vmap& level, const Tensors& inputs, std::optional<int64_t> out_dim, size_t k) {
  Wrapper* w = as_wrapper_of(out, level);
  const bool batched = w && w->payload().tracked();
  if (!out_dim) {
    if (batched)
      throw ArgumentError(level.describe() + ": " + ordinal("output", k) +
                          " differs between examples, but its out_dim is " + detail::spellings().absent_dim +
                          ", which promises that it does not. Give it an out_dim.");
    return value_outside(out, level, inputs);
  }
  const int64_t rank = out.dim() + 1;
  if (*out_dim < -rank || *out_dim >= rank)
    throw ArgumentError(level.describe() + ": out_dim " + std::to_string(*out_dim) + " of " + ordinal("output", k) +
                        " is out of range: with the batch dimension the output has " + std::to_string(rank) +
                        " dimensions.");
  const int64_t to = *out_dim < 0 ? *out_dim + rank : *out_dim;
  Tensor value = value_outside(out, level, inputs);
  if (batched) {
    const int64_t from = w->stored().index;
    if (from != to) value = value.movedim(from, to);
  } else {
    value = level.varying(value);
    Sizes sizes(value.sizes());
    sizes.insert(sizes.begin() + to, level.batch_size());
    value = value.unsqueeze(to).expand(sizes);
  }
  // The caller may write to what was made here; arguments, and what the function captured, are what they are.
  const bool made_here = w && !level.below() && !is_among(inputs, w->root());
  return made_here ? not_expanded(std::move(value)) : value;
}

}  // namespace

std::pair<Tensors, Tensors> map_once(const dynamic::FunctionWithAux& f, const Tensors& given, const Dims& dims,
                                     const Dims& out_dims, const c10::intrusive_ptr<Vmap>& level) {
  const char* label = level->label();
  const Tensors args = frontend::stand_ins(given);
  Tensors inside = args, outs, aux;
  {
    Scope scope(level);
    for (size_t i = 0; i < args.size(); ++i)
      if (dims[i]) inside[i] = wrap(*level, Payload{args[i], {}, *dims[i]});
    const auto results = [&] {
      const frontend::Arguments arguments(*level, inside, args);
      return f(inside);
    }();
    check_outputs(results.first, label);
    DispatchGuard keys;
    keys.see_every_operator(false);
    const size_t count = results.first.size();
    const auto take = [&](size_t k) {
      outs[k] = take_out(results.first[k], *level, inside, out_dim_of(out_dims, k, count, label), k);
    };
    outs.resize(count);
    for (size_t k = 0; k < count; ++k) take(k);
    // Promises that an output has no batch were kept already.
    if (write_back(*level, inside, args, dims))
      for (size_t k = 0; k < count; ++k)
        if (out_dim_of(out_dims, k, count, label)) take(k);
    for (const Tensor& t : results.second) aux.push_back(take_out(t, *level, inside, 0, 0));
  }
  return {std::move(outs), std::move(aux)};
}

std::pair<Tensors, Tensors> map_once(const dynamic::FunctionWithAux& f, const Tensors& args, const Dims& dims,
                                     int64_t batch_size, const Dims& out_dims, Randomness randomness,
                                     const char* label) {
  return map_once(f, args, dims, out_dims, c10::make_intrusive<Vmap>(batch_size, randomness, label));
}

namespace {

// Maps over examples that have a name, and may be spread over processes.
Tensors map_axis(const dynamic::FunctionWithAux& f, const Tensors& args, const Dims& dims, int64_t batch_size,
                 const Dims& out_dims, Randomness randomness, const std::string& axis,
                 const mesh::GroupPointer& group) {
  const auto level =
      c10::make_intrusive<mesh::AxisVmap>(std::make_shared<mesh::Axis>(axis, batch_size, group), randomness, "vmap");
  const mesh::Running running(*level);
  if (!group) return map_once(f, args, dims, out_dims, level).first;
  Tensors shared;
  for (size_t i = 0; i < args.size(); ++i) {
    if (dims[i]) mesh::refuse_columns(args[i]);
    if (dims[i]) mesh::refuse_rows_of_gradients(args[i]);
    shared.push_back(dims[i] ? Tensor() : args[i]);
  }
  mesh::check_agreement(*group, "argument", shared);
  level->share(shared);
  Tensors outs = map_once(f, args, dims, out_dims, level).first;
  shared = outs;
  for (size_t k = 0; k < outs.size(); ++k) {
    if (!out_dim_of(out_dims, k, outs.size(), "vmap")) continue;
    mesh::refuse_rows(outs[k]);
    shared[k] = Tensor();
  }
  mesh::check_agreement(*group, "output", shared);
  return outs;
}

// Maps chunk by chunk and joins the results; outputs without an out_dim are taken from the first chunk.
Tensors map_in_chunks(const dynamic::FunctionWithAux& f, const Tensors& args, const Dims& dims, int64_t batch_size,
                      const Dims& out_dims, const VmapOptions& options) {
  std::vector<Tensors> parts;
  SharedDraws draws;
  for (int64_t start = 0; start < batch_size; start += *options.chunk_size) {
    const int64_t length = std::min(*options.chunk_size, batch_size - start);
    Tensors some = args;
    for (size_t i = 0; i < args.size(); ++i)
      if (dims[i]) some[i] = args[i].narrow(*dims[i], start, length);
    draws.rewind();
    const auto level = c10::make_intrusive<Vmap>(length, options.randomness, "vmap", &draws);
    parts.push_back(map_once(f, some, dims, out_dims, level).first);
  }
  Tensors joined;
  for (size_t k = 0; k < parts[0].size(); ++k) {
    const auto out_dim = out_dim_of(out_dims, k, parts[0].size(), "vmap");
    Tensors pieces;
    for (const auto& p : parts) pieces.push_back(p[k]);
    joined.push_back(out_dim ? at::cat(pieces, *out_dim) : pieces[0]);
  }
  return joined;
}

// An exception in one process reaches the others as one.
template <class F>
auto telling_others(const mesh::GroupPointer& group, F&& f) {
  std::optional<mesh::Use> use;
  if (group) use.emplace(*group, "vmap");
  try {
    auto results = f();
    if (use) use->check();
    return results;
  } catch (const InvisibleTensorError&) {
    throw;  // an operator around will run the function again, in every process
  } catch (const std::exception& error) {
    if (group) group->fail(error.what());
    throw;
  } catch (...) {
    if (group) group->fail("an exception of an unknown type");
    throw;
  }
}

Tensors map_named(const dynamic::FunctionWithAux& f, const Tensors& args, const Dims& in_dims, const Dims& out_dims,
                  const VmapOptions& options, const NamedExamples& examples, const detail::NameTensor& name) {
  if (examples.axis.empty())
    throw ArgumentError("vmap: it is to map across a mesh, but along which axis is not said. Give axis its name.");
  const auto group = examples.across.defined() ? examples.across.state()->group(examples.axis) : nullptr;
  if (group) mesh::Running::refuse_twice(*group);
  return telling_others(group, [&] {
    if (options.chunk_size)
      throw ArgumentError("vmap: axis '" + examples.axis +
                          "' is to be mapped in chunks, where an example cannot know of those of other chunks. Leave "
                          "out the chunk size, or the axis's name.");
    const auto [dims, size] = resolve_in_dims(in_dims, args, "vmap", name);
    return map_axis(f, args, dims, size, out_dims, options.randomness, examples.axis, group);
  });
}

}  // namespace

namespace detail {

Tensors run_vmap(const dynamic::FunctionWithAux& f, const Tensors& args, const Dims& in_dims, const Dims& out_dims,
                 const VmapOptions& options, const NamedExamples& examples, const NameTensor& name) {
  const memory::InTransform here;
  if (options.chunk_size && *options.chunk_size <= 0)
    throw ArgumentError("vmap: chunk_size is " + std::to_string(*options.chunk_size) + "; it must be positive.");
  if (!examples.axis.empty() || examples.across.defined())
    return map_named(f, args, in_dims, out_dims, options, examples, name);
  auto [dims, size] = resolve_in_dims(in_dims, args, "vmap", name);
  if (options.chunk_size && size > *options.chunk_size) return map_in_chunks(f, args, dims, size, out_dims, options);
  return map_once(f, args, dims, size, out_dims, options.randomness, "vmap").first;
}

}  // namespace detail

dynamic::Function dynamic::vmap(Function f, Dims in_dims, Dims out_dims, VmapOptions options) {
  return vmap(std::move(f), std::move(in_dims), std::move(out_dims), options, {});
}

dynamic::Function dynamic::vmap(Function f, Dims in_dims, Dims out_dims, VmapOptions options, NamedExamples examples) {
  return [f = without_aux(std::move(f)), in_dims = std::move(in_dims), out_dims = std::move(out_dims), options,
          examples = std::move(examples)](const Tensors& args) {
    return detail::run_vmap(f, args, in_dims, out_dims, options, examples,
                            [](size_t i) { return ordinal("argument", i); });
  };
}

}  // namespace tower

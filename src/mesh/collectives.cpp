// The collectives of named axes. Each is an operator whose last operand is a tensor that the axis's level maps over: so
// the call gets to that level whatever the others are, past the levels above, for which the operator has rules. At the
// level itself it becomes ordinary operators on the batch, and where that is spread over processes, those of across.h.
#include "tower/collectives.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "control/speech.h"
#include "core/bind.h"
#include "core/tensor_lists.h"
#include "mesh/axis.h"
#include "tower/errors.h"

namespace tower::mesh {
namespace {

// An operand below the axis's level: with the batch in front, or the same for all examples.
struct Operand {
  Tensor value;
  bool mapped;
};
using Operands = std::vector<Operand>;

class Collective : public ListOperator {
 public:
  /// With the axis's level mapped over: `frame` as at the level.
  virtual Operands run(const Operands& operands) const = 0;

  Tensors on(Tensors operands, const Tensor& examples) const {
    operands.push_back(examples);
    return (*this)(operands);
  }

 protected:
  Collective(const char* name, const AxisVmap& level)
      : ListOperator(name), who_(name), axis_(level.examples()), number_(level.axis()) {
    save = [](c10::ArrayRef<IValue> args, c10::ArrayRef<IValue>) {
      return Values{c10::List<Tensor>({tensors_of(args[0]).back()})};
    };
  }
  /// The same collective's relative `T`, of the same axis.
  template <class T, class... Args>
  Tensors relative(const Tensors& operands, c10::ArrayRef<IValue> saved, Args&&... args) const {
    const auto op = c10::make_intrusive<T>(*this, std::forward<Args>(args)...);
    return op->on(operands, tensors_of(saved[0]).back());
  }
  Collective(const char* name, const Collective& like)
      : ListOperator(name), who_(name), axis_(like.axis_), number_(like.number_) {
    save = like.save;
  }

  virtual bool moves_dimensions() const { return false; }
  virtual Tensors transpose(const Tensors& cotangents, c10::ArrayRef<IValue> saved) const = 0;

  Tensors pull_back(c10::ArrayRef<IValue> saved, c10::ArrayRef<Tensor> cotangents) const override {
    return of_defined(cotangents, [&](const Tensors& given) { return transpose(given, saved); });
  }
  Tensors push_forward(c10::ArrayRef<IValue> saved, c10::ArrayRef<Tensor> tangents) const override {
    const auto operands = tangents.slice(0, tangents.size() - 1);
    speech::Listener::note_tangents(number_);
    return of_defined(operands, [&](const Tensors& given) { return on(given, tensors_of(saved[0]).back()); });
  }

  void map(VmapFrame& frame) const final {
    // Also where the level's image is evaluated, which maps over the same examples.
    if (static_cast<const Vmap&>(frame.level).axis() != number_) return map_alongside(frame, moves_dimensions());
    speech::Listener::note_collective(number_);
    Tensors tensors = tensors_of(frame.stack[0]);
    tensors.pop_back();
    Operands operands;
    for (size_t k = 0; k < tensors.size(); ++k) {
      const int64_t dim = frame.list_dims[0][k];
      const bool mapped = dim != VmapFrame::kUnbatched;
      operands.push_back({mapped && dim != 0 ? tensors[k].movedim(dim, 0) : tensors[k], mapped});
    }
    c10::List<Tensor> outs;
    for (const Operand& out : run(operands)) {
      outs.push_back(out.value);
      frame.out_dims.push_back(out.mapped ? 0 : VmapFrame::kUnbatched);
    }
    frame.stack.clear();
    frame.stack.emplace_back(std::move(outs));
  }

  /// Those operands that are mapped, replaced by what `f` makes of all of them together; the others by `g`.
  template <class F, class G>
  static Operands each(const Operands& operands, bool gives_mapped, F&& f, G&& g) {
    Tensors mapped;
    for (const Operand& o : operands)
      if (o.mapped) mapped.push_back(o.value);
    if (!mapped.empty()) mapped = f(mapped);
    Operands results;
    size_t next = 0;
    for (const Operand& o : operands) {
      if (o.mapped) results.push_back({mapped[next++], gives_mapped});
      else results.push_back(g(o.value));
    }
    return results;
  }

  /// What is the same for all, as it is in this process's examples, of which it has one behind the other.
  Tensors parts(const Tensors& shared) const {
    return axis_->group() ? part(axis_->group(), axis_->counts(), shared) : shared;
  }
  Tensors all(const Tensors& parts) const {
    return axis_->group() ? gather(axis_->group(), who_, axis_->counts(), parts) : parts;
  }
  Tensors total(Tensors parts) const {
    for (Tensor& t : parts) {
      // What goes to others is copied there.
      const bool is_total = axis_->group() && t.size(0) == 1 && (t.is_floating_point() || t.is_complex());
      t = is_total ? t.select(0, 0) : t.sum(0);
    }
    return axis_->group() ? sum(axis_->group(), who_, parts) : parts;
  }
  static Tensor repeated(const Tensor& t, int64_t times) {
    Sizes sizes(t.sizes());
    sizes.insert(sizes.begin(), times);
    return t.unsqueeze(0).expand(sizes);
  }

  const char* who_;
  AxisPointer axis_;
  uint64_t number_;
};

class Psum final : public Collective {
 public:
  explicit Psum(const AxisVmap& level) : Collective("psum", level) {}
  explicit Psum(const Collective& like) : Collective("psum", like) {}

  Operands run(const Operands& operands) const override {
    return each(
        operands, false, [&](const Tensors& mapped) { return total(mapped); },
        [&](const Tensor& t) {
          return Operand{at::mul(t, axis_->size()), false};
        });
  }

 private:
  Tensors transpose(const Tensors& cotangents, c10::ArrayRef<IValue> saved) const override {
    return relative<Psum>(cotangents, saved);
  }
};

class Pextremum final : public Collective {
 public:
  Pextremum(const AxisVmap& level, Extremum which)
      : Collective(which == Extremum::largest ? "pmax" : "pmin", level), which_(which) {
    save = [](c10::ArrayRef<IValue> args, c10::ArrayRef<IValue> outs) { return Values{args[0], outs[0]}; };
  }

  Operands run(const Operands& operands) const override {
    return each(
        operands, false,
        [&](const Tensors& mapped) {
          if (axis_->group()) return extremum(axis_->group(), who_, which_, mapped);
          Tensors results;
          for (const Tensor& t : mapped) results.push_back(which_ == Extremum::largest ? t.amax(0) : t.amin(0));
          return results;
        },
        [](const Tensor& t) {
          return Operand{t, false};
        });
  }

 private:
  Tensors pull_back(c10::ArrayRef<IValue> saved, c10::ArrayRef<Tensor> cotangents) const override {
    const auto [held, counts] = holders_and_counts(saved, cotangents);
    return of_defined(cotangents, [&, &held = held, &counts = counts](const Tensors& given) {
      Tensors totals = relative<Psum>(given, saved);
      for (size_t k = 0; k < given.size(); ++k) totals[k] = totals[k] * held[k] / counts[k];
      return totals;
    });
  }
  Tensors push_forward(c10::ArrayRef<IValue> saved, c10::ArrayRef<Tensor> tangents) const override {
    const auto operands = tangents.slice(0, tangents.size() - 1);
    speech::Listener::note_tangents(number_);
    const auto [held, counts] = holders_and_counts(saved, operands);
    return of_defined(operands, [&, &held = held, &counts = counts](const Tensors& given) {
      Tensors parts;
      for (size_t k = 0; k < given.size(); ++k) parts.push_back(given[k] * held[k]);
      Tensors totals = relative<Psum>(parts, saved);
      for (size_t k = 0; k < given.size(); ++k) totals[k] = totals[k] / counts[k];
      return totals;
    });
  }
  Tensors transpose(const Tensors&, c10::ArrayRef<IValue>) const override { return {}; }

  // Whether each example holds the extremum, and how many do.
  std::pair<Tensors, Tensors> holders_and_counts(c10::ArrayRef<IValue> saved, c10::ArrayRef<Tensor> needed) const {
    const Tensors xs = tensors_of(saved[0]), outs = tensors_of(saved[1]);
    Tensors held;
    for (size_t k = 0; k < outs.size(); ++k)
      if (needed[k].defined()) held.push_back(at::eq(xs[k], outs[k]).to(xs[k].scalar_type()));
    return {held, held.empty() ? Tensors{} : relative<Psum>(held, saved)};
  }

  Extremum which_;
};

class AllGather;

// Example i gets element i of the sum, along dimension 0.
class PsumScatter final : public Collective {
 public:
  explicit PsumScatter(const AxisVmap& level) : Collective("psum_scatter", level) {}
  explicit PsumScatter(const Collective& like) : Collective("psum_scatter", like) {}

  Operands run(const Operands& operands) const override {
    return each(
        operands, true, [&](const Tensors& mapped) { return parts(total(mapped)); },
        [&](const Tensor& t) {
          return Operand{parts({at::mul(t, axis_->size())})[0], true};
        });
  }

 private:
  bool moves_dimensions() const override { return true; }
  Tensors transpose(const Tensors& cotangents, c10::ArrayRef<IValue> saved) const override;
};

// All examples', along a new dimension 0.
class AllGather final : public Collective {
 public:
  explicit AllGather(const AxisVmap& level) : Collective("all_gather", level) {}
  explicit AllGather(const Collective& like) : Collective("all_gather", like) {}

  Operands run(const Operands& operands) const override {
    return each(
        operands, false, [&](const Tensors& mapped) { return all(mapped); },
        [&](const Tensor& t) {
          return Operand{repeated(t, axis_->size()), false};
        });
  }

 private:
  bool moves_dimensions() const override { return true; }
  Tensors transpose(const Tensors& cotangents, c10::ArrayRef<IValue> saved) const override {
    return relative<PsumScatter>(cotangents, saved);
  }
};

Tensors PsumScatter::transpose(const Tensors& cotangents, c10::ArrayRef<IValue> saved) const {
  return relative<AllGather>(cotangents, saved);
}

class Ppermute final : public Collective {
 public:
  using Pairs = std::vector<std::pair<int64_t, int64_t>>;

  Ppermute(const AxisVmap& level, Pairs pairs) : Collective("ppermute", level), pairs_(std::move(pairs)) {}
  Ppermute(const Collective& like, Pairs pairs) : Collective("ppermute", like), pairs_(std::move(pairs)) {}

  Operands run(const Operands& operands) const override {
    const int64_t size = axis_->size();
    std::vector<int64_t> from(static_cast<size_t>(size), -1);
    for (const auto& [source, target] : pairs_) from[static_cast<size_t>(target)] = source;
    const Tensor sources = at::tensor(from, at::kLong);
    const bool to_all = pairs_.size() == from.size();
    return each(
        operands, true,
        [&](const Tensors& mapped) {
          if (axis_->group()) return permute(axis_->group(), who_, axis_->counts(), pairs_, mapped);
          Tensors results;
          for (const Tensor& t : mapped) {
            const Tensor rows = t.index_select(0, sources.clamp_min(0).to(t.device()));
            results.push_back(to_all ? rows : without_targets(rows, sources < 0));
          }
          return results;
        },
        [&](const Tensor& t) {
          if (to_all) return Operand{t, false};
          const Tensor own = sources.narrow(0, axis_->before(), axis_->here()) < 0;
          const Tensor varying = axis_->group() ? vary(axis_->group(), {t})[0] : t;
          return Operand{without_targets(repeated(varying, axis_->here()), own), true};
        });
  }

 private:
  // Examples to which nothing goes have zeros.
  static Tensor without_targets(const Tensor& t, const Tensor& none) {
    std::vector<int64_t> alongside(static_cast<size_t>(t.dim()), 1);
    alongside[0] = none.numel();
    return t.masked_fill(none.to(t.device()).view(alongside), 0);
  }
  Tensors transpose(const Tensors& cotangents, c10::ArrayRef<IValue> saved) const override {
    Pairs inverse;
    for (const auto& [source, target] : pairs_) inverse.emplace_back(target, source);
    return relative<Ppermute>(cotangents, saved, std::move(inverse));
  }
  Pairs pairs_;
};

// Example i gets element i along dimension 0 of all examples, along dimension 0: its own transpose.
class AllToAll final : public Collective {
 public:
  explicit AllToAll(const AxisVmap& level) : Collective("all_to_all", level) {}
  explicit AllToAll(const Collective& like) : Collective("all_to_all", like) {}

  Operands run(const Operands& operands) const override {
    return each(
        operands, true,
        [&](const Tensors& mapped) {
          if (axis_->group()) return regroup(axis_->group(), who_, axis_->counts(), mapped);
          Tensors results;
          for (const Tensor& t : mapped) results.push_back(t.transpose(0, 1));
          return results;
        },
        [&](const Tensor& t) {
          Sizes sizes(t.sizes());
          sizes[0] = axis_->here();
          sizes.insert(sizes.begin() + 1, axis_->size());
          return Operand{parts({t})[0].unsqueeze(1).expand(sizes), true};
        });
  }

 private:
  bool moves_dimensions() const override { return true; }
  Tensors transpose(const Tensors& cotangents, c10::ArrayRef<IValue> saved) const override {
    return relative<AllToAll>(cotangents, saved);
  }
};

// The examples make a call come to the level.
template <class T, class... Args>
Tensors call(const Tensors& operands, AxisVmap& level, Args&&... args) {
  if (operands.empty()) return {};
  return c10::make_intrusive<T>(level, std::forward<Args>(args)...)->on(operands, examples_of(level));
}

int64_t wrap_dim(int64_t dim, int64_t rank, const char* who, const char* what) {
  if (dim < -rank || dim >= rank)
    throw ArgumentError(std::string(who) + ": " + what + " is " + std::to_string(dim) + ", but there are " +
                        std::to_string(rank) + " dimensions.");
  return dim < 0 ? dim + rank : dim;
}

// With the dimension that is divided among the examples in front.
Tensors divided(Tensors tensors, int64_t dim, AxisVmap& level, const char* who, const char* what) {
  const int64_t size = level.examples()->size();
  for (Tensor& t : tensors) {
    const int64_t d = wrap_dim(dim, t.dim(), who, what);
    if (t.size(d) != size)
      throw ArgumentError(std::string(who) + ": dimension " + std::to_string(d) + " of " + describe(t) +
                          " is divided among the examples of axis '" + level.examples()->name() +
                          "', of which there are " + std::to_string(size) + ". Give it that size.");
    t = t.movedim(d, 0);
  }
  return tensors;
}

void check_pairs(const Ppermute::Pairs& pairs, int64_t size, const std::string& axis) {
  std::vector<bool> from(static_cast<size_t>(size)), to(from);
  const auto take = [&](std::vector<bool>& taken, int64_t index, const char* what) {
    if (index < 0 || index >= size)
      throw ArgumentError("ppermute: there is no example " + std::to_string(index) + " of axis '" + axis +
                          "', which has " + std::to_string(size) + ".");
    if (taken[static_cast<size_t>(index)])
      throw ArgumentError("ppermute: example " + std::to_string(index) + " is the " + what +
                          " of two pairs; it can be that of one.");
    taken[static_cast<size_t>(index)] = true;
  };
  for (const auto& [source, target] : pairs) {
    take(from, source, "source");
    take(to, target, "target");
  }
}

}  // namespace

Tensor sum_along(const Tensor& t, AxisVmap& level) { return call<Psum>({t}, level)[0]; }
Tensor AxisVmap::sum(const Tensor& t) { return sum_along(t, *this); }
Tensor AxisVmap::holds_for_any(const Tensor& condition) { return sum_along(condition.to(at::kLong), *this).ne(0); }

}  // namespace tower::mesh

namespace tower {

using mesh::AxisVmap;
using mesh::find_axis;

int64_t axis_size(std::string_view axis) { return find_axis(axis, "axis_size").examples()->size(); }

at::Tensor axis_index(std::string_view axis) {
  AxisVmap& level = find_axis(axis, "axis_index");
  DispatchGuard keys;
  keys.see_no_operator();
  const int64_t first = level.examples()->before();
  return wrap(level, Payload{at::arange(first, first + level.batch_size(), at::kLong), {}, 0});
}

namespace dynamic {

using mesh::call;
using mesh::divided;
using mesh::Extremum;
using mesh::wrap_dim;

Tensors psum(const Tensors& tensors, std::string_view axis) {
  return call<mesh::Psum>(tensors, find_axis(axis, "psum"));
}

Tensors pmean(const Tensors& tensors, std::string_view axis) {
  AxisVmap& level = find_axis(axis, "pmean");
  const int64_t size = level.examples()->size();  // first: what is compiled asks for it before all else
  Tensors sums = call<mesh::Psum>(tensors, level);
  for (Tensor& t : sums) t = t / size;
  return sums;
}

Tensors pmax(const Tensors& tensors, std::string_view axis) {
  return call<mesh::Pextremum>(tensors, find_axis(axis, "pmax"), Extremum::largest);
}
Tensors pmin(const Tensors& tensors, std::string_view axis) {
  return call<mesh::Pextremum>(tensors, find_axis(axis, "pmin"), Extremum::smallest);
}

Tensors all_gather(const Tensors& tensors, std::string_view axis, int64_t dim) {
  Tensors results = call<mesh::AllGather>(tensors, find_axis(axis, "all_gather"));
  for (Tensor& t : results) t = t.movedim(0, wrap_dim(dim, t.dim(), "all_gather", "dim"));
  return results;
}

Tensors psum_scatter(const Tensors& tensors, std::string_view axis, int64_t dim) {
  AxisVmap& level = find_axis(axis, "psum_scatter");
  return call<mesh::PsumScatter>(divided(tensors, dim, level, "psum_scatter", "dim"), level);
}

Tensors ppermute(const Tensors& tensors, std::string_view axis, const std::vector<std::pair<int64_t, int64_t>>& pairs) {
  AxisVmap& level = find_axis(axis, "ppermute");
  mesh::check_pairs(pairs, level.examples()->size(), level.examples()->name());
  return call<mesh::Ppermute>(tensors, level, pairs);
}

Tensors all_to_all(const Tensors& tensors, std::string_view axis, int64_t split_dim, int64_t concat_dim) {
  AxisVmap& level = find_axis(axis, "all_to_all");
  Tensors results = call<mesh::AllToAll>(divided(tensors, split_dim, level, "all_to_all", "split_dim"), level);
  for (Tensor& t : results) t = t.movedim(0, wrap_dim(concat_dim, t.dim(), "all_to_all", "concat_dim"));
  return results;
}

}  // namespace dynamic
}  // namespace tower

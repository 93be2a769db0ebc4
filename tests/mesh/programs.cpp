#include "mesh/programs.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "support/device.h"
#include "support/functions.h"
#include "tower/collectives.h"

namespace mesh_programs {
namespace {

namespace td = tower::dynamic;
using at::Tensor;
using MappedDims = std::vector<std::optional<int64_t>>;

constexpr const char* kAxis = "data";

Tensor waves_there(at::IntArrayRef sizes, double phase) { return support::waves(sizes, phase).to(support::device()); }

Program program(std::string name, std::vector<int64_t> example, std::function<Tensor(const Tensor&, const Tensor&)> one,
                std::function<Tensor(const Tensor&, const Tensor&)> batched) {
  const auto listed = [](auto f) { return [f](const Tensors& in) { return Tensors{f(in[0], in[1])}; }; };
  return {std::move(name), std::move(example), {2}, listed(one), listed(batched)};
}

std::vector<Program> make() {
  const std::vector<std::pair<int64_t, int64_t>> all{{0, 2}, {1, 0}, {2, 4}, {3, 1}, {4, 3}}, some{{0, 2}, {4, 1}};
  const Tensor weights = waves_there({kBatch, 2}, 0.9);
  const auto moved = [](const Tensor& t, const auto& pairs) {
    std::vector<Tensor> rows(kBatch, at::zeros_like(t[0]));
    for (const auto& [from, to] : pairs) rows[static_cast<size_t>(to)] = t[from];
    return at::stack(rows);
  };
  return {
      program(
          "psum", {2}, [](const Tensor& x, const Tensor& w) { return tower::psum(x.sin() * w, kAxis) * x; },
          [](const Tensor& x, const Tensor& w) { return (x.sin() * w).sum(0, true) * x; }),
      program(
          "psum of what is shared", {2},
          [](const Tensor& x, const Tensor& w) { return tower::psum(w.exp(), kAxis) * x + tower::psum(w * w, kAxis); },
          [](const Tensor& x, const Tensor& w) {
            return w.exp().sum(0, true) * x + (w * w).sum(0, true).expand_as(x);
          }),
      program(
          "pmean", {2}, [](const Tensor& x, const Tensor& w) { return tower::pmean((x * w).cos(), kAxis) - w * x; },
          [](const Tensor& x, const Tensor& w) { return (x * w).cos().mean(0, true) - w * x; }),
      program(
          "pmax", {2}, [](const Tensor& x, const Tensor& w) { return tower::pmax((x * w).sin(), kAxis) * x; },
          [](const Tensor& x, const Tensor& w) { return (x * w).sin().amax(0, true) * x; }),
      program(
          "pmin", {2}, [](const Tensor& x, const Tensor& w) { return tower::pmin(x.sin(), kAxis) * w; },
          [](const Tensor& x, const Tensor& w) { return x.sin().amin(0, true) * w; }),
      program(
          "pmax of what is shared", {2},
          [](const Tensor& x, const Tensor& w) { return tower::pmax(w.sin(), kAxis) * x; },
          [](const Tensor& x, const Tensor& w) { return w.sin().amax(0, true) * x; }),
      program(
          "all_gather", {2},
          [=](const Tensor& x, const Tensor& w) {
            return (tower::all_gather((x * w).sin(), kAxis) * weights).sum(0) * x;
          },
          [=](const Tensor& x, const Tensor& w) { return ((x * w).sin() * weights).sum(0, true) * x; }),
      program(
          "all_gather along the last dimension", {2},
          [=](const Tensor& x, const Tensor& w) {
            return (tower::all_gather(x.sin(), kAxis, -1) * weights.t()).sum(-1) * w;
          },
          [=](const Tensor& x, const Tensor& w) { return (x.sin() * weights).sum(0, true) * w; }),
      program(
          "psum_scatter", {kBatch, 2},
          [](const Tensor& x, const Tensor& w) { return tower::psum_scatter(x.sin() * w, kAxis) * w; },
          [](const Tensor& x, const Tensor& w) { return (x.sin() * w.unsqueeze(1)).sum(0) * w; }),
      program(
          "psum_scatter of what is shared", {2},
          [=](const Tensor& x, const Tensor& w) { return tower::psum_scatter(w * weights, kAxis) * x; },
          [=](const Tensor& x, const Tensor& w) { return (w.unsqueeze(1) * weights).sum(0) * x; }),
      program(
          "ppermute", {2},
          [=](const Tensor& x, const Tensor& w) { return tower::ppermute((x * w).sin(), kAxis, all) * x; },
          [=](const Tensor& x, const Tensor& w) { return moved((x * w).sin(), all) * x; }),
      program(
          "ppermute of some", {2},
          [=](const Tensor& x, const Tensor& w) { return tower::ppermute(x.sin() + w, kAxis, some) * x; },
          [=](const Tensor& x, const Tensor& w) { return moved(x.sin() + w, some) * x; }),
      program(
          "ppermute of what is shared", {2},
          [=](const Tensor& x, const Tensor& w) { return tower::ppermute(w.sin(), kAxis, some) * x; },
          [=](const Tensor& x, const Tensor& w) { return moved(w.sin(), some) * x; }),
      program(
          "all_to_all", {2, kBatch},
          [](const Tensor& x, const Tensor& w) { return tower::all_to_all(x.sin(), kAxis, 1, 0) * x.t() * w; },
          [](const Tensor& x, const Tensor& w) {
            return x.sin().permute({2, 0, 1}) * x.transpose(1, 2) * w.unsqueeze(1);
          }),
      program(
          "all_to_all of what is shared", {2},
          [=](const Tensor& x, const Tensor& w) {
            return tower::all_to_all(w.sin() * weights, kAxis, 0, 0).sum(0) * x;
          },
          [=](const Tensor& x, const Tensor& w) {
            return (w.sin().unsqueeze(1) * weights).transpose(0, 1).sum(1) * x;
          }),
      program(
          "axis_index and axis_size", {2},
          [](const Tensor& x, const Tensor& w) {
            return (x * w).sin() * (tower::axis_index(kAxis) + 1) / tower::axis_size(kAxis);
          },
          [](const Tensor& x, const Tensor& w) {
            return (x * w).sin() * at::arange(1, kBatch + 1, at::device(support::device())).unsqueeze(1) / kBatch;
          }),
      program(
          "a tree", {2},
          [](const Tensor& x, const Tensor& w) {
            const auto [a, b] = tower::psum(std::pair(x.sin(), w * x.sum()), kAxis);
            return a * b * x;
          },
          [](const Tensor& x, const Tensor& w) {
            return x.sin().sum(0, true) * (w * x.sum(-1, true)).sum(0, true) * x;
          }),
      program(
          "a norm of the whole batch", {2},
          [](const Tensor& x, const Tensor& w) {
            const Tensor mean = tower::pmean(x, kAxis), centred = x - mean;
            return centred / (tower::pmean(centred * centred, kAxis) + 0.1).sqrt() * w;
          },
          [](const Tensor& x, const Tensor& w) {
            const Tensor centred = x - x.mean(0, true);
            return centred / ((centred * centred).mean(0, true) + 0.1).sqrt() * w;
          }),
  };
}

// Of the size that all processes' parts have together.
std::vector<int64_t> whole_sizes(const Tensor& t, std::optional<int64_t> mapped) {
  std::vector<int64_t> sizes = t.sizes().vec();
  if (mapped) sizes[static_cast<size_t>(*mapped)] = kBatch;
  return sizes;
}

Tensors directions(const Tensors& like, const MappedDims& mapped, double phase, const Part& part) {
  Tensors result;
  for (size_t k = 0; k < like.size(); ++k) {
    const Tensor whole = waves_there(whole_sizes(like[k], mapped[k]), phase + static_cast<double>(k));
    result.push_back(mapped[k] ? part.of(whole, *mapped[k]) : whole);
  }
  return result;
}

// The same direction for each of the batch, whose dimension is in front.
Tensors repeated_directions(const Tensors& like, double phase) {
  Tensors result;
  for (size_t k = 0; k < like.size(); ++k)
    result.push_back(
        waves_there(like[k].sizes().slice(1), phase + static_cast<double>(k)).unsqueeze(0).expand_as(like[k]));
  return result;
}

constexpr int64_t kLocal = 2;  // examples of a vmap without a name

// Of the axis's side: each example's own transform.
Function inside_of(const std::string& kinds, Function f, bool by_batch) {
  double phase = 0.3;
  for (auto kind = kinds.rbegin(); kind != kinds.rend(); ++kind, phase += 1) {
    const auto along = [by_batch, phase](const Tensors& like) {
      if (by_batch) return repeated_directions(like, phase);
      return directions(like, MappedDims(like.size()), phase, {});
    };
    if (*kind == 'v' && !by_batch) {
      f = [f](const Tensors& in) { return td::vmap(f, td::Dims(in.size(), 0), {0})(in); };
    } else if (*kind == 'v') {
      f = [f](const Tensors& in) {
        std::vector<Tensors> columns;
        for (int64_t i = 0; i < kLocal; ++i) {
          Tensors one;
          for (const Tensor& t : in) one.push_back(t.select(1, i));
          const Tensors outs = f(one);
          columns.resize(outs.size());
          for (size_t k = 0; k < outs.size(); ++k) columns[k].push_back(outs[k]);
        }
        Tensors joined;
        for (const Tensors& c : columns) joined.push_back(at::stack(c, 1));
        return joined;
      };
    } else if (*kind == 'j') {
      f = [f, along](const Tensors& in) { return td::jvp(f, in, along(in)).second; };
    } else {
      f = [f, along](const Tensors& in) {
        const auto [outs, pullback] = td::vjp(f, in);
        return pullback(along(outs));
      };
    }
  }
  return f;
}

int64_t count(const std::string& kinds, char kind) { return std::count(kinds.begin(), kinds.end(), kind); }

}  // namespace

const std::vector<Program>& programs() {
  static const std::vector<Program> all = make();
  return all;
}

std::vector<std::string> nestings(size_t most) {
  std::vector<std::string> all{""};
  for (size_t first = 0; most > 0; --most) {
    const size_t end = all.size();
    for (; first < end; ++first)
      for (const char kind : std::string("vjr")) all.push_back(kind + all[first]);
  }
  return all;
}

Result run(const Program& program, const std::string& outside, const std::string& inside, const Part& part,
           const tower::NamedExamples& examples, bool by_batch) {
  const int64_t outer = count(outside, 'v'), inner = count(inside, 'v');
  Tensors in;
  for (const bool shared : {false, true}) {
    std::vector<int64_t> sizes = shared ? program.shared : program.example;
    sizes.insert(sizes.begin(), static_cast<size_t>(inner), kLocal);
    if (!shared) sizes.insert(sizes.begin(), kBatch);
    sizes.insert(sizes.begin(), static_cast<size_t>(outer), kLocal);
    in.push_back(waves_there(sizes, shared ? 0.4 : 0.1));
  }
  in[0] = part.of(in[0], outer);

  const Function of_example = inside_of(inside, by_batch ? program.batched : program.one, by_batch);
  Function f;
  if (by_batch) {
    f = [of_example](const Tensors& x) {
      std::vector<int64_t> sizes = x[1].sizes().vec();
      sizes.insert(sizes.begin(), kBatch);
      return of_example({x[0], x[1].unsqueeze(0).expand(sizes)});
    };
  } else {
    f = td::vmap(of_example, {0, std::nullopt}, {0}, {}, examples);
  }
  // What is mapped, of the innermost function: a derivative of the inner function is one of each example.
  const size_t outs = !inside.empty() && inside[0] == 'r' ? 2 : count(inside, 'r') > 0 ? 2 : 1;
  MappedDims ins{0, std::nullopt}, results(outs, 0);
  double phase = 0.6;
  for (auto kind = outside.rbegin(); kind != outside.rend(); ++kind, phase += 1) {
    if (*kind == 'v') {
      f = by_batch ? Function([f](const Tensors& x) {
        std::vector<Tensors> rows;
        for (int64_t i = 0; i < kLocal; ++i) {
          const Tensors one = f({x[0][i], x[1][i]});
          rows.resize(one.size());
          for (size_t k = 0; k < one.size(); ++k) rows[k].push_back(one[k]);
        }
        Tensors joined;
        for (const Tensors& r : rows) joined.push_back(at::stack(r));
        return joined;
      })
                   : td::vmap(f, {0, 0}, {0});
      for (auto* dims : {&ins, &results})
        for (auto& dim : *dims)
          if (dim) ++*dim;
    } else if (*kind == 'j') {
      f = [f, ins, phase, part](const Tensors& x) { return td::jvp(f, x, directions(x, ins, phase, part)).second; };
    } else {
      f = [f, results, phase, part](const Tensors& x) {
        const auto [values, pullback] = td::vjp(f, x);
        return pullback(directions(values, results, phase, part));
      };
      results = ins;
    }
  }
  return {f(in), results};
}

}  // namespace mesh_programs

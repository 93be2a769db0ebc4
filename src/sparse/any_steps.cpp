// The step is run once, on a state whose elements are new ones. What its outputs then depend on is a graph over the
// elements of the state; an element's set is the union over all that can be reached from it.
#include "sparse/any_steps.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "interpreters/vmap.h"
#include "sparse/dependence.h"
#include "sparse/ids.h"
#include "sparse/index.h"

namespace tower::sparse {

namespace {

using dynamic::Function;
using dynamic::Tensors;
using Id = Sets::Id;

// Which elements of the state each depends on after a step, and what else.
struct Graph {
  std::vector<std::vector<size_t>> to;
  std::vector<std::vector<Id>> own;  // and in the end the one set of all that it reaches
};

// Tarjan's components, which come after all that they reach.
class Reached {
 public:
  Reached(Sets& sets, Graph& graph)
      : sets_(sets), graph_(graph), number_(graph.to.size(), 0), low_(graph.to.size(), 0), next_(graph.to.size(), 0) {
    for (size_t k = 0; k < graph.to.size(); ++k)
      if (number_[k] == 0) visit(k);
  }

 private:
  void visit(size_t root) {
    std::vector<size_t> path{root};
    enter(root);
    while (!path.empty()) {
      const size_t at = path.back();
      if (next_[at] < graph_.to[at].size()) {
        const size_t to = graph_.to[at][next_[at]++];
        if (number_[to] == 0) {
          enter(to);
          path.push_back(to);
        } else if (number_[to] != kDone) {
          low_[at] = std::min(low_[at], number_[to]);
        }
        continue;
      }
      path.pop_back();
      if (!path.empty()) low_[path.back()] = std::min(low_[path.back()], low_[at]);
      if (low_[at] == number_[at]) leave(at);
    }
  }

  void enter(size_t k) {
    number_[k] = low_[k] = ++count_;
    open_.push_back(k);
  }

  void leave(size_t root) {
    const auto first = std::find(open_.rbegin(), open_.rend(), root).base() - 1;
    std::vector<Id> all;
    for (auto k = first; k != open_.end(); ++k) {
      all.insert(all.end(), graph_.own[*k].begin(), graph_.own[*k].end());
      for (const size_t to : graph_.to[*k])
        if (number_[to] == kDone) all.push_back(graph_.own[to][0]);
    }
    const Id united = sets_.unite_all(all);
    for (auto k = first; k != open_.end(); ++k) {
      graph_.own[*k] = {united};
      number_[*k] = kDone;
    }
    open_.erase(first, open_.end());
  }

  static constexpr size_t kDone = ~size_t{0};
  Sets& sets_;
  Graph& graph_;
  std::vector<size_t> number_, low_, next_;
  std::vector<size_t> open_;
  size_t count_ = 0;
};

// A tensor as the level that looks for the pattern has it, with the dimensions of the vmaps above in front.
struct Flat {
  Tensor value, ids;
};

class States {
 public:
  States() {
    Level* l = top();
    for (; l && l->kind() == Kind::vmap; l = l->below()) maps_.insert(maps_.begin(), static_cast<Vmap*>(l));
    level_ = dynamic_cast<Dependence*>(l);
  }
  explicit operator bool() const { return level_ != nullptr; }
  Dependence& level() const { return *level_; }

  Flat flat(const Tensor& t) const {
    int64_t in_front = 0;
    return part(varying(t), in_front);
  }

  Tensor made(Flat flat) const {
    Tensor t = wrap(*level_, Payload{std::move(flat.value), std::move(flat.ids), Dependence::kFromX});
    for (Vmap* map : maps_) t = wrap(*map, Payload{std::move(t), {}, 0});
    return t;
  }

  bool is_from_x(Tensor t) const {
    while (Wrapper* w = as_wrapper(t)) {
      if (&w->level() == level_) return Dependence::is_from_x(*w);
      Tensor value = w->payload().value;
      t = std::move(value);
    }
    return false;
  }

 private:
  // A batch of all maps.
  Tensor varying(Tensor t) const {
    for (Vmap* map : maps_) {
      const Tensor all = wrap(*map, Payload{at::ones({map->batch_size()}, at::kBool), {}, 0});
      t = at::where(all, t, t);
    }
    return t;
  }

  Flat part(const Tensor& t, int64_t& in_front) const {
    Wrapper* w = as_wrapper(t);
    if (!w) return {t, {}};
    const Payload payload = w->payload();
    if (&w->level() == level_) return {payload.value, payload.tangent};
    Flat flat = part(payload.value, in_front);
    if (payload.index < 0) return flat;
    const auto moved = [&](const Tensor& m) { return m.defined() ? m.movedim(in_front + payload.index, in_front) : m; };
    flat = {moved(flat.value), moved(flat.ids)};
    ++in_front;
    return flat;
  }

  std::vector<Vmap*> maps_;  // the innermost level first
  Dependence* level_;
};

struct Steps {
  const States& states;
  const Function& step;
  const Tensors& start;
  std::vector<Flat> flat = {};
  std::vector<bool> kept = {};  // tensors that the step returns as they are

  Tensors run() {
    for (const Tensor& t : start) flat.push_back(states.flat(t));
    kept.assign(start.size(), false);
    Tensors found = closed();
    bool known = false;
    for (size_t k = 0; k < start.size(); ++k) known = known || (kept[k] && !states.is_from_x(start[k]));
    return known ? closed() : found;  // again, with what is constant as such
  }

  Tensors closed() {
    Sets& sets = states.level().sets();
    std::vector<int64_t> first(start.size() + 1, 0);
    for (size_t k = 0; k < start.size(); ++k)
      first[k + 1] = first[k] + (!kept[k] && is_number(k) ? flat[k].value.numel() : 0);
    const int32_t base = states.level().new_elements(first.back());
    Tensors given;
    for (size_t k = 0; k < start.size(); ++k) {
      Tensor ids;
      if (first[k + 1] > first[k]) {
        ids = at::empty(flat[k].value.sizes(), at::kDouble);
        auto* to = ids.mutable_data_ptr<double>();
        for (int64_t e = 0; e < ids.numel(); ++e)
          to[e] = static_cast<double>(sets.single(base + static_cast<int32_t>(first[k] + e)));
      }
      given.push_back(kept[k] ? start[k] : states.made({flat[k].value, ids}));
    }
    const Tensors outs = step(given);

    Graph graph{std::vector<std::vector<size_t>>(index(first.back())),
                std::vector<std::vector<Id>>(index(first.back()))};
    for (size_t k = 0; k < start.size(); ++k) {
      if (first[k + 1] == first[k]) continue;
      const Tensor now = states.flat(outs[k]).ids;
      for (const Tensor& ids : {flat[k].ids, now}) {
        if (!ids.defined()) continue;
        const Tensor list = ids.expand(flat[k].value.sizes()).contiguous();
        for (int64_t e = 0; e < list.numel(); ++e)
          add(sets, graph, index(first[k] + e), id_of(list.const_data_ptr<double>()[e]), base, first.back());
      }
    }
    const Reached reached(sets, graph);

    Tensors result;
    for (size_t k = 0; k < start.size(); ++k) {
      if (kept[k]) {
        result.push_back(start[k]);
        continue;
      }
      kept[k] = outs[k].is_same(given[k]);
      Tensor ids;
      if (first[k + 1] > first[k]) {
        ids = at::empty(flat[k].value.sizes(), at::kDouble);
        auto* to = ids.mutable_data_ptr<double>();
        for (int64_t e = 0; e < ids.numel(); ++e) to[e] = static_cast<double>(graph.own[index(first[k] + e)][0]);
      }
      result.push_back(states.made({flat[k].value, ids}));
    }
    return result;
  }

  // Of a set, which elements are the state's.
  static void add(Sets& sets, Graph& graph, size_t node, Id id, int32_t base, int64_t count) {
    std::vector<int32_t> others;
    const auto elements = sets.elements(id);
    for (const int32_t e : elements) {
      const int64_t number = int64_t{e} - base;
      if (number >= 0 && number < count) graph.to[node].push_back(index(number));
      else others.push_back(e);
    }
    graph.own[node].push_back(others.size() == elements.size() ? id : sets.intern(others));
  }

  bool is_number(size_t k) const { return start[k].is_floating_point() || start[k].is_complex(); }
};

}  // namespace

Tensors any_number_of_steps(const Function& step, const Tensors& start) {
  const States states;
  if (!states) return {};
  try {
    return Steps{states, step, start}.run();
  } catch (const c10::Error&) {
    return {};  // of a kernel that does not take these values
  }
}

}  // namespace tower::sparse

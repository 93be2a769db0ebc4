#include "fuse/vmaps_of_one.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "fuse/plain_views.h"
#include "graph/effects.h"
#include "graph/operand_dims.h"
#include "interpreters/mapped.h"

namespace tower::compiler {
namespace {

class VmapsOfOne {
 public:
  explicit VmapsOfOne(Graph& graph) : graph_(graph) {}

  void run() {
    std::vector<Call> before = std::move(graph_.calls);
    graph_.calls.clear();
    for (Call& call : before) add(std::move(call));
  }

 private:
  // The call, and what its results are views of.
  void add(Call call) {
    const auto v = dropped(call);
    if (!v) {
      graph_.calls.push_back(std::move(call));
      return;
    }
    const std::vector<ValueId> results = call.results;
    for (size_t k = 0; k < call.operands.size(); ++k) leave_out(call, *v, k);
    call.vmaps.erase(call.vmaps.begin() + static_cast<std::ptrdiff_t>(*v));
    bind(call, *v);
    for (ValueId& id : call.results) {
      if (id == kNoValue) continue;
      Value less = graph_.values[id];
      less.sizes.erase(less.sizes.begin() + static_cast<std::ptrdiff_t>(*v));
      less.strides.erase(less.strides.begin() + static_cast<std::ptrdiff_t>(*v));
      if (less.known.defined()) less.known = less.known.squeeze(static_cast<int64_t>(*v));
      id = graph_.values.add(std::move(less));
    }
    std::vector<Call> views;
    for (size_t k = 0; k < results.size(); ++k) {
      if (results[k] == kNoValue) continue;
      without_.emplace(std::pair(results[k], static_cast<int64_t>(*v)), call.results[k]);
      const Value& whole = graph_.values[results[k]];
      views.push_back(view_of(graph_, call.results[k], whole.sizes, whole.strides));
      views.back().results = {results[k]};
    }
    add(std::move(call));
    for (Call& view : views) graph_.calls.push_back(std::move(view));
  }

  // Which vmap the call is better without.
  static std::optional<size_t> dropped(const Call& call) {
    for (size_t v = 1; v < call.vmaps.size(); ++v)
      if (call.vmaps[v].batch_size == 1 && may_lack_vmaps(call)) return v;
    return std::nullopt;
  }

  void leave_out(Call& call, size_t v, size_t k) {
    const ValueId id = call.operands[k];
    const Value& whole = graph_.values[id];
    const std::vector<int64_t> dims = seen(call, k, whole.sizes.size(), kNoAxis).of_vmaps;
    const int64_t gone = dims[v];
    if (gone < 0) return;
    // Dimensions of vmaps around count what is gone, if it comes before them.
    for (size_t outer = 0; outer < v; ++outer) {
      int64_t& dim = call.vmaps[outer].dims[k];
      if (dim != Mapped::kUnmapped && gone < dims[outer]) --dim;
    }
    const auto known = without_.find({id, gone});
    if (known != without_.end()) {
      call.operands[k] = known->second;
      return;
    }
    Sizes sizes = whole.sizes, strides = whole.strides;
    sizes.erase(sizes.begin() + gone);
    strides.erase(strides.begin() + gone);
    graph_.calls.push_back(view_of(graph_, id, std::move(sizes), std::move(strides)));
    call.operands[k] = graph_.calls.back().results[0];
    without_.emplace(std::pair(id, gone), call.operands[k]);
  }

  // The image of the operator, then the images of that, but for the one that is left out.
  static void bind(Call& call, size_t left_out) {
    struct Level {
      Randomness randomness;
      const char* label;
    };
    std::vector<Level> levels;
    const c10::intrusive_ptr<const Operator> before = std::move(call.owner);
    for (const Operator* op = call.bound; const auto image = image_of(*op); op = &image->base)
      levels.push_back({image->randomness, image->label});
    levels.erase(levels.begin() + static_cast<std::ptrdiff_t>(left_out));
    call.bound = call.op;
    call.owner = {};
    Stack args = call.args;
    std::vector<LeafRef> leaves = call.places;
    for (size_t v = call.vmaps.size(); v-- > 0;) {
      const Mapped& vmap = call.vmaps[v];
      call.owner = image_from({*call.bound, args, leaves, vmap.dims, vmap.batch_size, vmap.axis, levels[v].randomness,
                               levels[v].label, Vmap::MakeLevel(), false});
      call.bound = call.owner.get();
      c10::List<Tensor> holes;
      for (size_t k = 0; k < call.operands.size(); ++k) {
        holes.push_back(at::detail::empty_cpu({0}, at::kFloat));
        leaves[k] = {0, static_cast<uint16_t>(k)};
      }
      args.assign(1, IValue(std::move(holes)));
    }
  }

  Graph& graph_;
  std::map<std::pair<ValueId, int64_t>, ValueId> without_;  // that dimension
};

}  // namespace

bool may_lack_vmaps(const Call& call) {
  if (call.effect || call.opaque() || call.random() || !call.op->handle()) return false;
  for (const Operator* op = call.bound; const auto image = image_of(*op); op = &image->base)
    if (image->make_level || image->draws) return false;
  return true;
}

void drop_vmaps_of_one(Graph& graph) {
  const auto has_one = [](const Call& call) {
    return call.vmaps.size() > 1 && std::any_of(call.vmaps.begin() + 1, call.vmaps.end(),
                                                [](const Mapped& vmap) { return vmap.batch_size == 1; });
  };
  if (std::any_of(graph.calls.begin(), graph.calls.end(), has_one) && !has_effects(graph)) VmapsOfOne(graph).run();
}

}  // namespace tower::compiler

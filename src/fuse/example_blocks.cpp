#include "fuse/example_blocks.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorOperators.h>
#include <ATen/ThreadLocalState.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "core/bind.h"
#include "fuse/small.h"
#include "graph/plan.h"
#include "graph/pointwise.h"
#include "interpreters/custom.h"
#include "interpreters/mapped.h"
#include "kernels/threads.h"
#include "numbers/fold.h"

namespace tower::compiler {
namespace {

using dynamic::Tensors;

constexpr int64_t kWhole = -1;            // the dimension of examples, of what all blocks read
constexpr int64_t kMultipleOfBlock = 16;  // examples: no vector of lanes is empty
constexpr int64_t kFewestBlocks = 3;
constinit BlockThresholds block_limits;
constexpr int64_t kMostGroups = 32;  // of blocks, that threads share

// NOTE [Which calls are in blocks]
// A value has examples if a call made it for each of n, in a dimension that is known: of a call under a vmap over n the
// vmap's own; of one outside, that in which its operands have them, where an element of the result is read from the
// same example: pointwise calls, and sums over other dimensions. A sum over the examples is a result of the blocks.
// What a call reads of arguments, constants and earlier calls is cut along the dimension in which the call has
// examples, or is whole. Calls that need something of all examples come after the blocks, and so does all that needs
// these. So calls change places, and there are no blocks where some keep theirs: those that write, draw random numbers
// or are of unknown code.
class ExampleCalls {
 public:
  enum class When : uint8_t { before, in_blocks, after };
  struct Read {
    ValueId id;
    int64_t dim;  // kWhole: all of it
    bool operator<(const Read& other) const { return std::pair(id, dim) < std::pair(other.id, other.dim); }
  };

  ExampleCalls(const Graph& graph, int64_t examples)
      : graph_(graph),
        examples_(examples),
        when_(graph.values.size(), When::before),
        dims_(graph.values.size(), kWhole) {
    for (const Call& call : graph.calls) {
      reads_.emplace_back();
      of_calls_.push_back(place(call));
    }
  }

  When of(size_t call) const { return of_calls_[call]; }
  /// How a call in blocks reads its operands.
  const std::vector<int64_t>& reads(size_t call) const { return reads_[call]; }
  /// The dimension of examples; kWhole: it is a sum over them.
  int64_t dim(ValueId id) const { return dims_[id]; }
  bool is_in_blocks(ValueId id) const { return when_[id] == When::in_blocks; }
  bool is_sum(ValueId id) const { return sums_.count(id) > 0; }

 private:
  const Sizes& sizes(ValueId id) const { return graph_.values[id].sizes; }
  bool has_examples(ValueId id) const { return when_[id] == When::in_blocks && dims_[id] != kWhole; }

  When place(const Call& call) {
    const auto any = [&](auto holds) { return std::any_of(call.operands.begin(), call.operands.end(), holds); };
    const bool of_examples = any([&](ValueId id) { return has_examples(id); });
    When when = When::before;
    if (any([&](ValueId id) { return when_[id] == When::after || is_sum(id); })) when = When::after;
    else if (may_be_in_blocks(call) &&
             (of_mapped(call) || (of_examples && (of_elements(call) || of_view(call) || of_sum(call)))))
      when = When::in_blocks;
    else if (of_examples) when = When::after;
    for (const ValueId id : call.results)
      if (id != kNoValue) when_[id] = when;
    return when;
  }

  bool may_be_in_blocks(const Call& call) const {
    return !code_in_numbers(*call.op) && !opens_under_trace(*call.op) && !call.operands.empty() &&
           std::none_of(call.operands.begin(), call.operands.end(), [](ValueId id) { return id == kNoValue; }) &&
           std::any_of(call.results.begin(), call.results.end(), [](ValueId id) { return id != kNoValue; });
  }

  // An operand with examples has them there; what has none may be cut there, or is whole.
  bool reads_at(ValueId id, int64_t dim) const {
    if (has_examples(id)) return dims_[id] == dim;
    return dim == kWhole || along(sizes(id), dim) == examples_;
  }
  void note(const Call& call, std::vector<int64_t> reads, int64_t dim) {
    reads_.back() = std::move(reads);
    for (const ValueId id : call.results)
      if (id != kNoValue) dims_[id] = dim;
  }

  bool of_mapped(const Call& call) {
    for (size_t v = 0; v < call.vmaps.size(); ++v) {
      if (call.vmaps[v].batch_size != examples_) continue;
      std::vector<int64_t> reads;
      bool all = true, any = false;
      for (size_t k = 0; k < call.operands.size(); ++k) {
        const auto dims = static_cast<int64_t>(sizes(call.operands[k]).size());
        reads.push_back(places_of(call, k, dims, dims)[v]);
        all = all && reads_at(call.operands[k], reads[k]);
        any = any || reads[k] != kWhole;
      }
      if (!all || !any) continue;
      note(call, std::move(reads), static_cast<int64_t>(v));
      return true;
    }
    return false;
  }

  bool of_elements(const Call& call) {
    const Pointwise pointwise{graph_};
    if (!element_rule(*call.op) || !pointwise.is_of_numbers(call)) return false;
    const Sizes& lanes = pointwise.lanes(call);
    for (const ValueId id : call.results)
      if (sizes(id) != lanes) return false;
    std::vector<Places> places;
    int64_t dim = kWhole;
    for (size_t k = 0; k < call.operands.size(); ++k) {
      places.push_back(pointwise.places(call, k));
      if (!has_examples(call.operands[k])) continue;
      const auto at = std::find(places[k].begin(), places[k].end(), dims_[call.operands[k]]);
      if (at == places[k].end() || (dim != kWhole && dim != at - places[k].begin())) return false;
      dim = at - places[k].begin();
    }
    if (dim == kWhole || along(lanes, dim) != examples_) return false;
    std::vector<int64_t> reads;
    for (size_t k = 0; k < call.operands.size(); ++k) {
      const int64_t at = along(places[k], dim);
      reads.push_back(at != kWhole && along(sizes(call.operands[k]), at) == 1 ? kWhole : at);
      if (!reads_at(call.operands[k], reads[k])) return false;
    }
    note(call, std::move(reads), dim);
    return true;
  }

  // A view that keeps the examples' dimension whole, and is not told their number.
  bool of_view(const Call& call) {
    if (!call.op->view_keeps || call.operands.size() != 1 || call.results.size() != 1) return false;
    for (const IValue& arg : call.args) {
      if (arg.isInt() && arg.toInt() == examples_) return false;
      if (arg.isIntList()) {
        const auto list = arg.toIntVector();
        if (std::find(list.begin(), list.end(), examples_) != list.end()) return false;
      }
    }
    const Sizes& all = sizes(call.operands[0]);
    const Seen s = seen(call, 0, all.size(), kNoAxis);
    const auto at = std::find(s.of_example.begin(), s.of_example.end(), dims_[call.operands[0]]);
    if (at == s.of_example.end()) return false;
    Sizes of_example;
    for (const int64_t d : s.of_example) of_example.push_back(along(all, d));
    const Sizes kept = call.op->view_keeps(of_example, call.args, 0);
    const auto in_view = std::find(kept.begin(), kept.end(), at - s.of_example.begin());
    if (in_view == kept.end()) return false;
    const int64_t dim = static_cast<int64_t>(call.vmaps.size()) + (in_view - kept.begin());
    if (along(sizes(call.results[0]), dim) != examples_) return false;
    note(call, {dims_[call.operands[0]]}, dim);
    return true;
  }

  bool of_sum(const Call& call) {
    if (call.operands.size() != 1 || call.results.size() != 1) return false;
    const Value &terms = graph_.values[call.operands[0]], &sum = graph_.values[call.results[0]];
    if (!is_summed_in_itself(terms.dtype) || sum.dtype != terms.dtype ||
        simple_fold(*call.op, call.args, *type_of(terms.dtype)) != SimpleFold::sum)
      return false;
    const Seen s = seen(call, 0, terms.sizes.size(), kNoAxis);
    const auto at = std::find(s.of_example.begin(), s.of_example.end(), dims_[call.operands[0]]);
    if (at == s.of_example.end()) return false;
    const std::vector<int64_t> over = fold_rule(*call.op)->dims(call.args, static_cast<int64_t>(s.of_example.size()));
    const int64_t dim = at - s.of_example.begin();
    const std::vector<int64_t> reads{dims_[call.operands[0]]};
    if (std::find(over.begin(), over.end(), dim) != over.end()) {
      note(call, reads, kWhole);
      sums_.insert(call.results[0]);
      return true;
    }
    const bool keeps = sum.sizes.size() == call.vmaps.size() + s.of_example.size();
    const auto gone = keeps ? 0 : std::count_if(over.begin(), over.end(), [&](int64_t d) { return d < dim; });
    note(call, reads, static_cast<int64_t>(call.vmaps.size()) + dim - gone);
    return true;
  }

  const Graph& graph_;
  const int64_t examples_;
  ById<ValueId, When> when_;
  ById<ValueId, int64_t> dims_;
  std::set<ValueId> sums_;
  std::vector<When> of_calls_;
  std::vector<std::vector<int64_t>> reads_;
};

// The calls in blocks as a graph of one block's examples.
class BlockGraph {
 public:
  BlockGraph(const Graph& whole, const ExampleCalls& calls, int64_t all, int64_t examples)
      : whole_(whole), calls_(calls), all_(all), examples_(examples), own_(whole.values.size(), kNoValue) {
    for (size_t n = 0; n < whole.calls.size(); ++n)
      if (calls.of(n) == ExampleCalls::When::in_blocks) add(n);
  }

  void give(ValueId id) { graph_.results.push_back(own_[id]); }
  Graph take() { return std::move(graph_); }
  /// What the graph's arguments are of the whole one.
  const std::vector<ExampleCalls::Read>& arguments() const { return arguments_; }
  /// Whether all values could be made smaller.
  bool holds() const { return holds_; }

 private:
  void add(size_t n) {
    Call call = whole_.calls[n];
    bool mapped = false;
    std::vector<int64_t> sizes;
    for (size_t k = 0; k < call.operands.size(); ++k) call.operands[k] = operand(call.operands[k], calls_.reads(n)[k]);
    for (size_t v = 0; v < call.vmaps.size(); ++v) {
      const ValueId result = first_result(whole_.calls[n]);
      if (static_cast<int64_t>(v) == calls_.dim(result) && call.vmaps[v].batch_size == all_) {
        call.vmaps[v].batch_size = examples_;
        mapped = true;
      }
      sizes.push_back(call.vmaps[v].batch_size);
    }
    for (ValueId& id : call.results)
      if (id != kNoValue) {
        const int64_t dim = calls_.dim(id);
        Value v = whole_.values[id];
        v.known = Tensor();
        shrink(v, dim);
        id = own_[id] = graph_.values.add(std::move(v));
      }
    if (mapped) {
      call.owner = mapped_over(*call.bound, sizes);
      call.bound = call.owner.get();
    }
    graph_.calls.push_back(std::move(call));
  }

  // Its strides where it lies in memory as before.
  void shrink(Value& v, int64_t dim) {
    if (dim == kWhole) return;
    const int64_t stride = along(v.strides, dim), behind = stride * all_;
    for (size_t d = 0; d < v.sizes.size(); ++d) {
      if (static_cast<int64_t>(d) == dim || stride == 0 || v.strides[d] < behind || v.sizes[d] == 1) continue;
      holds_ = holds_ && v.strides[d] % all_ == 0;
      v.strides[d] = v.strides[d] / all_ * examples_;
    }
    along(v.sizes, dim) = examples_;
  }

  ValueId operand(ValueId id, int64_t dim) {
    if (calls_.is_in_blocks(id)) return own_[id];
    const auto [entry, is_new] = read_.try_emplace(ExampleCalls::Read{id, dim}, kNoValue);
    if (!is_new) return entry->second;
    Value v = whole_.values[id];
    v.known = Tensor();
    const bool constant = v.origin == Origin::constant && (dim == kWhole || same_everywhere(v));
    if (dim != kWhole) along(v.sizes, dim) = examples_;
    if (constant) {
      if (dim != kWhole) v.tensor = v.tensor.narrow(dim, 0, examples_);
    } else {
      v.origin = Origin::argument;
      v.tensor = Tensor();
      arguments_.push_back({id, dim});
    }
    entry->second = graph_.values.add(std::move(v));
    if (!constant) graph_.arguments.push_back(entry->second);
    return entry->second;
  }

  const Graph& whole_;
  const ExampleCalls& calls_;
  const int64_t all_, examples_;
  Graph graph_;
  ById<ValueId, ValueId> own_;
  std::map<ExampleCalls::Read, ValueId> read_;
  std::vector<ExampleCalls::Read> arguments_;
  bool holds_ = true;
};

class BlocksOperator final : public KernelOperator, public GoesOverBlocks {
 public:
  struct Result {
    int64_t dim;  // kWhole: the sum
    Sizes sizes, strides;
    at::ScalarType dtype;

    Tensor allocate() const { return at::detail::empty_strided_cpu(sizes, strides, dtype); }
  };

  /// `rest`: of the last block, where that has fewer examples.
  BlocksOperator(std::shared_ptr<const Plan> block, std::shared_ptr<const Plan> rest, int64_t all, int64_t examples,
                 std::vector<int64_t> dims, std::vector<Result> results)
      : KernelOperator("tower::blocks"),
        block_(std::move(block)),
        rest_(std::move(rest)),
        all_(all),
        examples_(examples),
        dims_(std::move(dims)),
        results_(std::move(results)) {}

 private:
  // Blocks are shared out to threads in groups. Sums are added up within a group, and then those of the groups: the
  // groups do not depend on the number of threads, and so neither does a bit of the results.
  void compute(c10::ArrayRef<const Tensor*> operands, c10::ArrayRef<Tensor*> results) const override {
    for (size_t k = 0; k < results.size(); ++k) *results[k] = results_[k].allocate();
    const int64_t blocks = (all_ - 1) / examples_ + 1, groups = std::min(blocks, kMostGroups);
    std::vector<Tensors> sums(static_cast<size_t>(groups), Tensors(results.size()));
    const at::ThreadLocalState state;  // whether gradients are recorded, as here
    share_among_threads(groups, 1, [&](int64_t first, int64_t last) {
      const at::ThreadLocalStateGuard as_here(state);
      for (int64_t g = first; g < last; ++g)
        for (int64_t b = blocks * g / groups; b < blocks * (g + 1) / groups; ++b)
          run_block(b * examples_, operands, results, sums[static_cast<size_t>(g)]);
    });
    for (size_t k = 0; k < results.size(); ++k) {
      if (results_[k].dim != kWhole) continue;
      results[k]->copy_(sums[0][k]);
      for (size_t g = 1; g < sums.size(); ++g) results[k]->add_(sums[g][k]);
    }
  }

  void run_block(int64_t begin, c10::ArrayRef<const Tensor*> operands, c10::ArrayRef<Tensor*> results,
                 Tensors& sums) const {
    const int64_t examples = std::min(examples_, all_ - begin);
    Tensors of_block;
    for (size_t k = 0; k < operands.size(); ++k)
      of_block.push_back(dims_[k] == kWhole ? *operands[k] : operands[k]->narrow(dims_[k], begin, examples));
    const Tensors made = (examples == examples_ ? block_ : rest_)->run(of_block);
    for (size_t k = 0; k < results.size(); ++k) {
      const int64_t dim = results_[k].dim;
      if (dim != kWhole) {
        results[k]->narrow(dim, begin, examples).copy_(made[k]);
      } else if (sums[k].defined()) {
        sums[k].add_(made[k]);
      } else {
        sums[k] = results_[k].allocate();
        sums[k].copy_(made[k]);
      }
    }
  }

  const std::shared_ptr<const Plan> block_, rest_;
  const int64_t all_, examples_;
  const std::vector<int64_t> dims_;  // of operands
  const std::vector<Result> results_;
};

int64_t bytes_of(const Value& v) { return count(v.sizes) * static_cast<int64_t>(c10::elementSize(v.dtype)); }

// The number of examples for which most is computed.
int64_t most_examples(const Graph& graph) {
  int64_t most = 0;
  for (const Call& call : graph.calls)
    for (const Mapped& vmap : call.vmaps) most = std::max(most, vmap.batch_size);
  return most;
}

// Bytes that the calls make, but for those of the graph's results and of views.
int64_t bytes_between(const FusedGraph& fused) {
  ById<ValueId, bool> leaves(fused.graph.values.size());
  for (const ValueId id : fused.graph.results)
    if (id != kNoValue) leaves[id] = true;
  int64_t bytes = 0;
  for (const Call& call : fused.graph.calls)
    for (const ValueId id : call.results)
      if (id != kNoValue && !leaves[id] && !gives_view(call)) bytes += bytes_of(fused.graph.values[id]);
  return bytes;
}

// Whether it stays where it is among all calls.
bool is_in_order(const Call& call) { return call.effect || call.opaque() || call.random(); }

// Instructions of all kernels.
int64_t instructions(const FusedGraph& fused) {
  int64_t all = 0;
  for (const Fused& k : fused.kernels) {
    const Kernel::Facts& facts = k.kernel->facts();
    all += facts.instructions * ((k.lanes - 1) / std::max<int64_t>(facts.vector_lanes, 1) + 1);
  }
  return all;
}

// Bytes that every block reads from outside.
int64_t bytes_of_all(const Graph& graph, const ExampleCalls& calls) {
  std::set<ValueId> read;
  for (size_t n = 0; n < graph.calls.size(); ++n) {
    if (calls.of(n) != ExampleCalls::When::in_blocks) continue;
    const std::vector<ValueId>& operands = graph.calls[n].operands;
    for (size_t k = 0; k < operands.size(); ++k)
      if (calls.reads(n)[k] == kWhole && !calls.is_in_blocks(operands[k])) read.insert(operands[k]);
  }
  int64_t bytes = 0;
  for (const ValueId id : read) bytes += bytes_of(graph.values[id]);
  return bytes;
}

// How many examples a block has, whose calls hand on `of_block` of all bytes: as many blocks as that asks for or
// some more, so that the last one has the most. Where that has few, blocks of much the same size are better, although
// vectors are not full then.
int64_t examples_of_block(int64_t all, int64_t bytes, int64_t of_block) {
  constexpr int64_t kParts = 1024;
  const int64_t fewest = std::max((bytes - 1) / of_block + 1, kFewestBlocks);
  int64_t best = 0, most = -1;
  for (int64_t blocks = fewest; blocks < 2 * fewest; ++blocks) {
    const int64_t examples = ((all - 1) / blocks / kMultipleOfBlock + 1) * kMultipleOfBlock;
    const int64_t last = all % examples == 0 ? examples : all % examples;
    if (const int64_t part = last * kParts / examples; part > most) best = examples, most = part;
  }
  return most < kParts / 2 && all > best ? (all - 1) / (all / best) + 1 : best;
}

}  // namespace

std::optional<FusedGraph> fuse_in_blocks(const Graph& graph, const FusedGraph& whole, Kernels& kernels) {
  using When = ExampleCalls::When;
  DispatchGuard keys;
  keys.see_no_operator();
  const int64_t all = most_examples(graph), bytes = bytes_between(whole);
  if (bytes < block_limits.fewest_bytes || bytes < block_limits.bytes_of_instruction * instructions(whole) ||
      std::any_of(graph.calls.begin(), graph.calls.end(), is_in_order))
    return std::nullopt;
  const ExampleCalls calls(graph, all);
  const int64_t of_block =
      std::max({block_limits.bytes_of_block, block_limits.bytes_of_call * std::ssize(whole.graph.calls),
                block_limits.bytes_of_shared_byte * bytes_of_all(graph, calls)});
  if (of_block > bytes / kFewestBlocks) return std::nullopt;
  const int64_t examples = examples_of_block(all, bytes, of_block);
  if ((all - 1) / examples + 1 < kFewestBlocks) return std::nullopt;

  // What others read of the blocks' results.
  ById<ValueId, bool> wanted(graph.values.size());
  for (const ValueId id : graph.results)
    if (id != kNoValue) wanted[id] = true;
  for (size_t n = 0; n < graph.calls.size(); ++n)
    if (calls.of(n) != When::in_blocks)
      for (const ValueId id : graph.calls[n].operands) wanted[id] = true;
  // A view that leaves shares memory with what it views, which leaves in its place: the view is made of that.
  std::vector<bool> afterwards(graph.calls.size());
  for (size_t n = graph.calls.size(); n-- > 0;) {
    const Call& call = graph.calls[n];
    if (calls.of(n) != When::in_blocks || !gives_view(call)) continue;
    afterwards[n] =
        std::any_of(call.results.begin(), call.results.end(), [&](ValueId id) { return id != kNoValue && wanted[id]; });
    if (afterwards[n])
      for (const ValueId id : call.operands) wanted[id] = true;
  }
  std::vector<ValueId> given;
  std::vector<BlocksOperator::Result> results;
  int64_t leaving = 0;
  for (size_t n = 0; n < graph.calls.size(); ++n) {
    if (calls.of(n) != When::in_blocks || gives_view(graph.calls[n])) continue;
    for (const ValueId id : graph.calls[n].results) {
      if (id == kNoValue || !wanted[id]) continue;
      const Value& v = graph.values[id];
      if (!order_in_memory(v)) return std::nullopt;
      given.push_back(id);
      results.push_back({calls.dim(id), v.sizes, v.strides, v.dtype});
      leaving += calls.is_sum(id) ? bytes_of(v) * (all / examples) : bytes_of(v);
    }
  }
  if (given.empty() || leaving > bytes / 2) return std::nullopt;

  const auto graph_of = [&](int64_t count) {
    BlockGraph block(graph, calls, all, count);
    for (const ValueId id : given) block.give(id);
    return block;
  };
  BlockGraph block = graph_of(examples);
  if (!block.holds()) return std::nullopt;
  FusedGraph in_block = fuse(block.take(), kernels);
  const auto plan = std::make_shared<const Plan>(in_block.graph);
  std::shared_ptr<const Plan> plan_of_rest;
  if (const int64_t last = all % examples)
    plan_of_rest = std::make_shared<const Plan>(fuse(graph_of(last).take(), kernels).graph);

  Graph around = graph;
  around.calls.clear();
  const auto add_calls = [&](When when) {
    for (size_t n = 0; n < graph.calls.size(); ++n)
      if (calls.of(n) == when || (when == When::after && afterwards[n])) around.calls.push_back(graph.calls[n]);
  };
  std::vector<ValueId> operands;
  std::vector<int64_t> dims;
  for (const auto& [id, dim] : block.arguments()) {
    operands.push_back(id);
    dims.push_back(dim);
  }
  add_calls(When::before);
  around.calls.push_back(
      KernelOperator::call_of(c10::make_intrusive<BlocksOperator>(plan, std::move(plan_of_rest), all, examples,
                                                                  std::move(dims), std::move(results)),
                              graph, std::move(operands), given));
  add_calls(When::after);
  FusedGraph fused = fuse(around, kernels);
  fused.blocks = std::make_shared<const FusedGraph::Blocks>(FusedGraph::Blocks{examples, std::move(in_block)});
  return fused;
}

OtherBlockThresholds::OtherBlockThresholds(const BlockThresholds& numbers) { block_limits = numbers; }
OtherBlockThresholds::~OtherBlockThresholds() { block_limits = {}; }

}  // namespace tower::compiler

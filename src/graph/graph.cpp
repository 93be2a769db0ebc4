#include "graph/graph.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <set>
#include <sstream>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "frontend/twins.h"
#include "graph/addresses.h"
#include "graph/effects.h"
#include "graph/raises.h"
#include "interpreters/mapped.h"
#include "operators/known_code.h"

namespace tower::compiler {

Value::Value(Origin from, const Tensor& t, bool kept)
    : origin(from),
      sizes(t.sizes()),
      strides(t.strides()),
      dtype(t.scalar_type()),
      device(t.device()),
      number(t.unsafeGetTensorImpl()->is_wrapped_number()),
      tensor(kept ? t : Tensor()) {}

std::string Value::describe() const {
  Meta meta;
  meta.sizes = sizes;
  meta.dtype = dtype;
  return meta.describe();
}

bool Call::writes(size_t operand) const { return effect && frontend::writes_to(*op, places[operand].arg); }

// To the running statistics.
bool Call::writes_unsaid() const {
  static const Operator* batch_norm = Operator::find("aten::native_batch_norm", "");
  constexpr size_t kTraining = 5;
  return op == batch_norm && args[kTraining].toBool();
}

std::optional<size_t> Call::check_argument() const {
  const auto& arguments = op->schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i)
    if (args[i].isBool() && arguments[i].name() == "check_errors") return i;  // few arguments are booleans
  return std::nullopt;
}

void Call::set_check(bool checks) {
  const size_t at = *check_argument();
  args[at] = checks;
  if (vmaps.empty()) return;
  owner = mapped_with(*bound, at, checks);
  bound = owner.get();
}

bool Call::checks() const {
  if (results.empty()) return true;
  const auto at = check_argument();
  return at && args[*at].toBool();
}

std::string attributes_of(const Call& call) {
  std::ostringstream text;
  for (size_t i = 0; i < call.args.size(); ++i) {
    const IValue& v = call.args[i];
    if (call.op->kind(i) != ArgKind::other || v.isNone()) continue;
    text << (text.tellp() > 0 ? ", " : "") << call.op->argument_name(i) << '=';
    if (v.isCapsule()) text << "…";
    else text << v;
  }
  return text.str();
}

// ---- printing ------------------------------------------------------------------------------------------------------

namespace {

class Printer {
 public:
  explicit Printer(const Graph& graph) : graph_(graph) {}

  std::string print() {
    for (ValueId id : graph_.arguments)
      if (id != kNoValue) text_ << "argument %" << plain(id) << " : " << graph_.values[id].describe() << '\n';
    for (const Call& call : graph_.calls) {
      for (ValueId id : call.operands) introduce(id);
      line(call);
    }
    for (ValueId id : graph_.results) introduce(id);
    text_ << "return";
    list(graph_.results, " ");
    text_ << '\n';
    return text_.str();
  }

 private:
  void list(const std::vector<ValueId>& ids, const char* before_first) {
    const char* before = before_first;
    for (ValueId id : ids) {
      text_ << before;
      if (id == kNoValue) text_ << '-';
      else text_ << '%' << plain(id);
      before = ", ";
    }
  }

  // Where a value that no call gives is read first.
  void introduce(ValueId id) {
    const Value& value = graph_.values[id];
    if (value.origin != Origin::captured && value.origin != Origin::constant) return;
    if (!introduced_.insert(id).second) return;
    text_ << (value.origin == Origin::captured ? "captured %" : "constant %") << plain(id) << " : " << value.describe()
          << '\n';
  }

  void dims(const Mapped& mapped) {
    for (size_t k = 0; k < mapped.dims.size(); ++k) {
      text_ << (k ? "," : "");
      if (mapped.dims[k] == Mapped::kUnmapped) text_ << '-';
      else text_ << mapped.dims[k];
    }
    const size_t number = axes_.emplace(mapped.axis, axes_.size()).first->second;
    text_ << '|' << static_cast<char>('a' + number % 26) << mapped.batch_size;
  }

  void line(const Call& call) {
    list(call.results, "");
    text_ << (call.results.empty() ? "" : " = ") << call.op->name();
    for (size_t v = 0; v < call.vmaps.size(); ++v) {
      text_ << (v ? ";" : "<");
      dims(call.vmaps[v]);
    }
    text_ << (call.vmaps.empty() ? "(" : ">(");
    list(call.operands, "");
    const std::string attributes = attributes_of(call);
    if (!attributes.empty()) text_ << (call.operands.empty() ? "" : "; ") << attributes;
    text_ << ')';
    const char* before = " : ";
    for (ValueId id : call.results) {
      text_ << before << (id == kNoValue ? "-" : graph_.values[id].describe());
      before = ", ";
    }
    text_ << '\n';
  }

  const Graph& graph_;
  std::ostringstream text_;
  std::set<ValueId> introduced_;
  std::map<uint64_t, size_t> axes_;  // letters, in order of appearance
};

}  // namespace

std::string Graph::print() const { return Printer(*this).print(); }

tower::Graph published(const Graph& graph) {
  tower::Graph result;
  for (const Value& v : graph.values)
    result.values.push_back(
        {v.origin, std::vector<int64_t>(v.sizes.begin(), v.sizes.end()), v.dtype, v.device, v.tensor});
  const auto numbers = [](const std::vector<ValueId>& ids) {
    std::vector<int64_t> numbers;
    numbers.reserve(ids.size());
    for (const ValueId id : ids) numbers.push_back(plain(id));
    return numbers;
  };
  result.arguments = numbers(graph.arguments);
  for (const Call& c : graph.calls)
    result.calls.push_back(
        {c.op->name(), attributes_of(c), numbers(c.operands), numbers(c.results), c.vmaps, c.effect});
  result.results = numbers(graph.results);
  result.text = graph.print();
  return result;
}

bool gives_view(const Call& call) {
  static const auto& gives_its_operand =
      *new std::unordered_set<std::string>{"aten::_unsafe_view", "aten::lift", "aten::lift_fresh"};
  return call.op->is_view() || gives_its_operand.count(call.op->name()) > 0;
}

bool is_given_addresses(const Operator& op) {
  static const std::array<const Operator*, 3> all{Operator::find("aten::as_strided", ""),
                                                  Operator::find("aten::as_strided_copy", ""),
                                                  Operator::find("aten::as_strided_scatter", "")};
  return std::find(all.begin(), all.end(), &op) != all.end();
}

// Two results that the function made apart stay apart. What is read by its addresses has to be where it is.
ById<ValueId, bool> values_that_leave(const Graph& graph) {
  ById<ValueId, bool> leaves(graph.values.size(), false);
  for (ValueId id : graph.results) leaves[id] = true;
  for (size_t n = graph.calls.size(); n-- > 0;) {
    const Call& call = graph.calls[n];
    if (!gives_view(call) && !call.opaque() && !is_given_addresses(*call.op)) continue;
    bool any = is_given_addresses(*call.op);
    for (ValueId id : call.results) any = any || (id != kNoValue && leaves[id]);
    for (ValueId id : call.operands)
      if (any) leaves[id] = true;
  }
  return leaves;
}

// ---- passes --------------------------------------------------------------------------------------------------------

namespace {

void write_exactly(std::ostream& out, const IValue& v) {
  if (v.isList()) {
    for (const IValue& element : v.toListRef()) write_exactly(out << ' ', element);
  } else if (v.isDouble()) {
    out << "d" << std::bit_cast<uint64_t>(v.toDouble());
  } else if (v.isComplexDouble()) {
    out << "c" << std::bit_cast<uint64_t>(v.toComplexDouble().real()) << ' '
        << std::bit_cast<uint64_t>(v.toComplexDouble().imag());
  } else {
    out << v.tagKind() << v;
  }
}

// Whether what a call computes depends on which vmap it is under. LibTorch's own operators know nothing of vmaps.
bool knows_its_vmaps(const Call& call) {
  if (!call.op->handle() || call.op->foreign()) return true;
  const Operator* op = call.bound;
  while (const auto image = image_of(*op)) {
    if (image->make_level) return true;
    op = &image->base;
  }
  return false;
}

// Equal texts: equal calls.
std::string key_of(const Call& call, bool across_vmaps) {
  std::ostringstream key;
  key << call.op << ' ' << call.records;
  for (ValueId id : call.operands) key << ',' << plain(id);
  for (const LeafRef& place : call.places) key << ';' << place.arg << '.' << place.element;
  const bool by_vmap = !across_vmaps || knows_its_vmaps(call);
  for (const Mapped& mapped : call.vmaps) {
    key << '|' << (by_vmap ? std::to_string(mapped.axis) : "") << ':' << mapped.batch_size;
    for (int64_t dim : mapped.dims) key << ',' << dim;
  }
  for (size_t i = 0; i < call.args.size(); ++i)
    if (call.op->kind(i) == ArgKind::other) write_exactly(key << '(', call.args[i]);
  return key.str();
}

// Of each constant, one with the same bits that lies as it does: the first. Those that somebody may write to, or that
// leave, are their own.
void find_equal_constants(const Graph& graph, ById<ValueId, bool> leaves, ById<ValueId, ValueId>& stands_for) {
  for (const Call& call : graph.calls)
    if (call.opaque() || call.effect)
      for (const ValueId id : call.operands) leaves[id] = true;
  std::map<std::tuple<at::ScalarType, bool, Sizes, Sizes>, std::vector<ValueId>> known;
  for (const ValueId id : graph.values.ids()) {
    const Value& v = graph.values[id];
    if (v.origin != Origin::constant || !v.tensor.defined() || leaves[id] || !v.device.is_cpu()) continue;
    std::vector<ValueId>& alike = known[{v.dtype, v.number, v.sizes, v.strides}];
    const auto first = std::find_if(alike.begin(), alike.end(),
                                    [&](ValueId other) { return same_bits(graph.values[other].tensor, v.tensor); });
    if (first == alike.end()) alike.push_back(id);
    else stands_for[id] = *first;
  }
}

void share_equal_calls(Graph& graph, bool across_vmaps = false) {
  const ById<ValueId, bool> leaves = values_that_leave(graph);
  std::unordered_map<std::string, Call*> seen;
  ById<ValueId, ValueId> stands_for(graph.values.size());
  for (const ValueId id : stands_for.ids()) stands_for[id] = id;
  if (across_vmaps) find_equal_constants(graph, leaves, stands_for);
  std::vector<Call> kept;
  kept.reserve(graph.calls.size());  // `seen` points into it
  for (Call& call : graph.calls) {
    for (ValueId& id : call.operands) id = stands_for[id];
    bool own = call.random() || call.opaque() || call.effect;
    for (ValueId id : call.results) own = own || (id != kNoValue && leaves[id]);
    if (call.effect) seen.clear();  // what was read before may have changed
    if (!own) {
      const auto [first, is_new] = seen.try_emplace(key_of(call, across_vmaps), nullptr);
      if (!is_new) {
        for (size_t k = 0; k < call.results.size(); ++k)
          if (call.results[k] != kNoValue) stands_for[call.results[k]] = first->second->results[k];
        first->second->tried = first->second->tried && call.tried;
        continue;
      }
      kept.push_back(std::move(call));
      first->second = &kept.back();
      continue;
    }
    kept.push_back(std::move(call));
  }
  graph.calls = std::move(kept);
  for (Call& maker : graph.makers)
    for (ValueId& id : maker.operands)
      if (!is_constant(id)) id = stands_for[id];
}

// NOTE [Errors of factorizations]
// LibTorch factors without an error, and then looks whether there was one in a call of its own, which gives nothing.
// Here the factorization itself is told to look: that leaves one call, which kernels know.
void let_makers_check(Graph& graph) {
  static const Operator* check = Operator::find("aten::_linalg_check_errors", "");
  const auto is_check = [](const Call& call) { return call.op == check; };
  if (std::none_of(graph.calls.begin(), graph.calls.end(), is_check)) return;
  std::unordered_map<ValueId, size_t> maker;
  std::vector<Call> kept;
  for (Call& call : graph.calls) {
    if (is_check(call)) {
      const auto found = maker.find(call.operands[0]);
      if (found != maker.end()) {
        Call& factors = kept[found->second];
        if (!factors.checks()) factors.set_check(true);
        continue;
      }
    } else if (call.check_argument()) {
      const auto& returns = call.op->schema().returns();
      for (size_t k = 0; k < std::min(returns.size(), call.results.size()); ++k)
        if (returns[k].name() == "info") maker.emplace(call.results[k], kept.size());
    }
    kept.push_back(std::move(call));
  }
  graph.calls = std::move(kept);
}

// What constants that are read were made by. A call that nobody needs is among that, where its result's shape is.
class Makers {
 public:
  Makers(Graph& graph, const ById<ValueId, bool>& needed)
      : graph_(graph), values_(needed), constants_(graph.constants.size()) {
    for (size_t n = 0; n < graph.makers.size(); ++n)
      for (const ValueId id : graph.makers[n].results) maker_.try_emplace(id, n);
    for (const ValueId id : needed.ids())
      if (needed[id] && is_constant(graph.values[id].made_as)) reach(graph.values[id].made_as);
  }

  /// `dead`: in the order of the graph.
  void keep(std::vector<Call> dead) {
    std::unordered_map<ValueId, size_t> among_dead;
    for (size_t n = 0; n < dead.size(); ++n)
      for (const ValueId id : dead[n].results) among_dead.emplace(id, n);
    std::vector<bool> kept(graph_.makers.size()), kept_dead(dead.size());
    while (!next_.empty()) {
      const ValueId id = next_.back();
      next_.pop_back();
      if (!is_constant(id) && is_constant(graph_.values[id].made_as)) reach(graph_.values[id].made_as);
      const auto& from = is_constant(id) ? maker_ : among_dead;
      const auto found = from.find(id);
      if (found == from.end()) continue;
      (is_constant(id) ? kept : kept_dead)[found->second] = true;
      for (const ValueId operand : (is_constant(id) ? graph_.makers : dead)[found->second].operands) reach(operand);
    }
    std::vector<Call> makers;
    for (size_t n = 0; n < kept.size(); ++n)
      if (kept[n]) makers.push_back(std::move(graph_.makers[n]));
    for (size_t n = 0; n < dead.size(); ++n)
      if (kept_dead[n]) makers.push_back(std::move(dead[n]));
    graph_.makers = std::move(makers);
    for (size_t k = 0; k < constants_.size(); ++k)
      if (!constants_[k]) graph_.constants[k] = {};
  }

 private:
  void reach(ValueId id) {
    // A graph may have lost its constants, but not the numbers that speak of them.
    if (id == kNoValue || (is_constant(id) && place_of_constant(id) >= constants_.size())) return;
    std::vector<bool>::reference reached = is_constant(id) ? constants_[place_of_constant(id)] : values_[id];
    if (reached) return;
    reached = true;
    next_.push_back(id);
  }

  Graph& graph_;
  ById<ValueId, bool> values_;   // that are reached
  std::vector<bool> constants_;  // that are reached
  std::unordered_map<ValueId, size_t> maker_;
  std::vector<ValueId> next_;
};

// Whether one of the calls makes all of this one's steps, and so raises what it would: a loop's pullback.
bool is_raised_elsewhere(const Call& call, const std::vector<Call>& calls) {
  const KnownCode* code = known_code(*call.op);
  const auto starts_with = [](const auto& all, const auto& first) {
    return all.size() >= first.size() && std::equal(first.begin(), first.end(), all.begin());
  };
  return code && std::any_of(calls.begin(), calls.end(), [&](const Call& c) {
           const KnownCode* other = known_code(*c.op);
           return other && starts_with(c.operands, call.operands) &&
                  std::equal(c.vmaps.begin(), c.vmaps.end(), call.vmaps.begin(), call.vmaps.end(),
                             [&](const Mapped& of, const Mapped& one) {
                               return of.axis == one.axis && of.batch_size == one.batch_size &&
                                      starts_with(of.dims, one.dims);
                             }) &&
                  other->raises_for(*code);
         });
}

void remove_dead_calls(Graph& graph) {
  const bool writes = has_effects(graph);
  ById<ValueId, bool> needed(graph.values.size(), false);
  for (ValueId id : graph.results) needed[id] = true;
  std::vector<Call> kept, dead;
  for (size_t n = graph.calls.size(); n-- > 0;) {
    Call& call = graph.calls[n];
    // A draw moves the generator, whoever reads it, unless a function was only tried.
    bool used = call.effect || (call.random() && !call.tried) || call.opaque();
    for (ValueId id : call.results) used = used || (id != kNoValue && needed[id]);
    used = used || (!call.tried && may_raise(graph, call) && (writes || !is_raised_elsewhere(call, kept)));
    if (!used) {
      dead.push_back(std::move(call));
      continue;
    }
    for (ValueId id : call.operands) needed[id] = true;
    kept.push_back(std::move(call));
  }
  graph.calls.assign(std::make_move_iterator(kept.rbegin()), std::make_move_iterator(kept.rend()));
  std::reverse(dead.begin(), dead.end());
  Makers(graph, needed).keep(std::move(dead));
  for (const ValueId id : needed.ids())
    if (!needed[id]) graph.values[id].tensor = Tensor();
}

}  // namespace

std::string exact_text(const IValue& v) {
  std::ostringstream text;
  write_exactly(text, v);
  return text.str();
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || !a.sizes().equals(b.sizes()) || a.device() != b.device()) return false;
  const Tensor x = a.cpu().contiguous(), y = b.cpu().contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

void Graph::simplify() {
  share_equal_calls(*this);
  let_makers_check(*this);
  remove_dead_calls(*this);
}

void Graph::simplify_across_vmaps() {
  share_equal_calls(*this, /*across_vmaps=*/true);
  simplify();
}

}  // namespace tower::compiler

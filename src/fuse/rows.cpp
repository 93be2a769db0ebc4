#include "fuse/rows.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <unordered_set>

#include "fuse/row_kernel.h"
#include "fuse/short_sums.h"
#include "numbers/fold.h"
#include "numbers/reports.h"
#include "numbers/thresholds.h"

namespace tower::compiler {
namespace {

const Sizes kNoRows{-1};
constexpr int64_t kRowsOfElsewhere = -2;  // in front of where they begin
// Limits of a sum's error: kernels/print_folds.cpp.
constexpr int64_t kLongestWithoutBlocks = 256;
// With as many, a special function counts as more than one call to LLVM, which takes time for each operation.
constexpr int64_t kOperationsOfCall = 8;

}  // namespace

// ---- writing ----

class RowWriter {
 public:
  explicit RowWriter(const Rows& rows) : rows_(rows), graph_(rows.graph_), pointwise_{rows.graph_} {}

  std::optional<Call> write(const std::vector<size_t>& calls, const Readers& readers, Kernels& kernels,
                            std::vector<Fused>& report) {
    const std::vector<ValueId> results = readers.elsewhere(calls);
    if (results.empty()) return std::nullopt;
    settle_lanes(calls, results);
    if (outer_ > 0 && region_.levels == 0 && walks_rows_of(row_length())) region_.walked = row_length();
    Fused fused;
    for (const size_t n : calls) {
      add(graph_.calls[n]);
      fused.operators.push_back(graph_.calls[n].op->name());
    }
    std::vector<Written> written;
    for (const ValueId id : results) written.push_back(give(id));
    if (!lost_reports(region_.graph, region_.needed(), kOutsideOfLoops).empty()) return std::nullopt;
    fused.kernel = kernels.get(region_);
    fused.lanes = count(lanes_);
    auto op = row_kernel(fused.kernel, std::move(readings_), lanes_, outer_, std::move(written));
    report.push_back(std::move(fused));
    return KernelOperator::call_of(std::move(op), graph_, std::move(operands_), results, report.back().operators);
  }

 private:
  // Lanes are in the order in which what leaves lies in memory, if that can be.
  void settle_lanes(const std::vector<size_t>& calls, const std::vector<ValueId>& results) {
    for (const size_t n : calls) {
      const Call& call = graph_.calls[n];
      if (fold_rule(*call.op) && (form_ = rows_.form(call))) return settle_rows(call);
      if (const Elsewhere* elsewhere = rows_.elsewhere_of(call)) return settle_rows_of(call, *elsewhere);
    }
    const Rows::Sum* first = rows_.sum(results.at(0));
    const Value& model = pointwise_.value(first ? first->terms : results.at(0));
    order_ = *order_in_memory(model);
    const auto summed = [&](int64_t d) {
      return along(model.sizes, d) != 1 && std::any_of(results.begin(), results.end(), [&](ValueId id) {
               const Rows::Sum* sum = rows_.sum(id);
               return sum && along(sum->places, d) < 0;
             });
    };
    // A row is not summed over.
    const auto last =
        std::find_if(order_.rbegin(), order_.rend(), [&](int64_t d) { return along(model.sizes, d) != 1; });
    if (last != order_.rend() && summed(*last)) std::stable_partition(order_.begin(), order_.end(), summed);
    lanes_ = ordered(model.sizes, order_);
    outer_ = outer_dimensions(calls, results);
  }

  // Rows come one after the other as they lie in memory; in each, lanes are in the order of dimensions.
  void settle_rows(const Call& call) {
    const Places at = rows_.lane_places(call, 0);
    const Value& terms = pointwise_.value(call.operands[0]);
    const auto stride = [&](int64_t d) {
      const int64_t p = along(at, d);
      return p < 0 ? 0 : along(terms.strides, p);
    };
    order_.clear();
    for (size_t d = 0; d < form_->lanes.size(); ++d)
      if (!form_->in_row(d)) order_.push_back(static_cast<int64_t>(d));
    std::stable_sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) { return stride(a) > stride(b); });
    outer_ = order_.size();
    order_.append(form_->row.begin(), form_->row.end());
    lanes_ = ordered(form_->lanes, order_);
    for (int64_t length = form_->length() / kLongestWithoutBlocks; length > 0; length /= Region::kBlock)
      ++region_.levels;
  }

  // What is read elsewhere is numbered in the order of dimensions.
  void settle_rows_of(const Call& call, const Elsewhere& elsewhere) {
    lanes_ = pointwise_.lanes(call);
    for (size_t d = 0; d < lanes_.size(); ++d) order_.push_back(static_cast<int64_t>(d));
    outer_ = elsewhere.outer;
  }

  void add(const Call& call) {
    const auto element = [&](size_t k) {
      const auto it = made_.find(call.operands[k]);
      return it == made_.end() ? outside(call, k) : it->second;
    };
    if (rows_.sum(call.results[0]) || rows_.only_views(call)) {
      made_.emplace(call.results[0], element(0));
      return;
    }
    if (const Elsewhere* elsewhere = rows_.elsewhere_of(call)) {
      made_.emplace(call.results[0], read_elsewhere(call, *elsewhere, element));
      return;
    }
    const std::vector<Id> ids = form_ && fold_rule(*call.op) ? rows_.elements_over_rows(region_, *form_, call, element)
                                                             : pointwise_.elements_of(region_.graph, call, element);
    for (size_t k = 0; k < ids.size(); ++k) made_.emplace(call.results[k], ids[k]);
  }

  Id read_elsewhere(const Call& call, const Elsewhere& how, const std::function<Id(size_t)>& element) {
    const auto input = [&](Reading reading, Type type) {
      region_.inputs.push_back({type, reading.repeated});
      readings_.push_back(std::move(reading));
      return region_.inputs.size() - 1;
    };
    std::map<size_t, uint64_t> tables;  // one for each operand, however many pieces are of it
    const auto table = [&](size_t k) {
      const Type type = *type_of(pointwise_.value(call.operands[k]).dtype);
      const auto [known, is_new] = tables.try_emplace(k);
      if (is_new)
        known->second = input({operand(call.operands[k]), {}, true, false, how.strides[k], {}, how.reach(k)}, type);
      return std::pair(type, known->second);
    };
    const auto list = [&] {
      return region_.graph.input(Type::i32,
                                 input({Reading::kOwn, {}, false, false, std::nullopt, how.list}, Type::i32));
    };
    const auto place = [&] {
      if (region_.of_row.empty()) region_.of_row.push_back({OfRow::place, kNone});
      return region_.graph.input(Type::i32, OfRow::kFirst);
    };
    if (how.look_up && how.look_up->finds_rows && region_.walked > 0)
      if (const auto number = index_of_rows(call, how)) {
        const auto [type, row] = table(0);
        const Elsewhere::LookedUp& rows = *how.look_up;
        region_.inputs[row] = {type, false, Region::RowAt{*number, rows.n, rows.stride, rows.how.from_the_end}};
        return region_.graph.input(type, row);
      }
    const auto index = [&] { return element(how.look_up->how.index); };
    return ReadElsewhere(region_.graph, how, {table, list, place, index})
        .element(*type_of(pointwise_.value(call.results[0]).dtype));
  }

  // The input that has the number of a row; none where it is computed here.
  std::optional<uint64_t> index_of_rows(const Call& call, const Elsewhere& how) {
    const size_t k = how.look_up->how.index;
    if (made_.count(call.operands[k])) return std::nullopt;
    const Node& element = region_.graph[outside(call, k)];
    return element.op == Op::input && region_.is_repeated(element) ? std::optional(element.bits) : std::nullopt;
  }

  // The element of a value from outside.
  Id outside(const Call& call, size_t k) {
    const ValueId id = call.operands[k];
    const Value& v = pointwise_.value(id);
    const Type type = *type_of(v.dtype);
    if (const auto number = same_everywhere(v))
      return number->isFloatingPoint() ? region_.graph.constant(type, number->toDouble())
                                       : region_.graph.constant(type, number->toLong());
    const Places at = places(call, k);
    // Where a row has one lane, sizes do not say whether the value is read for each lane or once for the row.
    const Row row = rows_.is_of_row(call) ? Row::repeated : row_of(v.sizes, at);
    const std::tuple key(id, at, row);
    for (const auto& [known, element] : read_)
      if (known == key) return element;
    readings_.push_back({operand(id), at, row == Row::repeated, row == Row::mixed});
    const Id element = region_.graph.input(type, region_.inputs.size());
    region_.inputs.push_back({type, row == Row::repeated});
    read_.emplace_back(key, element);
    return element;
  }

  // A value's number among the kernel's operands.
  size_t operand(ValueId id) {
    const auto number = static_cast<size_t>(std::find(operands_.begin(), operands_.end(), id) - operands_.begin());
    if (number == operands_.size()) operands_.push_back(id);
    return number;
  }

  Written give(ValueId id) {
    const Value& v = pointwise_.value(id);
    const Rows::Sum* sum = rows_.sum(id);
    region_.outputs.push_back(made_.at(id));
    const Rows::OfRow* of_row = form_ ? rows_.of_row(id) : nullptr;
    region_.added.push_back(sum != nullptr);
    if (form_) region_.once.push_back(of_row != nullptr);
    const Places places = sum ? ordered(sum->places, order_) : of_row ? ordered(of_row->places, order_) : order_;
    // What has no place among the lanes has one element.
    Places order;
    for (size_t d = 0; d < v.sizes.size(); ++d)
      if (std::find(places.begin(), places.end(), static_cast<int64_t>(d)) == places.end())
        order.push_back(static_cast<int64_t>(d));
    std::copy_if(places.begin(), places.end(), std::back_inserter(order), [](int64_t d) { return d >= 0; });
    return {v.sizes,
            strides_in_order(v.sizes, order),
            strides_in_order(v.sizes, *order_in_memory(v)),
            v.dtype,
            places,
            sum != nullptr};
  }

  // Where the lanes are in an operand.
  Places places(const Call& call, size_t k) const {
    return rows_.sum(call.results[0]) ? order_ : ordered(rows_.lane_places(call, k), order_);
  }

  // How an operand goes along with the lanes of a row.
  enum class Row : uint8_t { whole, repeated, mixed };
  Row row_of(const Sizes& sizes, const Places& places) const {
    bool varies = false, repeats = false;
    for (size_t d = outer_; d < lanes_.size(); ++d) {
      if (lanes_[d] == 1) continue;
      const bool has = places[d] >= 0 && along(sizes, places[d]) != 1;
      (has ? varies : repeats) = true;
    }
    return varies && repeats ? Row::mixed : repeats ? Row::repeated : Row::whole;
  }

  // As few dimensions of rows as will do for rows over which nothing is summed, which are not short, and for which as
  // little as can be is written out.
  size_t outer_dimensions(const std::vector<size_t>& calls, const std::vector<ValueId>& results) {
    size_t for_sums = 0;
    for (const ValueId id : results)
      if (const Rows::Sum* sum = rows_.sum(id)) {
        const Places places = ordered(sum->places, order_);
        for (size_t d = 0; d < lanes_.size(); ++d)
          if (places[d] < 0 && lanes_[d] != 1) for_sums = std::max(for_sums, d + 1);
      }
    std::unordered_set<ValueId> made;
    std::vector<std::pair<const Sizes*, Places>> read;
    for (const size_t n : calls) {
      const Call& call = graph_.calls[n];
      for (size_t k = 0; k < call.operands.size(); ++k)
        if (!made.count(call.operands[k]))
          read.emplace_back(&pointwise_.value(call.operands[k]).sizes, places(call, k));
      made.insert(call.results.begin(), call.results.end());
    }
    std::pair<int64_t, size_t> best(std::numeric_limits<int64_t>::max(), for_sums);
    const auto is_long = [&] { return row_length() >= thresholds().shortest_row || is_walked(row_length()); };
    for (outer_ = for_sums; outer_ == for_sums || is_long(); ++outer_) {
      int64_t written_out = 0;
      for (const auto& [sizes, at] : read)
        if (row_of(*sizes, at) == Row::mixed) written_out += elements_written_out(*sizes, at);
      best = std::min(best, {written_out, outer_});
      if (outer_ == lanes_.size()) break;
    }
    return best.second;
  }

  int64_t row_length() const {
    int64_t row = 1;
    for (size_t d = outer_; d < lanes_.size(); ++d) row *= lanes_[d];
    return row;
  }

  // Of an operand that is mixed: all lanes of a row, for each of those rows that differ.
  int64_t elements_written_out(const Sizes& sizes, const Places& places) const {
    int64_t n = row_length();
    for (size_t d = 0; d < outer_; ++d)
      if (places[d] >= 0) n *= along(sizes, places[d]);
    return n;
  }

  const Rows& rows_;
  const Graph& graph_;
  const Pointwise pointwise_;
  const Rows::Form* form_ = nullptr;
  Places order_;
  Sizes lanes_;
  size_t outer_ = 0;
  Region region_;
  std::vector<Reading> readings_;
  std::vector<ValueId> operands_;
  std::unordered_map<ValueId, Id> made_;
  std::vector<std::pair<std::tuple<ValueId, Places, Row>, Id>> read_;
};

bool is_walked(int64_t lanes) { return lanes >= thresholds().shortest_walked_row && walks_rows_of(lanes); }

// ---- what can be in a region ----

Rows::Rows(const Graph& graph, const std::vector<Regions::Calls>& taken)
    : graph_(graph), pointwise_{graph}, leaves_(values_that_leave(graph)) {
  ById<ValueId, bool> read_lane_by_lane(graph.values.size());
  for (const Call& call : graph.calls) {
    std::optional<Space> space;
    int64_t cost = 1;
    auto of_row = computed_of_row(call);
    if (!of_row) of_row = viewed_of_row(call);
    if (of_row) {
      space = Space{of_row->form.lanes, false, of_row->form.row};
      forms_.emplace(call.results[0], of_row->form);
      for (const ValueId id : call.results) of_row_.emplace(id, *of_row);
    } else if (const size_t operations = pointwise_.operations(call)) {
      space = Space{pointwise_.lanes(call)};
      cost = std::max<int64_t>(1, static_cast<int64_t>(operations) / kOperationsOfCall);
      for (const ValueId id : call.operands) read_lane_by_lane[id] = true;
    } else if (auto sum = sum_of(call)) {
      space = Space{pointwise_.value(sum->terms).sizes, false, kNoRows};
      sums_.emplace(call.results[0], std::move(*sum));
    } else if (const auto form = form_of(call)) {
      space = Space{form->lanes, false, form->row};
      add_call_over_rows(call, *form);
      cost = thresholds().most_calls / thresholds().most_calls_over_rows;
    }
    joining_.spaces.push_back(std::move(space));
    joining_.costs.push_back(cost);
  }
  std::vector<bool> is_taken(graph.calls.size());
  for (const auto& calls : taken)
    for (const size_t n : calls) is_taken[n] = true;
  for (size_t n = 0; n < graph.calls.size(); ++n)
    if (!joining_.spaces[n] && !is_taken[n]) add_call_elsewhere(n, read_lane_by_lane);
  joining_.most = thresholds().most_calls;
  joining_.reads_inside = [this](const Call& call, size_t k) { return reads_inside(call, k); };
}

bool Rows::reads_inside(const Call& call, size_t k) const {
  const ValueId id = call.operands[k];
  const OfRow* made = of_row(id);
  const Elsewhere* elsewhere = elsewhere_of(call);
  if (elsewhere && elsewhere->is_table(k)) return false;
  if (!call.results.empty() && sum(call.results[0])) return !made;
  if (sum(id)) return false;
  const Form* form = this->form(call);
  const Sizes& lanes = form ? form->lanes : pointwise_.lanes(call);
  const Places at = lane_places(call, k);
  const Value& v = pointwise_.value(id);
  if (!made) return !is_of_row(call) && one_for_one(at, v.sizes, lanes);
  if (made->form.lanes != lanes || (form && *form != made->form)) return false;
  for (size_t d = 0; d < lanes.size(); ++d) {
    if (lanes[d] == 1 || at[d] == made->places[d]) continue;
    if (at[d] >= 0 && (made->places[d] >= 0 || along(v.sizes, at[d]) != 1)) return false;
    if (at[d] < 0 && made->places[d] >= 0) return false;
  }
  return true;
}

Places Rows::lane_places(const Call& call, size_t k) const {
  const auto dims = static_cast<int64_t>(pointwise_.value(call.operands[k]).sizes.size());
  if (const Elsewhere* elsewhere = elsewhere_of(call)) return elsewhere->look_up->places;
  const Form* form = this->form(call);
  if (!form) return pointwise_.places(call, k);
  if (fold_rule(*call.op)) return places_of(call, k, dims, static_cast<int64_t>(form->lanes.size()));
  if (only_views(call)) return of_row(call.operands[0])->places;
  const Places of_result = pointwise_.places(call, k);
  Places places;
  for (const int64_t d : of_row(call.results[0])->places) places.push_back(d < 0 ? -1 : along(of_result, d));
  return places;
}

// ---- rows ----

int64_t Rows::Form::length() const {
  int64_t n = 1;
  for (const int64_t d : row) n *= along(lanes, d);
  return n;
}

std::vector<Id> Rows::elements_over_rows(Region& region, const Form& form, const Call& call,
                                         const std::function<Id(size_t)>& element) const {
  std::vector<Id> operands;
  for (size_t k = 0; k < call.operands.size(); ++k) operands.push_back(element(k));
  std::vector<Type> results;
  for (const ValueId id : call.results) results.push_back(*type_of(pointwise_.value(id).dtype));
  RowCall made(region.graph, region.of_row, call.args, call.places, form.length(), std::move(operands),
               std::move(results));
  return fold_rule(*call.op)->elements(made);
}

// Of calls over rows that are long, or few, and whose elements lie next to each other, or are few.
std::optional<Rows::Form> Rows::form_of(const Call& call) const {
  const FoldRule* rule = fold_rule(*call.op);
  if (!rule || call.effect || call.opaque() || call.random() || call.operands.empty()) return std::nullopt;
  const auto fits = [&](ValueId id) {
    return id != kNoValue && pointwise_.fits(pointwise_.value(id)) && order_in_memory(pointwise_.value(id));
  };
  if (!std::all_of(call.results.begin(), call.results.end(), fits)) return std::nullopt;
  const Value& terms = pointwise_.value(call.operands[0]);
  Form form;
  const size_t of_example =
      terms.sizes.size() -
      static_cast<size_t>(std::count_if(call.vmaps.begin(), call.vmaps.end(),
                                        [](const Mapped& vmap) { return vmap.dims[0] != Mapped::kUnmapped; }));
  const size_t dims = call.vmaps.size() + of_example;
  const Places at = places_of(call, 0, static_cast<int64_t>(terms.sizes.size()), static_cast<int64_t>(dims));
  for (size_t d = 0; d < dims; ++d)
    form.lanes.push_back(at[d] < 0 ? call.vmaps[d].batch_size : along(terms.sizes, at[d]));
  for (const int64_t d : rule->dims(call.args, static_cast<int64_t>(of_example)))
    form.row.push_back(static_cast<int64_t>(call.vmaps.size()) + d);
  std::sort(form.row.begin(), form.row.end());
  const int64_t all = count(form.lanes), length = form.length();
  const Thresholds& limits = thresholds();
  if (all == 0 || (length < limits.shortest_of_many && !is_walked(length) && all > limits.few_rows * length) ||
      length > std::numeric_limits<int32_t>::max())
    return std::nullopt;
  // A row is one thread's.
  if (all / length < at::get_num_threads() && all > limits.most_for_one_thread) return std::nullopt;
  int64_t expected = 1;
  for (size_t k = form.row.size(); k-- > 0 && all > limits.few_elements;) {
    const auto d = static_cast<size_t>(form.row[k]);
    if (form.lanes[d] != 1 && (at[d] < 0 || along(terms.strides, at[d]) != expected)) return std::nullopt;
    expected *= form.lanes[d];
  }
  for (size_t k = 0; k < call.operands.size(); ++k) {
    const Value& v = pointwise_.value(call.operands[k]);
    const Places places = places_of(call, k, static_cast<int64_t>(v.sizes.size()), static_cast<int64_t>(dims));
    if (!pointwise_.fits(v) || places.size() != dims) return std::nullopt;
    for (size_t d = 0; d < dims; ++d)
      if (const int64_t p = places[d]; p >= 0 && along(v.sizes, p) != form.lanes[d]) return std::nullopt;
  }
  for (size_t k = 0; k < call.results.size(); ++k) {
    const Value& v = pointwise_.value(call.results[k]);
    if (rule->goes_on && k == 0 ? v.sizes != form.lanes : !result_of_row(form, v)) return std::nullopt;
  }
  // The rule may have something against the attributes.
  Region trial;
  const std::vector<Id> ids = elements_over_rows(trial, form, call, [&](size_t k) {
    return trial.graph.input(*type_of(pointwise_.value(call.operands[k]).dtype), k);
  });
  if (ids.size() != call.results.size()) return std::nullopt;
  return form;
}

// With the dimensions of the row kept, or without them.
std::optional<Rows::OfRow> Rows::result_of_row(const Form& form, const Value& result) const {
  const bool keeps = result.sizes.size() == form.lanes.size();
  OfRow of_row{form, {}, 0};
  int64_t next = 0;
  for (size_t d = 0; d < form.lanes.size(); ++d) {
    const bool gone = form.in_row(d);
    of_row.places.push_back(gone ? -1 : next);
    if (gone && !keeps) continue;
    if (next == static_cast<int64_t>(result.sizes.size()) || along(result.sizes, next) != (gone ? 1 : form.lanes[d]))
      return std::nullopt;
    ++next;
  }
  return next == static_cast<int64_t>(result.sizes.size()) ? std::optional(of_row) : std::nullopt;
}

void Rows::add_call_over_rows(const Call& call, const Form& form) {
  forms_.emplace(call.results[0], form);
  for (size_t k = fold_rule(*call.op)->goes_on; k < call.results.size(); ++k)
    of_row_.emplace(call.results[k], *result_of_row(form, pointwise_.value(call.results[k])));
}

// A pointwise call of what there is one element of for each row.
std::optional<Rows::OfRow> Rows::computed_of_row(const Call& call) const {
  for (size_t k = 0; k < call.operands.size(); ++k) {
    const OfRow* made = of_row(call.operands[k]);
    if (!made || !pointwise_.serves(call)) continue;
    const Places at = pointwise_.places(call, k);
    OfRow result{made->form, {}, made->depth + 1};
    const int64_t rows = count(made->form.lanes) / made->form.length();
    if (result.depth > thresholds().most_of_row && rows > thresholds().few_rows_for_any_depth) return std::nullopt;
    const Sizes& sizes = pointwise_.lanes(call);
    std::vector<bool> found(at.size());
    for (size_t lane = 0; lane < made->places.size(); ++lane) {
      const int64_t p = made->places[lane];
      const auto d = std::find(at.begin(), at.end(), p) - at.begin();
      result.places.push_back(p < 0 ? -1 : d);
      // One row that is spread over a dimension is not as many rows.
      const auto to = static_cast<size_t>(d);
      if (p >= 0 && to < at.size()) found[to] = sizes[to] == made->form.lanes[lane];
    }
    bool all = true;
    for (size_t d = 0; d < sizes.size(); ++d) all = all && (found[d] || sizes[d] == 1);
    if (all) return result;
  }
  return std::nullopt;
}

// The same with dimensions of one element, or without.
std::optional<Rows::OfRow> Rows::viewed_of_row(const Call& call) const {
  const OfRow* made = call.operands.size() == 1 ? of_row(call.operands[0]) : nullptr;
  if (!made || !gives_view(call) || call.results.size() != 1 || leaves_[call.results[0]] ||
      !std::all_of(call.vmaps.begin(), call.vmaps.end(), [](const Mapped& vmap) { return vmap.dims[0] == 0; }))
    return std::nullopt;
  if (call.op->moves != Moves::in_order) return std::nullopt;
  const Value &from = pointwise_.value(call.operands[0]), &to = pointwise_.value(call.results[0]);
  if (!result_of_row(made->form, from) || !order_in_memory(to)) return std::nullopt;
  return result_of_row(made->form, to);
}

const Rows::Form* Rows::form(const Call& call) const {
  const auto found = call.results.empty() ? forms_.end() : forms_.find(call.results[0]);
  return found == forms_.end() ? nullptr : &found->second;
}
const Rows::OfRow* Rows::of_row(ValueId id) const {
  const auto found = of_row_.find(id);
  return found == of_row_.end() ? nullptr : &found->second;
}

// Calls go together if their rows are the same dimensions. To follow many elements takes time: that is done only where
// what moves is read in a kernel.
void Rows::add_call_elsewhere(size_t n, const ById<ValueId, bool>& read_lane_by_lane) {
  const Call& call = graph_.calls[n];
  if (call.op->moves != Moves::no && call.results.size() == 1 && call.results[0] != kNoValue &&
      !read_lane_by_lane[call.results[0]] && count(pointwise_.lanes(call)) > thresholds().most_in_list)
    return;
  auto elsewhere = compiler::elsewhere(graph_, call);
  if (!elsewhere) return;
  joining_.spaces[n] =
      Space{pointwise_.lanes(call), false, Sizes{kRowsOfElsewhere, static_cast<int64_t>(elsewhere->outer)}};
  elsewhere_.emplace(call.results[0], std::move(*elsewhere));
}

const Elsewhere* Rows::elsewhere_of(const Call& call) const {
  const auto found = call.results.empty() ? elsewhere_.end() : elsewhere_.find(call.results[0]);
  return found == elsewhere_.end() ? nullptr : &found->second;
}

const Rows::Sum* Rows::sum(ValueId id) const {
  const auto found = sums_.find(id);
  return found == sums_.end() ? nullptr : &found->second;
}

std::optional<Rows::Sum> Rows::sum_of(const Call& call) const {
  const auto places = places_in_sum(graph_, call);
  if (!places) return std::nullopt;
  const Sum* before = sum(call.operands[0]);
  const Value& terms = before ? pointwise_.value(before->terms) : pointwise_.value(call.operands[0]);
  const auto order = order_in_memory(terms);
  if (!order || !order_in_memory(pointwise_.value(call.results[0])) || count(terms.sizes) == 0) return std::nullopt;
  Sum result{before ? before->terms : call.operands[0], *places};
  if (before) {
    result.places = before->places;
    for (int64_t& d : result.places)
      if (d >= 0) d = along(*places, d);
  }
  // Few are added, and rows between are long.
  int64_t added = 1, row = 1;
  for (size_t k = order->size(); k-- > 0;) {
    const auto d = static_cast<size_t>((*order)[k]);
    if (result.places[d] < 0) added *= terms.sizes[d];
    else if (added == 1) row *= terms.sizes[d];
  }
  if (added > thresholds().most_added || row < thresholds().shortest_row) return std::nullopt;
  return result;
}

// A sum of a sum is added up from the terms of the inner one only where that is in the same kernel.
bool Rows::serves(const std::vector<size_t>& calls) const {
  std::unordered_set<ValueId> made;
  bool has_form = false, has_rows = false;
  for (const size_t n : calls) {
    const Call& call = graph_.calls[n];
    if (!joining_.spaces[n]) return false;
    has_form = has_form || form(call);
    has_rows = has_rows || (form(call) && fold_rule(*call.op));
    if (sum(call.results[0]) && sum(call.operands[0]) && !made.count(call.operands[0])) return false;
    made.insert(call.results.begin(), call.results.end());
  }
  // Without a call over rows, what is computed once for each row would have rows for its lanes.
  return has_rows || !has_form;
}

std::optional<Call> Rows::write(const std::vector<size_t>& calls, const Readers& readers, Kernels& kernels,
                                std::vector<Fused>& report) const {
  return RowWriter(*this).write(calls, readers, kernels, report);
}

}  // namespace tower::compiler

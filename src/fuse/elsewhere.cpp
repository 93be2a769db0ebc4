// What moves where is found by running the operator on the numbers of one example's elements (fuse/small_moves.cpp),
// and looking at the numbers that come out. They are rows that are alike, if each operand's part of a row is that of
// the first row, further on by as much as the row's place says. Rows are as long as can be, of few pieces; then as
// short as will do.
#include "fuse/elsewhere.h"

#include <ATen/ops/empty.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <limits>

#include "fuse/rows.h"
#include "fuse/rows_by_index.h"
#include "fuse/small.h"
#include "numbers/thresholds.h"

namespace tower::compiler {
namespace {

constexpr int64_t kNowhere = -1;

bool has_table_type(const Value& v) {
  const auto type = type_of(v.dtype);
  return v.device.is_cpu() && type && !is_half(*type) && *type != Type::b1;
}

// A table is read row by row; a large one that lies otherwise would be copied.
bool serves_as_table(const Value& v) {
  const int64_t n = count(v.sizes);
  const auto order = order_in_memory(v);
  return has_table_type(v) && n <= std::numeric_limits<int32_t>::max() &&
         (n <= thresholds().few_elements || (order && std::is_sorted(order->begin(), order->end())));
}

bool is_long_enough(int64_t row, int64_t all) {
  return row >= thresholds().shortest_row_elsewhere || all <= thresholds().few_elements;
}

// ---- what moves ----

// The numbers of the elements that an example of the result is made of, and the rows that they come in.
class Moved {
 public:
  Moved(Sizes sizes, std::vector<int64_t> from, std::vector<int64_t> first)
      : sizes_(std::move(sizes)), from_(std::move(from)), first_(std::move(first)) {}

  // Rows of the dimensions from `outer` on: how far apart they begin in each operand; none if they are not alike.
  std::optional<std::vector<Sizes>> rows(size_t outer) const {
    const int64_t length = this->length(outer), rows = count(sizes_) / length;
    const std::vector<Range> ranges = ranges_of_first_row(length);
    std::vector<Sizes> strides(operands(), Sizes(outer, 0));
    int64_t step = rows;
    for (size_t d = 0; d < outer; ++d) {
      step /= sizes_[d];
      if (sizes_[d] == 1) continue;
      for (size_t k = 0; k < operands(); ++k)
        if (ranges[k].lane != kNowhere) strides[k][d] = from_[at(step * length + ranges[k].lane)] - ranges[k].number;
    }
    for (int64_t row = 0; row < rows; ++row)
      if (!is_like_first(row, length, ranges, strides, outer)) return std::nullopt;
    return strides;
  }

  // Of the first row; none if there are many.
  std::optional<std::vector<Elsewhere::Piece>> pieces(size_t outer) const {
    const int64_t length = this->length(outer);
    std::vector<Elsewhere::Piece> pieces;
    for (int64_t lane = 0; lane < length;) {
      const int64_t begin = lane++, number = from_[at(begin)];
      if (number < 0) continue;
      const size_t k = operand_of(number);
      int64_t step = 0;
      for (; lane < length && from_[at(lane)] >= 0 && operand_of(from_[at(lane)]) == k; ++lane) {
        const int64_t next = from_[at(lane)] - from_[at(lane - 1)];
        if (step == 0 ? next != 1 && next != -1 : next != step) break;
        step = next;
      }
      pieces.push_back({k, begin, lane, number - first_[k], step < 0});
      if (std::ssize(pieces) > thresholds().most_pieces) return std::nullopt;
    }
    return pieces;
  }

  int64_t length(size_t outer) const {
    int64_t n = 1;
    for (size_t d = outer; d < sizes_.size(); ++d) n *= sizes_[d];
    return n;
  }
  const std::vector<int64_t>& numbers() const { return from_; }

 private:
  // What a row has of an operand: one lane of it, and which numbers.
  struct Range {
    int64_t lane = kNowhere, number = 0;
    int64_t least = std::numeric_limits<int64_t>::max(), greatest = kNowhere;
  };
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
  size_t operands() const { return first_.size() - 1; }
  size_t operand_of(int64_t number) const {
    return static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), number) - first_.begin()) - 1;
  }

  std::vector<Range> ranges_of_first_row(int64_t length) const {
    std::vector<Range> ranges(operands());
    for (int64_t lane = 0; lane < length; ++lane) {
      const int64_t number = from_[at(lane)];
      if (number < 0) continue;
      Range& r = ranges[operand_of(number)];
      if (r.lane == kNowhere) r.lane = lane, r.number = number;
      r.least = std::min(r.least, number);
      r.greatest = std::max(r.greatest, number);
    }
    return ranges;
  }

  bool is_like_first(int64_t row, int64_t length, const std::vector<Range>& ranges, const std::vector<Sizes>& strides,
                     size_t outer) const {
    std::vector<int64_t> further(operands());
    int64_t left = row;
    for (size_t d = outer; d-- > 0; left /= sizes_[d])
      for (size_t k = 0; k < operands(); ++k) further[k] += left % sizes_[d] * strides[k][d];
    for (size_t k = 0; k < operands(); ++k)
      if (ranges[k].lane != kNowhere &&
          (ranges[k].least + further[k] < first_[k] || ranges[k].greatest + further[k] >= first_[k + 1]))
        return false;
    const int64_t* here = from_.data() + row * length;
    for (int64_t lane = 0; lane < length; ++lane) {
      const int64_t number = from_[at(lane)];
      if (here[lane] != (number < 0 ? kNowhere : number + further[operands() == 1 ? 0 : operand_of(number)]))
        return false;
    }
    return true;
  }

  const Sizes sizes_;
  const std::vector<int64_t> from_;
  const std::vector<int64_t> first_;  // by operand: of its elements; and behind the last
};

// Where the examples are in front of an operand, so that each lies there row by row: how far apart they are, by vmaps.
std::optional<Sizes> strides_of_examples(const Graph& graph, const Call& call, size_t k) {
  const Sizes& sizes = graph.values[call.operands[k]].sizes;
  const Seen s = seen(call, k, sizes.size(), kNoAxis);
  const size_t mapped = sizes.size() - s.of_example.size();
  for (size_t d = 0; d < s.of_example.size(); ++d)
    if (s.of_example[d] != static_cast<int64_t>(mapped + d)) return std::nullopt;
  const at::DimVector of_all = c10::contiguous_strides(sizes);
  Sizes strides;
  for (const int64_t d : s.of_vmaps) strides.push_back(d < 0 ? 0 : along(of_all, d));
  return strides;
}

std::optional<Elsewhere> moved_elsewhere(const Graph& graph, const Call& call) {
  const Thresholds& limits = thresholds();
  const Value& result = graph.values[call.results[0]];
  const size_t vmaps = call.vmaps.size();
  std::vector<Small> examples;
  std::vector<Sizes> strides;
  std::vector<int64_t> first{0};
  for (size_t k = 0; k < call.operands.size(); ++k) {
    const Value& v = graph.values[call.operands[k]];
    const auto apart = strides_of_examples(graph, call, k);
    if (!serves_as_table(v) || !apart) return std::nullopt;
    const int64_t mapped = std::count_if(call.vmaps.begin(), call.vmaps.end(),
                                         [&](const Mapped& vmap) { return vmap.dims[k] != Mapped::kUnmapped; });
    examples.push_back({Sizes(v.sizes.begin() + mapped, v.sizes.end()), {}, v.dtype, v.number});
    first.push_back(first.back() + count(examples.back().sizes));
    strides.push_back(*apart);
  }
  const Sizes sizes(result.sizes.begin() + static_cast<int64_t>(vmaps), result.sizes.end());
  if (first.back() > limits.most_followed || count(sizes) > limits.most_followed) return std::nullopt;

  Expressions none;
  std::vector<const Small*> operands;
  for (const Small& t : examples) operands.push_back(&t);
  const std::vector<at::ScalarType> dtypes{result.dtype};
  const Origins from = origins({none, *call.op, call.args, call.places, operands, dtypes, false});
  if (from.results.size() != 1 || from.results[0].sizes() != sizes) return std::nullopt;
  const at::Tensor numbers = (from.results[0].to(at::kLong) - from.first).contiguous();
  const auto* begin = numbers.const_data_ptr<int64_t>();
  std::vector<int64_t> of_elements(begin, begin + numbers.numel());
  for (int64_t& number : of_elements) number = std::max(number, kNowhere);
  const Moved moved(sizes, std::move(of_elements), first);

  const int64_t all = count(result.sizes);
  Elsewhere made;
  made.filled = from.filled;
  const auto with_rows = [&](size_t outer, const std::vector<Sizes>& apart) {
    made.outer = vmaps + outer;
    made.length = moved.length(outer);
    for (size_t k = 0; k < strides.size(); ++k) strides[k].append(apart[k].begin(), apart[k].end());
    made.strides = std::move(strides);
  };
  for (size_t outer = 0; outer <= sizes.size() && is_long_enough(moved.length(outer), all); ++outer) {
    auto pieces = moved.pieces(outer);
    const auto apart = pieces ? moved.rows(outer) : std::nullopt;
    if (!apart) continue;
    with_rows(outer, *apart);
    made.pieces = std::move(*pieces);
    return made;
  }
  for (size_t outer = sizes.size() + 1; all <= limits.most_in_list && outer-- > 0;) {
    const int64_t length = moved.length(outer);
    const auto apart = is_long_enough(length, all) ? moved.rows(outer) : std::nullopt;
    if (!apart) continue;
    with_rows(outer, *apart);
    made.list = at::empty({length}, at::kInt);
    std::copy_n(moved.numbers().begin(), length, made.list.mutable_data_ptr<int32_t>());
    made.first_of_list = first;
    return made;
  }
  return std::nullopt;
}

// ---- what is looked up ----

std::optional<Elsewhere> looked_up_elsewhere(const Graph& graph, const Call& call) {
  const auto found = look_up_in_memory(graph, call);
  if (!found) return std::nullopt;
  const LookUp& how = found->how;
  const Value &table = graph.values[call.operands[0]], &index = graph.values[call.operands[how.index]],
              &result = graph.values[call.results[0]];
  if (!serves_as_table(table) || count(table.sizes) == 0 || (index.dtype != at::kLong && index.dtype != at::kInt) ||
      !index.device.is_cpu())
    return std::nullopt;

  const Places &in_table = found->in_table, &in_index = found->in_index;
  const Sizes& lanes = result.sizes;
  if (in_table.size() != lanes.size() || in_index.size() != lanes.size()) return std::nullopt;
  const at::DimVector of_table = c10::contiguous_strides(table.sizes);
  const auto stride = [&](size_t d) { return in_table[d] < 0 || lanes[d] == 1 ? 0 : along(of_table, in_table[d]); };
  Elsewhere::LookedUp look_up{how, count(table.sizes), 1, 0, in_index};
  if (found->along != LookUp::kAll) {
    look_up.n = along(table.sizes, found->along);
    look_up.stride = along(of_table, found->along);
  } else if (std::any_of(in_table.begin(), in_table.end(), [](int64_t d) { return d >= 0; })) {
    return std::nullopt;  // each example has a table of its own: its elements are not numbered by all of it
  }

  // As long as can be: all of a row by the index alone, or by its place alone; else the last dimension.
  size_t by_index = lanes.size(), by_place = lanes.size();
  while (by_index > 0 && stride(by_index - 1) == 0) --by_index;
  for (int64_t expected = 1; by_place > 0; --by_place) {
    const size_t d = by_place - 1;
    if (lanes[d] != 1 && (in_index[d] >= 0 || stride(d) != expected)) break;
    expected *= lanes[d];
  }
  const size_t last = lanes.empty() ? 0 : lanes.size() - 1;
  Elsewhere made;
  made.outer = std::min({by_index, by_place, last});
  for (size_t d = made.outer; d < lanes.size(); ++d) made.length *= lanes[d];
  if (made.outer != by_index && made.outer < lanes.size())
    look_up.along_row = made.outer == by_place ? 1 : stride(last);
  look_up.finds_rows = made.outer == by_place && look_up.along_row == 1;
  if ((!is_long_enough(made.length, count(lanes)) && !(look_up.finds_rows && is_walked(made.length))) ||
      made.length > std::numeric_limits<int32_t>::max())
    return std::nullopt;
  made.strides.resize(call.operands.size());
  for (size_t d = 0; d < made.outer; ++d) made.strides[0].push_back(stride(d));
  made.look_up = std::move(look_up);
  return made;
}

}  // namespace

std::optional<Elsewhere> elsewhere(const Graph& graph, const Call& call) {
  if (call.effect || call.opaque() || call.random() || gives_view(call) || call.operands.empty() ||
      call.results.size() != 1 || call.results[0] == kNoValue || std::ssize(call.operands) > thresholds().most_pieces)
    return std::nullopt;
  const Value& result = graph.values[call.results[0]];
  if (!serves_as_table(result) || count(result.sizes) == 0 || !order_in_memory(result)) return std::nullopt;
  if (look_up_rule(*call.op)) return looked_up_elsewhere(graph, call);
  return call.op->moves == Moves::no ? std::nullopt : moved_elsewhere(graph, call);
}

std::optional<int64_t> part_of_operand(const Graph& graph, const Call& call) {
  if (call.effect || call.op->moves == Moves::no || !call.vmaps.empty() || call.operands.size() != 1 ||
      call.results.size() != 1 || call.results[0] == kNoValue || count(graph.values[call.results[0]].sizes) == 0)
    return std::nullopt;
  const auto moved = moved_elsewhere(graph, call);
  if (!moved || moved->outer != 0 || moved->pieces.size() != 1) return std::nullopt;
  const Elsewhere::Piece& all = moved->pieces[0];
  if (all.backwards || all.begin != 0 || all.end != moved->length) return std::nullopt;
  return all.from;
}

std::optional<Reach> Elsewhere::reach(size_t operand) const {
  if (look_up || list.defined()) return std::nullopt;
  std::optional<Reach> all;
  for (const Piece& piece : pieces) {
    if (piece.operand != operand) continue;
    if (piece.backwards && piece.end - piece.begin > 1) return std::nullopt;
    const int64_t further = piece.from - piece.begin;
    all = all ? Reach{std::min(all->first, further), std::max(all->last, further)} : Reach{further, further};
  }
  return all;
}

// ---- in a kernel ----

E ReadElsewhere::read(size_t operand, E place, E holds) const {
  const auto [type, number] = inputs_.table(operand);
  return {graph_, graph_.looked_up(type, number, place.id(), holds.id())};
}

Id ReadElsewhere::element(Type type) const {
  if (how_.look_up) return by_index(type);
  return (how_.list.defined() ? by_list(type) : piece_by_piece(type)).id();
}

E ReadElsewhere::piece_by_piece(Type type) const {
  E result = detail::number(graph_, type, how_.filled);
  if (how_.pieces.empty()) return result;
  const E lane{graph_, inputs_.place()};
  for (const auto& [operand, begin, end, from, backwards] : how_.pieces) {
    const E holds = (lane >= begin) & (lane < end);
    const E place = backwards ? from + begin - lane : lane + (from - begin);
    result = where(holds, read(operand, place, holds).to(type), result);
  }
  return result;
}

E ReadElsewhere::by_list(Type type) const {
  E result = detail::number(graph_, type, how_.filled);
  const E number{graph_, inputs_.list()};
  for (size_t k = 0; k + 1 < how_.first_of_list.size(); ++k) {
    const int64_t first = how_.first_of_list[k];
    const E holds = (number >= first) & (number < how_.first_of_list[k + 1]);
    result = where(holds, read(k, number - first, holds).to(type), result);
  }
  return result;
}

Id ReadElsewhere::by_index(Type type) const {
  const auto& [how, n, stride, along_row, places, finds_rows] = *how_.look_up;
  const E given = E(graph_, inputs_.index()).to(Type::i64);
  const E index = how.from_the_end ? where(given < 0, given + n, given) : given;
  const E fails = (index < 0) | (index >= n);
  E place = index * stride, holds = !fails;
  if (along_row != 0) {
    const E lane{graph_, inputs_.place()};
    place = place + lane.to(Type::i64) * along_row;
    holds = holds & (lane < how_.length);
  }
  const E element = read(0, place, holds).to(type);
  return graph_.checked(fails.id(), {element.id()}, Failure::out_of_range)[0];
}

}  // namespace tower::compiler

// A loop over rows: those dimensions in which the index does not vary and that lie behind all others are a row, the
// others are walked from the outermost on, and neighbours that follow each other as one. The innermost of these is a
// run of rows, a loop of its own: by vectors of 32 bytes where the CPU has them, and of a fixed length where rows are
// points in space. Rows that are added to one and the same come in the order of the index, as LibTorch adds them.
#include "fuse/rows_by_index.h"

#include <algorithm>
#include <array>

#include "kernels/kernel.h"
#include "kernels/threads.h"

namespace tower::compiler {

namespace {

constexpr int64_t kGrain = 32768;  // elements that are worth a thread, as LibTorch has it

// A dimension of the lanes: how far apart its elements are in each tensor.
struct Axis {
  int64_t size, table, index, lanes;
};

bool rows_follow(const Axis& outer, const Axis& inner) {
  return outer.table == inner.table * inner.size && outer.index == inner.index * inner.size &&
         outer.lanes == inner.lanes * inner.size;
}

struct RowLoop {
  c10::SmallVector<Axis, 6> outer;
  Axis row{1, 0, 0, 0};

  explicit RowLoop(const c10::SmallVector<Axis, 6>& axes) {
    for (const Axis& axis : axes)
      if (axis.size != 1) outer.push_back(axis);
    std::stable_sort(outer.begin(), outer.end(), [](const Axis& a, const Axis& b) { return a.lanes > b.lanes; });
    size_t kept = 0;
    for (size_t d = 0; d < outer.size(); ++d) {
      const Axis axis = outer[d];
      if (kept > 0 && rows_follow(outer[kept - 1], axis))
        outer[kept - 1] = {outer[kept - 1].size * axis.size, axis.table, axis.index, axis.lanes};
      else outer[kept++] = axis;
    }
    outer.resize(kept);
    if (!outer.empty() && outer.back().index == 0) row = outer.pop_back_val();
  }

  /// Of one place along the outermost dimension.
  int64_t lanes_of_first() const {
    int64_t n = row.size;
    for (size_t d = 1; d < outer.size(); ++d) n *= outer[d].size;
    return n;
  }

  /// Calls visit(element of the table, of the index, of the lanes, a run of rows) where a run begins, for these of the
  /// outermost axis.
  template <class Visit>
  void each(int64_t begin, int64_t end, Visit&& visit) const {
    if (outer.empty()) return visit(0, 0, 0, Axis{1, 0, 0, 0});
    each(0, begin, end, begin * outer[0].table, begin * outer[0].index, begin * outer[0].lanes, visit);
  }

 private:
  template <class Visit>
  void each(size_t depth, int64_t begin, int64_t end, int64_t table, int64_t index, int64_t lanes, Visit& visit) const {
    const Axis& axis = outer[depth];
    if (depth + 1 == outer.size())
      return visit(table, index, lanes, Axis{end - begin, axis.table, axis.index, axis.lanes});
    for (int64_t i = begin; i < end; ++i, table += axis.table, index += axis.index, lanes += axis.lanes)
      each(depth + 1, 0, outer[depth + 1].size, table, index, lanes, visit);
  }
};

int64_t stride_at(const InMemory& t, int64_t dim) {
  return dim < 0 || along(t.sizes, dim) == 1 ? 0 : along(t.strides, dim);
}

// Calls use(the index' first element).
template <class Use>
void with_index(const InMemory& index, Use&& use) {
  if (index.dtype == at::kLong) use(static_cast<const int64_t*>(index.data));
  else use(static_cast<const int32_t*>(index.data));
}

// Where what the index points to begins in the table.
struct Target {
  int64_t n, stride;
  bool from_the_end;

  int64_t operator()(int64_t i) const {
    if (from_the_end && i < 0) i += n;
    if (i < 0 || i >= n) raise_faults(kOutOfRange);
    return i * stride;
  }
};

// Loops of a fixed length are instructions, not calls.
template <class T>
[[gnu::always_inline]] inline void copy_row(T* to, int64_t to_step, const T* from, int64_t from_step, int64_t n) {
  constexpr int64_t kAtOnce = 64 / sizeof(T);
  if (to_step == 1 && from_step == 1)
    for (; n >= kAtOnce; n -= kAtOnce, to += kAtOnce, from += kAtOnce) __builtin_memcpy(to, from, 64);
  for (int64_t j = 0; j < n; ++j) to[j * to_step] = from[j * from_step];
}

template <class T>
[[gnu::always_inline]] inline void add_row(T* to, int64_t to_step, const T* from, int64_t from_step, int64_t n) {
  constexpr int64_t kAtOnce = 32 / sizeof(T);
  using Terms __attribute__((vector_size(32))) = T;
  if (to_step == 1 && from_step == 1)
    for (; n >= kAtOnce; n -= kAtOnce, to += kAtOnce, from += kAtOnce) {
      Terms sum, more;
      __builtin_memcpy(&sum, to, sizeof sum);
      __builtin_memcpy(&more, from, sizeof more);
      sum += more;
      __builtin_memcpy(to, &sum, sizeof sum);
    }
  for (int64_t j = 0; j < n; ++j) to[j * to_step] += from[j * from_step];
}

enum class Does { copy, add };

// N: elements of a row, which follow each other; 0: as many as `row` says.
template <Does kDoes, int N, class T, class I>
[[gnu::always_inline]] inline void run_rows(T* table, const I* index, T* lanes, const Axis& run, const Axis& row,
                                            Target target) {
  for (int64_t k = 0; k < run.size; ++k) {
    T* in_table = table + k * run.table + target(index[k * run.index]);
    T* in_lanes = lanes + k * run.lanes;
    const int64_t table_step = N ? 1 : row.table, lanes_step = N ? 1 : row.lanes, n = N ? N : row.size;
    if constexpr (kDoes == Does::add) add_row(in_table, table_step, in_lanes, lanes_step, n);
    else copy_row(in_lanes, lanes_step, in_table, table_step, n);
  }
}

template <Does kDoes, class T, class I>
[[gnu::always_inline]] inline void run_rows(T* table, const I* index, T* lanes, const Axis& run, const Axis& row,
                                            Target target) {
  constexpr int kOfSpace = 3;
  if (row.size == kOfSpace && row.table == 1 && row.lanes == 1)
    run_rows<kDoes, kOfSpace>(table, index, lanes, run, row, target);
  else run_rows<kDoes, 0>(table, index, lanes, run, row, target);
}

#if defined(__x86_64__) && defined(__GNUC__)
template <Does kDoes, class T, class I>
[[gnu::target("avx2")]] void run_rows_by_32(T* table, const I* index, T* lanes, const Axis& run, const Axis& row,
                                            Target target) {
  run_rows<kDoes>(table, index, lanes, run, row, target);
}
template <Does kDoes, class T, class I>
void run_rows_here(T* table, const I* index, T* lanes, const Axis& run, const Axis& row, Target target) {
  static const bool by_32 = __builtin_cpu_supports("avx2");
  if (by_32) run_rows_by_32<kDoes>(table, index, lanes, run, row, target);
  else run_rows<kDoes>(table, index, lanes, run, row, target);
}
#else
template <Does kDoes, class T, class I>
void run_rows_here(T* table, const I* index, T* lanes, const Axis& run, const Axis& row, Target target) {
  run_rows<kDoes>(table, index, lanes, run, row, target);
}
#endif

RowLoop loop_of(const RowsOfLanes& how, const InMemory& table, const InMemory& index, const InMemory& lanes) {
  c10::SmallVector<Axis, 6> axes;
  for (size_t d = 0; d < how.lanes.size(); ++d)
    axes.push_back({how.lanes[d], stride_at(table, how.in_table[d]), stride_at(index, how.in_index[d]),
                    stride_at(lanes, how.in_lanes[d])});
  return RowLoop(axes);
}

Target target_of(const RowsOfLanes& how, const InMemory& table) {
  return {along(table.sizes, how.along), along(table.strides, how.along), how.from_the_end};
}

// Rows begin at part(begin, end) of the outermost dimension.
template <class Part>
void share_rows(const RowLoop& loop, bool apart, Part&& part) {
  const int64_t all = loop.outer.empty() ? 1 : loop.outer[0].size;
  if (apart) share_among_threads(all, kGrain / std::max<int64_t>(loop.lanes_of_first(), 1), part);
  else part(0, all);
}

template <class T>
void look_up_rows(const RowsOfLanes& how, const InMemory& table, const InMemory& index, const InMemory& result) {
  const RowLoop loop = loop_of(how, table, index, result);
  const Target target = target_of(how, table);
  auto* from = static_cast<T*>(table.data);  // which is read
  auto* to = static_cast<T*>(result.data);
  with_index(index, [&](const auto* numbers) {
    share_rows(loop, true, [&](int64_t begin, int64_t end) {
      loop.each(begin, end, [&](int64_t t, int64_t i, int64_t l, const Axis& run) {
        run_rows_here<Does::copy>(from + t, numbers + i, to + l, run, loop.row, target);
      });
    });
  });
}

template <class T>
void start_rows(const RowsOfLanes& how, const InMemory& start, const InMemory& result) {
  c10::SmallVector<Axis, 6> axes;
  for (size_t d = 0; d < result.sizes.size(); ++d)
    axes.push_back({result.sizes[d], stride_at(start, how.in_start[d]), 0, result.strides[d]});
  const RowLoop loop(axes);
  const auto* from = static_cast<const T*>(start.data);
  auto* to = static_cast<T*>(result.data);
  share_rows(loop, true, [&](int64_t begin, int64_t end) {
    loop.each(begin, end, [&](int64_t t, int64_t, int64_t l, const Axis& run) {
      for (int64_t k = 0; k < run.size; ++k)
        copy_row(to + l + k * run.lanes, loop.row.lanes, from + t + k * run.table, loop.row.table, loop.row.size);
    });
  });
}

template <class T>
void add_rows(const RowsOfLanes& how, const InMemory& index, const InMemory& added, const InMemory& result) {
  const RowLoop loop = loop_of(how, result, index, added);
  const Target target = target_of(how, result);
  auto* from = static_cast<T*>(added.data);  // which is read
  auto* to = static_cast<T*>(result.data);
  // Threads add to different rows where the outermost dimension is one of the table's, too.
  const bool apart = !loop.outer.empty() && loop.outer[0].index == 0 && loop.outer[0].table != 0;
  with_index(index, [&](const auto* numbers) {
    share_rows(loop, apart, [&](int64_t begin, int64_t end) {
      loop.each(begin, end, [&](int64_t t, int64_t i, int64_t l, const Axis& run) {
        run_rows_here<Does::add>(to + t, numbers + i, from + l, run, loop.row, target);
      });
    });
  });
}

std::vector<Seen> operands_seen(const Graph& graph, const Call& call) {
  std::vector<Seen> all;
  for (size_t k = 0; k < call.operands.size(); ++k)
    all.push_back(seen(call, k, graph.values[call.operands[k]].sizes.size(), kNoAxis));
  return all;
}

std::optional<LookUp> asked(const LookUpRule& rule, const Call& call, const std::vector<Seen>& operands) {
  std::vector<int64_t> dims;
  for (const Seen& s : operands) dims.push_back(std::ssize(s.of_example));
  return call.places[0].arg == 0 ? rule({call.args, call.places, dims}) : std::nullopt;
}

// Where dimensions are in an operand, those of vmaps in front.
Places places_in(const Seen& s, const LookUp::Dims& of_example) {
  Places places(s.of_vmaps.begin(), s.of_vmaps.end());
  for (const int64_t d : of_example) places.push_back(d == LookUp::kNone ? -1 : along(s.of_example, d));
  return places;
}

Places all_places(size_t dims) {
  Places places;
  for (size_t d = 0; d < dims; ++d) places.push_back(static_cast<int64_t>(d));
  return places;
}

bool is_on_cpu(const Value& v) { return v.device.is_cpu(); }
bool serves_as_index(const Value& v) { return is_on_cpu(v) && (v.dtype == at::kLong || v.dtype == at::kInt); }

std::optional<RowsOfLanes> rows_looked_up(const Graph& graph, const Call& call) {
  const auto found = look_up_in_memory(graph, call);
  if (!found || found->along == LookUp::kAll) return std::nullopt;
  const Value &table = graph.values[call.operands[0]], &result = graph.values[call.results[0]];
  const size_t dims = result.sizes.size();
  if (table.dtype != result.dtype || !is_on_cpu(table) ||
      !serves_as_index(graph.values[call.operands[found->how.index]]) || found->in_table.size() != dims ||
      found->in_index.size() != dims)
    return std::nullopt;
  return RowsOfLanes{result.sizes, found->in_table,         found->in_index, all_places(dims),
                     found->along, found->how.from_the_end, found->how.index};
}

std::optional<RowsOfLanes> rows_added(const Graph& graph, const Call& call) {
  const std::vector<Seen> operands = operands_seen(graph, call);
  const auto how = asked(*adding_rule(*call.op), call, operands);
  if (!how || operands.size() != 3) return std::nullopt;
  const size_t added = 3 - how->index, vmaps = call.vmaps.size();
  const Value &start = graph.values[call.operands[0]], &terms = graph.values[call.operands[added]],
              &result = graph.values[call.results[0]];
  if ((result.dtype != at::kFloat && result.dtype != at::kDouble) || start.dtype != result.dtype ||
      terms.dtype != result.dtype || !is_on_cpu(start) || !is_on_cpu(terms) ||
      !serves_as_index(graph.values[call.operands[how->index]]))
    return std::nullopt;
  LookUp::Dims of_terms, of_start;
  for (size_t d = 0; d < operands[added].of_example.size(); ++d) of_terms.push_back(static_cast<int64_t>(d));
  for (size_t d = 0; d < operands[0].of_example.size(); ++d) of_start.push_back(static_cast<int64_t>(d));
  RowsOfLanes rows{{},
                   all_places(vmaps),
                   places_in(operands[how->index], how->of_index),
                   places_in(operands[added], of_terms),
                   static_cast<int64_t>(vmaps) + how->along,
                   how->from_the_end,
                   how->index,
                   added,
                   places_in(operands[0], of_start)};
  for (const int64_t d : how->of_table)
    rows.in_table.push_back(d == LookUp::kNone ? -1 : static_cast<int64_t>(vmaps) + d);
  for (size_t d = 0; d < rows.in_table.size(); ++d)
    rows.lanes.push_back(d < vmaps ? result.sizes[d] : along(terms.sizes, rows.in_lanes[d]));
  return rows;
}

// Whether the index is the same for neighbours in memory: of lanes that lie so.
bool has_rows(const RowsOfLanes& rows, const Sizes& sizes, const Places& order) {
  for (size_t k = order.size(); k-- > 0;) {
    const int64_t place = order[k];
    if (along(sizes, place) == 1) continue;
    for (size_t d = 0; d < rows.lanes.size(); ++d)
      if (rows.in_lanes[d] == place) return rows.in_index[d] < 0 || rows.lanes[d] == 1;
    return false;
  }
  return false;
}

}  // namespace

std::optional<LookUpInMemory> look_up_in_memory(const Graph& graph, const Call& call) {
  const std::vector<Seen> operands = operands_seen(graph, call);
  const auto how = asked(*look_up_rule(*call.op), call, operands);
  if (!how) return std::nullopt;
  return LookUpInMemory{*how, places_in(operands[0], how->of_table), places_in(operands[how->index], how->of_index),
                        how->along == LookUp::kAll ? LookUp::kAll : along(operands[0].of_example, how->along)};
}

void RowsByIndex::run_in(c10::ArrayRef<InMemory> operands, c10::ArrayRef<InMemory> results) const {
  const InMemory &first = operands[0], &index = operands[how_.index], &result = results[0];
  const auto add = [&]<class T>(T) {
    start_rows<T>(how_, first, result);
    add_rows<T>(how_, index, operands[how_.added], result);
  };
  if (how_.added != 0) return result.dtype == at::kFloat ? add(float()) : add(double());
  switch (result.element_size()) {
    case 1:
      return look_up_rows<uint8_t>(how_, first, index, result);
    case 2:
      return look_up_rows<uint16_t>(how_, first, index, result);
    case 4:
      return look_up_rows<uint32_t>(how_, first, index, result);
    case 8:
      return look_up_rows<uint64_t>(how_, first, index, result);
    default:
      return look_up_rows<std::array<uint64_t, 2>>(how_, first, index, result);
  }
}

std::optional<Call> rows_by_index(const Graph& graph, const Call& call) {
  if (call.effect || call.opaque() || call.random() || call.results.size() != 1 || call.results[0] == kNoValue)
    return std::nullopt;
  const bool looks_up = look_up_rule(*call.op);
  if (!looks_up && !adding_rule(*call.op)) return std::nullopt;
  const Value& result = graph.values[call.results[0]];
  const auto order = order_in_memory(result);
  if (!is_on_cpu(result) || !order || count(result.sizes) == 0) return std::nullopt;
  const auto rows = looks_up ? rows_looked_up(graph, call) : rows_added(graph, call);
  if (!rows || count(rows->lanes) == 0) return std::nullopt;
  const Value& lanes = looks_up ? result : graph.values[call.operands[rows->added]];
  const auto order_of_lanes = looks_up ? order : order_in_memory(lanes);
  if (!order_of_lanes || !has_rows(*rows, lanes.sizes, *order_of_lanes)) return std::nullopt;
  auto op = c10::make_intrusive<RowsByIndex>(
      *rows, MemoryKernel::Result{result.sizes, strides_in_order(result.sizes, *order), result.dtype});
  return KernelOperator::call_of(std::move(op), graph, call.operands, call.results, {call.op->name()});
}

}  // namespace tower::compiler

#include "fuse/short_sums.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/copy.h>

#include "kernels/threads.h"
#include "numbers/fold.h"
#include "numbers/thresholds.h"

namespace tower::compiler {
namespace {

// Vectors of terms are added up, and then their lanes: the error grows with fewer steps than there are terms.
template <class T>
[[gnu::always_inline]] inline T sum_of(const T* terms, int64_t n) {
  constexpr int64_t kAtOnce = 32 / sizeof(T);
  using Terms __attribute__((vector_size(32))) = T;
  T sum = 0;
  int64_t k = 0;
  if (n >= kAtOnce) {
    Terms all = {};
    for (; k + kAtOnce <= n; k += kAtOnce) {
      Terms more;
      __builtin_memcpy(&more, terms + k, sizeof more);
      all += more;
    }
    for (int64_t apart = kAtOnce / 2; apart > 0; apart /= 2)
      for (int64_t i = 0; i < apart; ++i) all[i] += all[i + apart];
    sum += all[0];
  }
  for (; k < n; ++k) sum += terms[k];
  return sum;
}

// N: terms of a row; 0: as many as `n` says.
template <int N, class T>
[[gnu::always_inline]] inline void sum_rows(const T* terms, T* sums, int64_t rows, int64_t n) {
  for (int64_t row = 0; row < rows; ++row) sums[row] = sum_of(terms + row * (N ? N : n), N ? N : n);
}
template <class T>
[[gnu::always_inline]] inline void sum_rows(const T* terms, T* sums, int64_t rows, int64_t n) {
  if (n == 2) sum_rows<2>(terms, sums, rows, n);
  else if (n == 3) sum_rows<3>(terms, sums, rows, n);
  else if (n == 4) sum_rows<4>(terms, sums, rows, n);
  else sum_rows<0>(terms, sums, rows, n);
}

#if defined(__x86_64__) && defined(__GNUC__)
template <class T>
[[gnu::target("avx2")]] void sum_rows_by_32(const T* terms, T* sums, int64_t rows, int64_t n) {
  sum_rows(terms, sums, rows, n);
}
template <class T>
void sum_rows_here(const T* terms, T* sums, int64_t rows, int64_t n) {
  static const bool by_32 = __builtin_cpu_supports("avx2");
  if (by_32) sum_rows_by_32(terms, sums, rows, n);
  else sum_rows(terms, sums, rows, n);
}
#else
template <class T>
void sum_rows_here(const T* terms, T* sums, int64_t rows, int64_t n) {
  sum_rows(terms, sums, rows, n);
}
#endif

bool lies_by(at::IntArrayRef sizes, at::IntArrayRef strides, at::IntArrayRef expected) {
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] != 1 && strides[d] != expected[d]) return false;
  return true;
}

// Terms of a row: what is summed over, where that lies behind all else.
std::optional<int64_t> length_of_row(const Sizes& sizes, const Places& order, const Places& places) {
  int64_t length = 1;
  bool in_row = true;
  for (size_t k = order.size(); k-- > 0;) {
    const int64_t d = order[k];
    if (along(sizes, d) == 1) continue;
    const bool summed = along(places, d) < 0;
    if (summed && !in_row) return std::nullopt;
    in_row = summed;
    if (summed) length *= along(sizes, d);
  }
  return length;
}

}  // namespace

std::optional<Places> places_in_sum(const Graph& graph, const Call& call) {
  if (call.operands.size() != 1 || call.results.size() != 1 || call.results[0] == kNoValue) return std::nullopt;
  const Value &from = graph.values[call.operands[0]], &to = graph.values[call.results[0]];
  if (!is_summed_in_itself(from.dtype) || from.dtype != to.dtype || !from.device.is_cpu() ||
      simple_fold(*call.op, call.args, *type_of(from.dtype)) != SimpleFold::sum)
    return std::nullopt;
  const Seen s = seen(call, 0, from.sizes.size(), kNoAxis);
  const auto dims = static_cast<int64_t>(s.of_example.size());
  if (dims == 0) return std::nullopt;
  const bool keep = to.sizes.size() == call.vmaps.size() + s.of_example.size();
  std::vector<bool> gone(s.of_example.size());
  for (const int64_t d : fold_rule(*call.op)->dims(call.args, dims)) along(gone, d) = true;
  Places places(from.sizes.size(), -1);
  int64_t next = 0;
  for (const int64_t d : s.of_vmaps) {
    if (d < 0) return std::nullopt;
    along(places, d) = next++;
  }
  for (size_t d = 0; d < gone.size(); ++d) {
    if (!gone[d]) along(places, s.of_example[d]) = next;
    if (!gone[d] || keep) ++next;
  }
  return places;
}

void ShortSums::run_in(c10::ArrayRef<InMemory> operands, c10::ArrayRef<InMemory> results) const {
  const InMemory& terms = operands[0];
  const void* from = terms.data;
  Tensor copy;
  if (!lies_by(terms.sizes, terms.strides, strides_)) {
    copy = at::detail::empty_strided_cpu(terms.sizes, strides_, terms.dtype);
    copy.copy_(terms.tensor());
    from = copy.const_data_ptr();
  }
  const auto sum = [&]<class T>(T) {
    share_among_threads(count(made()[0].sizes), thresholds().grain_of_kernel / length_,
                        [&](int64_t begin, int64_t end) {
                          sum_rows_here(static_cast<const T*>(from) + begin * length_,
                                        static_cast<T*>(results[0].data) + begin, end - begin, length_);
                        });
  };
  return terms.dtype == at::kFloat ? sum(float()) : sum(double());
}

std::optional<Call> sum_of_short_rows(const Graph& graph, const Call& call) {
  if (call.effect || call.opaque() || call.random()) return std::nullopt;
  const auto places = places_in_sum(graph, call);
  if (!places) return std::nullopt;
  const Value &terms = graph.values[call.operands[0]], &sum = graph.values[call.results[0]];
  const auto order = order_in_memory(terms), order_of_sum = order_in_memory(sum);
  if (!order || !order_of_sum || count(terms.sizes) == 0) return std::nullopt;
  const auto length = length_of_row(terms.sizes, *order, *places);
  if (!length || *length < 2 || *length >= thresholds().shortest_of_many) return std::nullopt;
  // Sums lie as their rows do.
  const Sizes made = strides_in_order(sum.sizes, *order_of_sum);
  int64_t apart = 1;
  for (size_t k = order->size(); k-- > 0;) {
    const int64_t d = along(*places, (*order)[k]);
    if (d < 0 || along(sum.sizes, d) == 1) continue;
    if (along(made, d) != apart) return std::nullopt;
    apart *= along(sum.sizes, d);
  }
  auto op = c10::make_intrusive<ShortSums>(strides_in_order(terms.sizes, *order), *length,
                                           MemoryKernel::Result{sum.sizes, made, sum.dtype});
  return KernelOperator::call_of(std::move(op), graph, call.operands, call.results, {call.op->name()});
}

}  // namespace tower::compiler

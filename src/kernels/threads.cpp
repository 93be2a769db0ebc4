#include "kernels/threads.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <exception>

// NOTE [LibTorch's threads]
// at::parallel_for is a template, whose loop over threads is the including file's: without -fopenmp it is no loop at
// all, and with another compiler's OpenMP it starts that one's threads, beside LibTorch's, and asks one library about
// the threads of the other. LibTorch's threads are those of GNU's library, and so this calls what GCC would have called
// (https://gcc.gnu.org/onlinedocs/libgomp/Implementing-PARALLEL-construct.html; LLVM's library has the function, too),
// and never asks which thread it is on.
#if AT_PARALLEL_OPENMP
extern "C" void GOMP_parallel(void (*run)(void*), void* data, unsigned threads, unsigned flags);
#endif

namespace tower::compiler {
namespace {

constexpr int64_t kPartsOfThread = 4;  // a thread that was held up leaves some to the others

struct Shared {
  int64_t count, parts;
  c10::function_ref<void(int64_t, int64_t)> part;
  std::atomic<int64_t> next{0};
  std::atomic<bool> threw{false};
  std::exception_ptr thrown{};

  void take_parts() noexcept {
    const c10::ParallelGuard guard(true);
    for (int64_t p = next++; p < parts; p = next++) try {
        part(count * p / parts, count * (p + 1) / parts);
      } catch (...) {
        if (!threw.exchange(true)) thrown = std::current_exception();
      }
  }
};

}  // namespace

void share_among_threads(int64_t count, int64_t grain, c10::function_ref<void(int64_t, int64_t)> part) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
#if AT_PARALLEL_OPENMP
  if (count <= grain || at::in_parallel_region()) return part(0, count);
  at::internal::lazy_init_num_threads();
  const int64_t threads = at::get_num_threads();
  if (threads == 1) return part(0, count);
  Shared shared{count, std::min(at::divup(count, grain), threads * kPartsOfThread), part};
  GOMP_parallel([](void* data) { static_cast<Shared*>(data)->take_parts(); }, &shared, 0, 0);
  if (shared.thrown) std::rethrow_exception(shared.thrown);
#else
  at::parallel_for(0, count, grain, part);
#endif
}

}  // namespace tower::compiler

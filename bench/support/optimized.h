// Loops by hand that are to be what a compiler makes of them at its best: GCC vectorizes them with -O3, Clang, which
// has no such attribute, with -O2 as well.
//
//   [[gnu::target("avx512f"), TOWER_BENCH_OPTIMIZED]] void by_hand(…);
#pragma once

#ifdef __clang__
#define TOWER_BENCH_OPTIMIZED
#else
#define TOWER_BENCH_OPTIMIZED gnu::optimize("O3")
#endif

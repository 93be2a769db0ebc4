// Numbers that decide between two ways to compute the same, by which of them is faster.
//
// They are those of one CPU, an AMD EPYC with AVX-512. `script/bench thresholds` (bench/thresholds.cpp) computes both
// ways at sizes around each of them and prints, beside the number that is here, where the ways cross on the CPU that it
// runs on: a row of its table has the name of the member. No result depends on them, but for the order in which floats
// are added up.
//
// Not here are
//
// - limits that keep a bound whatever the CPU: of error (kLongestWithoutBlocks and kBlock of rows), of what one loop
// may
//   hold (kMostOfLoop, kMostStacked, kMostNumbers), of what is never worth it (kOfLoop);
// - sizes that templates and stacks are laid out for, which nothing but a build can change: kTerms and kVectors of
//   products in tiles, kFewVectors and kBlockBytes of kernels;
// - numbers of rooms that have nothing to do with kernels, which are where they are used: of parts that are shown
//   rather than copied (kSmall in core/reuse.h), of a vjp in jvps (kCostOfVjp in sparse/groups.cpp), of calls that are
//   worth an operator of their own (kFewCalls in compile/compiled_graph.cpp).
#pragma once

#include <cstdint>

namespace tower::compiler {

struct Thresholds {
  // ---- rows of elements: fuse/rows.cpp ----

  /// Elements of a row, for which a kernel is started anew: with fewer, what is one number for each row is copied to
  /// all its elements first, and sums between whose terms lie such rows are LibTorch's.
  int64_t shortest_row = 32;
  /// Terms of a sum whose terms lie apart, which the kernel that makes them adds up in memory, one after the other;
  /// with more it is LibTorch's. A limit of error, too.
  int64_t most_added = 16;
  /// Elements of a row, in calls over many: with fewer, sums, norms, softmax and their like are LibTorch's.
  int64_t shortest_of_many = 64;
  /// Rows for each of a row's elements: no more than so many are not yet many.
  int64_t few_rows = 16;
  /// Elements of all rows, where these are fewer than threads: with more, they are LibTorch's, which shares out a row.
  int64_t most_for_one_thread = 65536;
  /// Elements of all rows, which are copied for a kernel where they lie otherwise; more are LibTorch's.
  int64_t few_elements = 256;
  /// Calls, one after the other, that a kernel computes of a row's one number, which takes it a vector for each; with
  /// more, they are a kernel of their own, whose lanes are rows.
  int64_t most_of_row = 8;
  /// Rows, for which a kernel computes any number of such calls.
  int64_t few_rows_for_any_depth = 64;

  // ---- elements that are read elsewhere: fuse/elsewhere.cpp ----

  /// Pieces of a row that moves, and operands of a call that moves: each costs every lane a load that may be empty.
  int64_t most_pieces = 8;
  /// Elements of what moves, which are followed one by one while a kernel is made; of more, the call is LibTorch's.
  int64_t most_followed = 1 << 22;
  /// Elements of a result that is more than a few pieces of a row: a list in memory has each one's place. Of more, the
  /// call is LibTorch's.
  int64_t most_in_list = 4096;
  /// Elements of a row, if there are many: a kernel begins anew for each, which takes it longer than LibTorch's copies.
  int64_t shortest_row_elsewhere = 128;
  /// The same of rows that an index points to, which a kernel walks: shorter ones are copied first.
  int64_t shortest_walked_row = 16;

  // ---- small tensors of many examples: fuse/unrolled.cpp, small_graph.h, recompute.cpp, sums_as_products.cpp ----

  /// Elements of a tensor of one example, which one lane of a kernel has; with more, elements are the lanes.
  int64_t most_of_lane = 128;
  /// Examples around those that are the lanes, such as directions of a derivative, each of which a lane computes; with
  /// more, elements are the lanes.
  int64_t most_directions = 32;
  /// Steps of a fori_loop or scan that are a loop in a kernel; fewer are written out.
  int64_t fewest_steps = 8;
  /// Steps of which a kernel is made before they are made one by one, while a function is traced.
  int64_t many_steps = 64;
  /// Examples over which the kernel that makes the terms of a sum adds them up; of fewer it is a call of its own.
  int64_t fewest_summed = 256;
  /// Operations of a call for one example, on the average of a kernel's calls; with more, elements are the lanes.
  int64_t most_of_call = 64;
  /// The same where there is one example: its elements may be lanes, and of the lanes of a vector it has one.
  int64_t most_of_one_lane = 32;
  /// Prices, in operations, by which what a kernel needs of another is computed again or read from memory: one
  /// element's way to memory or back …
  int64_t of_move = 6;
  /// … and a function of the vector library.
  int64_t of_function = 20;
  /// Elements of a product, for which its sum is a call for itself: a product of matrices. With fewer, both remain.
  int64_t fewest_terms = 4096;
  /// Terms of an example, which one lane of a kernel adds up; with more, they are a product of matrices.
  int64_t few_of_example = 128;
  /// Rows of a system that a kernel solves written out, number by number; larger ones are solved in memory.
  int64_t most_written_out = 11;

  // ---- what LLVM takes: fuse/rows.cpp, fuse/unrolled.cpp, kernels/emit.cpp ----
  //
  // Of these script/bench thresholds says nothing: the other side of each is a kernel that takes seconds to compile, or
  // minutes. tests/compile/compile_time_test.cpp holds that the time is in proportion.

  /// Calls of a region of rows …
  int64_t most_calls = 3000;
  /// … of which so many are over rows: each may be a pass over the row, which computes anew what it needs of those
  /// before. Of a chain of such calls in one kernel, the code grows with the square.
  int64_t most_calls_over_rows = 16;
  /// Operations of a region of examples.
  int64_t most_operations = 2500;
  /// Operations of a call for one example, where there is one and elements cannot be lanes. A kernel of three times as
  /// many is still some four times as fast as LibTorch's call, but takes LLVM more than a tenth of a second.
  int64_t most_of_lone_call = 256;
  /// Operations of a loop where there is one example, which are its step's and its pullback's; a longer one is made in
  /// tiles, or step by step.
  int64_t most_of_lone_loop = 5000;
  /// Elements of a matrix that a kernel solves with in memory, outside of loops, where each is a load of its own.
  int64_t most_of_system = 576;
  /// Loads and stores that LLVM may compare with each other: NOTE [Many loads and stores].
  int64_t few_accesses = 64;
  /// Characters of a block in LLVM's language, some 60 an instruction: NOTE [Short blocks].
  int64_t longest_block = 16384;

  // ---- kernels: kernels/emit.cpp, print_folds.cpp, kernel.cpp; fuse/shared_numbers.cpp ----

  /// Operations that all of a kernel's few lanes share, for which these are a kernel of their own.
  int64_t fewest_shared = 32;

  /// Vectors in a turn of a pass over rows, which is another's work for each other's time: a power of two.
  int64_t together = 4;
  /// Operations of a pass for which that is worth its registers; with more, a turn has one vector.
  int64_t most_together = 100;
  /// Operations of all formulas of functions that a kernel has in its loop; with more, it calls them.
  int64_t most_of_formulas = 200;
  /// Elements of a row, for which a kernel has the loop over rows: with more, to begin anew is little of the work.
  int64_t longest_walked_row = 512;
  /// Operations that are worth a thread: as LibTorch has it for its cheapest kernels.
  int64_t grain_of_kernel = 32768;

  // ---- products of matrices: kernels/gemm.cpp, fuse/products_of_one.cpp ----
  //
  // Of few rows or columns, or of few terms, or small altogether: in tiles. Others are LibTorch's.

  /// Multiplications, where there is one row or column: LibTorch is better at vectors.
  int64_t most_of_vector = 4096;
  /// Columns, with any number of rows and terms: fewer are in tiles …
  int64_t few_columns = 32;
  /// … and terms of each sum, up to so many …
  int64_t few_of_sum = 16;
  /// … and both, columns and terms …
  int64_t most_of_panel = 1024;
  /// … and rows and columns …
  int64_t most_of_square = 128;
  /// … and multiplications.
  int64_t most_of_product = 256 * 256 * 256;
  /// Elements of a matrix that several products read, for which these are one call; smaller ones stay in the cache
  /// from one product to the next.
  int64_t fewest_of_right = 128 * 128;
  /// Vectors of 64 bytes that the columns fill: with fewer, vectors are of 32 bytes, as too many lanes would be empty.
  int64_t fewest_wide_vectors = 2;
  /// Multiplications that are worth a thread.
  int64_t grain_of_product = 1 << 18;

  // ---- operator by operator: rules/reductions.cpp, rules/pooling.cpp ----

  /// Elements of a row whose sum is a product with ones: NOTE [Short rows]. Longer ones are LibTorch's sums …
  int64_t longest_short_row = 16;
  /// … and so are fewer rows.
  int64_t fewest_short_rows = 256;
  /// Channels, with which maximum pooling has them last: NOTE [Maximum pooling by channels].
  int64_t fewest_channels = 8;
};

const Thresholds& thresholds();

/// Other numbers while it lives, for what measures or tests them while nothing else compiles or runs. What a compiled
/// function decides when it is compiled it keeps.
class OtherThresholds {
 public:
  explicit OtherThresholds(const Thresholds& numbers);
  ~OtherThresholds();
  OtherThresholds(const OtherThresholds&) = delete;
  OtherThresholds& operator=(const OtherThresholds&) = delete;
};

}  // namespace tower::compiler

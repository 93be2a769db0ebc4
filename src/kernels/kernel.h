// A region of a compiled function as machine code: a function of memory.
//
//   Region region;                                     // x² of float32
//   const Id x = region.graph.input(Type::f32, 0);
//   region.inputs = {{Type::f32, false}};
//   region.outputs = {region.graph.make(Op::mul, x, x)};
//   const Kernel square(region);
//   square.run(n, {from}, {to});
//
// The loop takes whole vectors of lanes. What is left at the end is copied to and from memory of a vector's size, whose
// other lanes repeat the last one: no lane that is not there is computed with, so none divides by zero.
//
// What comes into this room is a Region: what one lane computes (numbers/expression.h), and what its inputs and outputs
// are. What goes out is a Kernel.
//
//   emit.h, printer.h, lines.h   Region        → LLVM's IR, as text
//   llvm.h                       IR            → an object file in memory, by the LLVM that was found
//   machine_code.h               object file   → bytes that are right at any address → executable memory
//   code_source.h                code by its key: from a saved function, a folder, or LLVM
//   kernels.h                    kernels by their regions: equal ones of a function share one
//   lane_code.h                  how a kernel is called
//   lanes_by_pointers.h, products_by_pointers.h, systems_by_pointers.h, by_pointers.h
//                                lanes and matrices anywhere in memory, and programs of kernels: C as well as C++
//   cpu.h, checked_file.h, digest.h     what code depends on, and how files hold it
//   gemm.h                       products of matrices, which need no region and no LLVM
//   product_kernel.h             the same as a kernel, where there is no LibTorch
//   elimination_kernel.h         factorizations and solves there
//
// What always holds:
//
// - A kernel knows memory, strides and lanes, and nothing of tensors, sizes or operators. That memory is of the size
//   and type that the kernel takes it for is seen to by the operator around it, at each call (graph/kernel_operator.h).
//   gemm.h is given tensors, and checks itself that dimensions end before memory does.
// - Equality is by bits: Kernels finds a kernel by the bytes of its region, a source of code by a digest of the IR, in
//   which constants stand by their bits.
// - A kernel does not change once it is made. Any number of threads may run it at once, and each run may be spread over
//   LibTorch's threads. Plans own kernels, and a kernel its machine code; tables of kernels own none.
// - Where there is no LLVM, or it refuses, there is a CompileError and no kernel; whoever asked runs the operators.
// - What goes wrong in a lane sets a bit of Fault. The other lanes are computed, and then the calling thread throws.
// - Mutexes are held while a table is looked at or changed, and nothing is generated, read or loaded under one. (LLVM
//   is looked for once, and whoever asks for it meanwhile waits.)
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <vector>

#include "kernels/by_pointers.h"
#include "kernels/code_source.h"
#include "kernels/emit.h"

namespace tower::compiler {

/// Throws what says which of these faults (kernels/emit.h) there are; nothing where there is none.
void raise_faults(uint8_t fault);

class Kernel {
 public:
  /// Throws a CompileError where there is no code and no LLVM, or where it does not do it.
  explicit Kernel(const Region& region, const CodeSource& source = CodeSource());
  /// Of a region whose lanes may be in places, without machine code, for a program that is drafted: what it will be
  /// made of is known when its lanes have places. Throws a CompileError as above.
  static std::shared_ptr<const Kernel> drafted(const Region& region, const CodeSource& source);
  /// The kernel of kernels/product_kernel.h, which runs nothing itself: kernels/by_pointers.h calls its code.
  static std::shared_ptr<const Kernel> product(Type type, const CodeSource& source);
  /// The same of kernels/elimination_kernel.h.
  static std::shared_ptr<const Kernel> elimination(Type type, const CodeSource& source);
  /// Under which key sources have its machine code.
  static std::string key_of(const Region& region, const CodeSource& source);

  /// Reads and writes `lanes` elements (one, of inputs that are repeated, and of outputs that are written once), on
  /// LibTorch's threads where they are many. An output may be an input's memory, if the type is the same, the region
  /// has no rows, and there are few of both (NOTE [Many loads and stores] in kernels/emit.cpp). Throws where an integer
  /// was divided by zero.
  void run(int64_t lanes, c10::ArrayRef<const void*> inputs, c10::ArrayRef<void*> outputs) const {
    run(Rows{{}, lanes, {}}, inputs, outputs);
  }

  /// Rows of lanes, which begin where the strides say.
  struct Rows {
    using Strides = c10::SmallVector<c10::SmallVector<int64_t, 4>, 8>;  // for each input or output, in elements
    c10::SmallVector<int64_t, 4> sizes;                                 // how many, by dimensions; none: one row
    int64_t lanes;                                                      // in each
    Strides strides;
    Strides of_outputs = {};  // none: rows follow each other. Several rows may be added to the same memory
    int64_t together = 1;     // rows, one after the other, that share memory with no others
  };
  void run(const Rows& rows, c10::ArrayRef<const void*> inputs, c10::ArrayRef<void*> outputs) const;

  /// Whether `run_part` can compute it: it needs no more than its lanes.
  bool computes_parts() const;
  /// Lanes `begin` … `end` − 1 of a row, on this thread; bits of what went wrong go to `fault`. `inputs` and `outputs`
  /// begin at the row's first lane, of which only those that these lanes read and write need be there. Lanes may be
  /// computed twice: no output is an input's memory.
  void run_part(int64_t begin, int64_t end, c10::ArrayRef<const void*> inputs, c10::ArrayRef<void*> outputs,
                uint8_t* fault) const;

  /// Repeated inputs have one element.
  using Source = LaneSource;
  using Target = LaneTarget;
  /// Lanes that lie apart are gathered and scattered a block at a time. Outputs that are summed have one element.
  void run(int64_t lanes, c10::ArrayRef<Source> inputs, c10::ArrayRef<Target> outputs) const;

  /// For reports.
  struct Facts {
    int instructions = 0;  // for one vector of lanes
    int64_t vector_lanes = 0;
    int64_t bytes_a_lane = 0;  // read and written
    size_t code_bytes = 0;
    bool generated = true;    // its machine code; or it came from a file
    double milliseconds = 0;  // from expression to machine code
  };
  const Facts& facts() const { return facts_; }

  /// What it is to be made of, where it is drafted; null: it has machine code.
  const Region* region() const { return region_.get(); }
  /// For what runs kernels on memory that pointers name (kernels/by_pointers.h).
  const LaneCode& lane_code() const { return lane_code_; }
  /// What is kept for each lane of a row.
  const std::vector<Type>& kept() const { return kept_; }
  /// Lanes that are worth a thread.
  int64_t grain() const { return grain_; }
  /// How many outputs are summed over all lanes.
  size_t sums() const { return summed_.size(); }
  /// Of the memory that one of its loops keeps its states in, where none makes more than `steps`, unless it is known
  /// how many it can make.
  int64_t loop_bytes(int64_t steps) const;

  const std::string& key() const { return key_; }
  Binary binary() const { return written_ ? written_->binary : code_->binary(); }
  /// What its source was to have written; null: it is run here.
  const CodeSource::Written* written() const { return written_.get(); }

 private:
  Kernel() = default;
  static std::shared_ptr<const Kernel> of_matrices(const KernelText& text, std::vector<LaneElement> elements,
                                                   int64_t inputs, const CodeSource& source);
  void describe(const Region& region, const KernelText& text);
  void take(CodeSource::Found found);
  void run_rows(const Rows& rows, int64_t begin, int64_t end, c10::ArrayRef<const void*> inputs,
                c10::ArrayRef<void*> outputs, uint8_t* fault) const;
  void run_range(int64_t begin, int64_t end, c10::ArrayRef<const void*> inputs, c10::ArrayRef<void*> outputs,
                 uint8_t* fault) const;
  void run_summed(int64_t lanes, c10::ArrayRef<Source> inputs, c10::ArrayRef<Target> outputs) const;
  // Calls `run` with pointers for each input and all that outputs are, memory of the loops' among them, and columns of
  // blocks of so many lanes.
  using InRoom = c10::function_ref<void(const void** from, void** to, char* columns, int64_t block)>;
  void with_room(uint8_t* fault, InRoom run) const;
  using Piece = c10::function_ref<void(int64_t begin, int64_t end, uint8_t* fault)>;
  void share(int64_t pieces, int64_t lanes_in_piece, Piece piece) const;

  std::string key_;
  std::unique_ptr<const Region> region_;
  std::unique_ptr<Code> code_;  // null: it is drafted, or not run here, and …
  std::shared_ptr<const CodeSource::Written> written_;
  LaneCode lane_code_{};
  std::vector<LaneElement> elements_;  // of each input and output
  std::vector<Region::Input> inputs_;
  std::vector<Type> outputs_;
  std::vector<size_t> summed_;   // those that are summed
  bool has_rows_ = false;        // each is computed as a whole
  std::vector<Type> kept_;       // further memory, for the lanes of a row
  std::vector<LoopRoom> loops_;  // that keep their states in memory
  int64_t columns_ = 0;          // inputs and outputs of which lanes that lie apart are copied
  int64_t grain_ = 1;            // lanes that are worth a thread
  Facts facts_;
};

}  // namespace tower::compiler

// Kernels as text: from what one lane computes to LLVM's IR of a loop over lanes, a vector of lanes at a time. Strict:
// no flag allows LLVM to change a result. Fast: a product and a sum may be rounded once, as one operation, and a number
// by which several are divided may be inverted once.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "kernels/llvm.h"
#include "numbers/expression.h"
#include "tower/compile.h"

namespace tower::compiler {

/// What a kernel computes for each lane, and what it reads for that.
struct Region {
  /// Where a row of an input begins: in which row of its memory. Of rows that the kernel walks.
  struct RowAt {
    uint64_t index;     // the number of the input that has the row's number, one element for all lanes
    int64_t n, stride;  // of rows to point to; how many elements they are apart
    bool from_the_end;  // a number below zero counts from there; else it is none of theirs
  };
  struct Input {
    Type type;
    bool repeated;  // one element for all lanes, or a table; otherwise one for each, next to each other
    std::optional<RowAt> at = std::nullopt;
  };
  /// Where an input or output is that is always there: of lanes in places.
  struct Place {
    int64_t memory;          // its number in the list that the kernel is given
    int64_t offset, stride;  // bytes to the first lane; elements from one lane to the next
  };
  struct Placed {
    int64_t lanes;              // how many
    std::vector<Place> places;  // of the inputs, and behind them of the outputs
  };
  using OfRow = compiler::OfRow;  // what the lanes of a row come to
  static constexpr uint64_t kOfRow = OfRow::kFirst;
  static constexpr int64_t kBlock = 16;  // turns of a loop over a row, or blocks of the level below, that are one block

  Expressions graph;
  std::vector<Input> inputs;     // by the numbers of the graph's inputs
  std::vector<Id> outputs;       // one element for each lane, next to each other
  bool single = false;           // there is one lane only
  std::vector<bool> added = {};  // of each output: to what is in memory; none: all are written
  std::vector<OfRow> of_row = {};
  int levels = 0;                 // of blocks in which rows are added up: more for longer ones
  std::vector<bool> once = {};    // of each output: one element for all lanes; none: each has one
  std::vector<bool> summed = {};  // of each output: its sum over all lanes is wanted; none: of no output
  int64_t walked = 0;             // lanes of each of the rows that the kernel walks: NOTE [Walked rows]; 0: it does not
  std::optional<Placed> placed = std::nullopt;  // NOTE [Lanes in places]; none: the kernel is given pointers to each

  bool is_added(size_t output) const { return output < added.size() && added[output]; }
  /// Its vectors are added to the one that is in memory.
  bool is_summed(size_t output) const { return output < summed.size() && summed[output]; }
  bool is_once(size_t output) const { return output < once.size() && once[output]; }
  /// Whether lanes are rows that are computed as a whole (NOTE [Rows in a kernel]).
  bool has_rows() const {
    return !once.empty() || std::any_of(of_row.begin(), of_row.end(), [](const OfRow& o) { return o.folded != kNone; });
  }
  /// Whether lanes have to know their numbers: they are those of a call, from `begin` on.
  bool has_places() const {
    return std::any_of(of_row.begin(), of_row.end(), [](const OfRow& o) { return o.how == OfRow::place; });
  }
  /// Whether its lanes may be in places: they need no more than each its own elements, and pointers are not asked for
  /// by number.
  bool can_be_placed() const;
  /// Null for nodes that are no such inputs.
  const OfRow* of_row_at(const Node& n) const {
    return n.op == Op::input && n.bits >= kOfRow ? &of_row[n.bits - kOfRow] : nullptr;
  }
  bool is_looked_up(const Node& n) const { return n.op == Op::input && n.args[0] != kNone; }
  bool is_repeated(const Node& n) const {
    return n.op == Op::input && !is_looked_up(n) && n.bits < kOfRow && inputs[n.bits].repeated;
  }
  /// Of each node, whether an output needs it.
  ById<Id, bool> needed() const;
};

/// What went wrong in a lane: bits of the byte at `fault`.
enum Fault : uint8_t { kDividedByZero = 1, kNotEnded = 2, kSingular = 4, kOutOfRange = 8, kNoMemory = 16 };

/// Memory that a loop of a kernel keeps its states in.
struct LoopRoom {
  int64_t bytes;                      // for each step
  std::optional<int64_t> most_steps;  // that it can make
};

/// A kernel's text: void name(i64 begin, i64 end, ptr inputs, ptr outputs, ptr fault). It takes whole vectors of lanes
/// only, from lane `begin` to before lane `end`, and sets the bits of a Fault at `fault`: where an integer was divided
/// by zero, where a loop that must end did not, where a matrix cannot be factored, and where an index is out of range.
/// If the region has rows, the lanes are one, from 0 on, of any length. If it walks rows, `begin` and `end` are of
/// rows, and behind the inputs comes how many bytes rows are apart, in each input and each output. If its lanes are in
/// places, `inputs` and `outputs` are one list of memories, and all lanes are computed, whatever `begin` and `end` are.
struct KernelText {
  Module module;
  int64_t lanes;                // in a vector
  int instructions;             // for a vector, loads and stores included
  int64_t work;                 // the same, those of each step of a loop as often as that is made, where it is known
  std::vector<Type> kept = {};  // further outputs: memory for as many elements as there are lanes, used by each row
  std::vector<LoopRoom> loops = {};  // and behind these: a LoopMemory of each (kernels/by_pointers.h)
};
/// Whether a kernel may walk rows of so many lanes: they fill vectors of any size that there is.
bool walks_rows_of(int64_t lanes);
KernelText print_kernel(const Region& region, const std::string& name, int64_t vector_bytes, Math math);

}  // namespace tower::compiler

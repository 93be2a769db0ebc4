// Calls whose lanes are elements of the result, and which read them elsewhere in their operands: what moves elements
// (cat, pad, flip), and what looks them up by an index (gather, embedding).
//
// Such an operand is a table of the kernel's. The lanes are put into rows, so that the same is to be done in each row;
// where a row's part of the table begins, the kernel is told for each row. What moves is a few pieces of a row, such as
// one for each operand of a cat, which are read as they lie; or, if there are many, places that are looked up in a list
// of all lanes of a row. What comes of the index is checked, and what is not there is not read.
#pragma once

#include "fuse/row_reach.h"
#include "graph/operand_dims.h"
#include "numbers/element.h"
#include "numbers/look_up.h"

namespace tower::compiler {

struct Elsewhere {
  /// Lanes `begin` … `end` − 1 of each row: elements of the operand, from number `from` on, forwards or backwards.
  struct Piece {
    size_t operand;
    int64_t begin, end, from;
    bool backwards;
  };
  /// By an index of n places, whose elements are `stride` apart; along the row they are `along_row` apart.
  struct LookedUp {
    LookUp how;
    int64_t n, stride, along_row;
    Places places;            // where the lanes are in the index
    bool finds_rows = false;  // an element of the index for each row of lanes, which lie together in the table
  };

  size_t outer = 0;            // dimensions of the lanes that count rows
  int64_t length = 1;          // lanes of a row
  std::vector<Sizes> strides;  // by operand, if it is a table: how far apart rows begin in it, by outer dimensions
  // What moves.
  std::vector<Piece> pieces;           // other lanes are `filled`
  at::Tensor list;                     // in their place: of each lane the element's number among all; less than 0: none
  std::vector<int64_t> first_of_list;  // by operand: of its elements; and behind the last
  at::Scalar filled = 0;
  // What is looked up.
  std::optional<LookedUp> look_up;

  bool is_table(size_t operand) const { return !look_up || operand != look_up->how.index; }
  /// Where in its row lanes read the operand; none where that does not follow from their own places by addition.
  std::optional<Reach> reach(size_t operand) const;
};

/// None where a call is no such, or LibTorch's call is better.
std::optional<Elsewhere> elsewhere(const Graph& graph, const Call& call);
/// From which element on the result of a call has those of its operand, in their order; none where it has others.
std::optional<int64_t> part_of_operand(const Graph& graph, const Call& call);

/// What an element of the result is in a kernel.
class ReadElsewhere {
 public:
  /// The number of the input that is this operand, a table; what the lane's part of the list is; and the lane's place
  /// in its row.
  struct Inputs {
    std::function<std::pair<Type, uint64_t>(size_t operand)> table;
    std::function<Id()> list, place;
    std::function<Id()> index;
  };
  ReadElsewhere(Expressions& graph, const Elsewhere& how, Inputs inputs)
      : graph_(graph), how_(how), inputs_(std::move(inputs)) {}
  Id element(Type type) const;

 private:
  E read(size_t operand, E place, E holds) const;
  E piece_by_piece(Type type) const;
  E by_list(Type type) const;
  Id by_index(Type type) const;

  Expressions& graph_;
  const Elsewhere& how_;
  const Inputs inputs_;
};

}  // namespace tower::compiler

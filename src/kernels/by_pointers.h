// What runs kernels on memory that pointers name: of one kernel its lanes, wherever they lie, or rows of them; and of a
// program its kernels in order, and what is to be copied between them.
//
// NOTE [One text for the process and for C]
// This file, and what it includes, is C99 and C++ alike. The process includes it, and a C library that
// compile/export_c.cpp writes has its text: what both do to memory around the same machine code is the same. So nothing
// here allocates, throws, locks, or knows more than the standard library of C.
//
// A program is tables. Memory is numbered: first the arguments, then the results, the constants, and what is made on
// the way, which has places in a workspace that the caller gives. How many examples there are is known when the program
// runs: what depends on it is an Extent.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/lane_code.h"
#include "kernels/products_by_pointers.h"

#ifdef __cplusplus
namespace tower::compiler {
#endif

// Memory that a loop in a kernel keeps its states in. Kernels know where the members are.
typedef struct LoopMemory {
  char* memory;
  int64_t bytes;
  // Makes at least so many bytes of it; what it holds stays. Zero if there is no memory.
  int64_t (*grow)(struct LoopMemory*, int64_t);
  int64_t failed;
} LoopMemory;

enum { kNoMemoryLeft = 16 };  // of faults, that for loops

// Where an input's or output's lanes are: the first one, and how many elements apart.
typedef struct LaneSource {
  const void* memory;
  int64_t stride;
} LaneSource;
typedef struct LaneTarget {
  void* memory;
  int64_t stride;
} LaneTarget;

enum {
  kBytesOfColumn = 8,  // of an element, where lanes are copied
  kBytesOfVector = 64  // of the widest there is
};

static inline void copy_lanes(const char* from, int64_t from_stride, char* to, int64_t to_stride, int64_t bytes,
                              int64_t lanes) {
  int64_t lane;
  switch (bytes) {
    case 8:
      for (lane = 0; lane < lanes; ++lane) memcpy(to + 8 * lane * to_stride, from + 8 * lane * from_stride, 8);
      return;
    case 4:
      for (lane = 0; lane < lanes; ++lane) memcpy(to + 4 * lane * to_stride, from + 4 * lane * from_stride, 4);
      return;
    case 2:
      for (lane = 0; lane < lanes; ++lane) memcpy(to + 2 * lane * to_stride, from + 2 * lane * from_stride, 2);
      return;
    default:
      for (lane = 0; lane < lanes; ++lane) to[lane * to_stride] = from[lane * from_stride];
  }
}

// ---- lanes that are apart ----
//
// NOTE [Examples row by row]
// Elements of an example that follow each other in memory are read and written together, for as many lanes as a vector
// of 16 bytes has elements: a square of the matrix of examples and elements is transposed in registers. One by one,
// each element would take a load and a store, which is as long as the kernel itself takes where examples are wide.

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define TOWER_SQUARES 1
typedef uint32_t FourElements __attribute__((vector_size(16)));
typedef uint64_t TwoElements __attribute__((vector_size(16)));

static inline void transpose_four(const char* from, int64_t from_row, char* to, int64_t to_row) {
  FourElements a, b, c, d, low, high, other_low, other_high;
  memcpy(&a, from, 16);
  memcpy(&b, from + from_row, 16);
  memcpy(&c, from + 2 * from_row, 16);
  memcpy(&d, from + 3 * from_row, 16);
  low = __builtin_shufflevector(a, c, 0, 4, 1, 5);
  high = __builtin_shufflevector(a, c, 2, 6, 3, 7);
  other_low = __builtin_shufflevector(b, d, 0, 4, 1, 5);
  other_high = __builtin_shufflevector(b, d, 2, 6, 3, 7);
  a = __builtin_shufflevector(low, other_low, 0, 4, 1, 5);
  b = __builtin_shufflevector(low, other_low, 2, 6, 3, 7);
  c = __builtin_shufflevector(high, other_high, 0, 4, 1, 5);
  d = __builtin_shufflevector(high, other_high, 2, 6, 3, 7);
  memcpy(to, &a, 16);
  memcpy(to + to_row, &b, 16);
  memcpy(to + 2 * to_row, &c, 16);
  memcpy(to + 3 * to_row, &d, 16);
}

static inline void transpose_two(const char* from, int64_t from_row, char* to, int64_t to_row) {
  TwoElements a, b, low, high;
  memcpy(&a, from, 16);
  memcpy(&b, from + from_row, 16);
  low = __builtin_shufflevector(a, b, 0, 2);
  high = __builtin_shufflevector(a, b, 1, 3);
  memcpy(to, &low, 16);
  memcpy(to + to_row, &high, 16);
}
#endif
#endif

// What is next to each other in each row goes below each other: `rows` of `columns` elements, which are `from_row`
// bytes apart, and `to_row` there.
static inline void transpose_elements(const char* from, int64_t from_row, char* to, int64_t to_row, int64_t bytes,
                                      int64_t rows, int64_t columns) {
  int64_t row = 0, column = 0, whole = 0;
#ifdef TOWER_SQUARES
  if (bytes == 4) {
    whole = columns / 4 * 4;
    for (; whole && row + 4 <= rows; row += 4)
      for (column = 0; column < whole; column += 4)
        transpose_four(from + row * from_row + column * 4, from_row, to + column * to_row + row * 4, to_row);
  } else if (bytes == 8) {
    whole = columns / 2 * 2;
    for (; whole && row + 2 <= rows; row += 2)
      for (column = 0; column < whole; column += 2)
        transpose_two(from + row * from_row + column * 8, from_row, to + column * to_row + row * 8, to_row);
  }
#endif
  // The columns that are left of these rows, and the rows that are left.
  for (column = whole; column < columns; ++column)
    copy_lanes(from + column * bytes, from_row / bytes, to + column * to_row, 1, bytes, row);
  for (; row < rows; ++row) copy_lanes(from + row * from_row, 1, to + row * bytes, to_row / bytes, bytes, columns);
}

// Whether no input or output has to be copied, but for a vector that is not whole.
static inline int lie_as_lanes(const LaneCode* code, const LaneSource* inputs, const LaneTarget* outputs) {
  int64_t i;
  for (i = 0; i < code->inputs; ++i)
    if (code->elements[i].apart && inputs[i].stride != 1) return 0;
  for (i = 0; i < code->outputs; ++i)
    if (code->elements[code->inputs + i].apart && outputs[i].stride != 1) return 0;
  return 1;
}

// How many inputs from the first on, of `count`, are elements that follow each other in each example.
static inline int64_t sources_in_a_row(const LaneElement* elements, const LaneSource* inputs, int64_t count) {
  const int64_t bytes = elements->apart, stride = inputs->stride;
  int64_t i = 1;
  while (i < count && elements[i].apart == bytes && inputs[i].stride == stride &&
         (const char*)inputs[i].memory == (const char*)inputs->memory + i * bytes)
    ++i;
  return i;
}
static inline int64_t targets_in_a_row(const LaneElement* elements, const LaneTarget* outputs, int64_t count) {
  const int64_t bytes = elements->apart, stride = outputs->stride;
  int64_t i = 1;
  while (i < count && elements[i].apart == bytes && outputs[i].stride == stride &&
         (char*)outputs[i].memory == (char*)outputs->memory + i * bytes)
    ++i;
  return i;
}

// Bytes of a column of lanes, no more than kBytesOfColumn for each.
static inline int64_t bytes_of_column(int64_t lanes, int64_t bytes) {
  return (lanes * bytes + kBytesOfColumn - 1) / kBytesOfColumn * kBytesOfColumn;
}

// Lanes `begin` to before `end`, `block` of them at a time, which is a multiple of a vector; where nothing is copied
// all whole vectors are one block, as there may be thousands of inputs to point to in each. Lanes next to each other
// are used where they are, unless the last vector is not whole; others are copied, and what is missing in the last
// vector repeats the last lane. `from` and `to`: for pointers to each input and output; what stands behind the outputs
// is the kernel's as it is. `columns`: kBytesOfColumn for each lane of a block, of each input and output.
static inline void run_lanes(const LaneCode* code, int64_t begin, int64_t end, int64_t block, const LaneSource* inputs,
                             const LaneTarget* outputs, const void** from, void** to, char* columns, uint8_t* fault) {
  const int64_t vector = code->vector, whole = (end - begin) / vector * vector;
  const LaneElement* const of_outputs = code->elements + code->inputs;
  int64_t first, i, k, together;
  if (whole > block && lie_as_lanes(code, inputs, outputs)) block = whole;
  for (first = begin; first < end; first += block) {
    const int64_t lanes = end - first < block ? end - first : block;
    const int64_t padded = (lanes + vector - 1) / vector * vector;
    char* next = columns;
    for (i = 0; i < code->inputs; i += together) {
      const int64_t bytes = code->elements[i].apart, stride = inputs[i].stride, column = bytes_of_column(block, bytes);
      const char* source = (const char*)inputs[i].memory + first * stride * bytes;
      from[i] = source;
      together = 1;
      if (bytes == 0 || (padded == lanes && (stride == 1 || lanes == 1))) continue;
      together = sources_in_a_row(code->elements + i, inputs + i, code->inputs - i);
      if (together > 1) transpose_elements(source, stride * bytes, next, column, bytes, lanes, together);
      else copy_lanes(source, stride, next, 1, bytes, lanes);
      for (k = 0; k < together; ++k, next += column) {
        copy_lanes(next + (lanes - 1) * bytes, 0, next + lanes * bytes, 1, bytes, padded - lanes);
        from[i + k] = next;
      }
    }
    for (i = 0; i < code->outputs; ++i) {
      const int64_t bytes = of_outputs[i].apart, stride = outputs[i].stride;
      to[i] = (char*)outputs[i].memory + first * stride * bytes;
      if (bytes == 0 || (padded == lanes && (stride == 1 || lanes == 1))) continue;
      to[i] = next;
      next += bytes_of_column(block, bytes);
    }
    code->function(0, padded, from, to, fault);
    for (i = 0; i < code->outputs; i += together) {
      const int64_t bytes = of_outputs[i].apart, stride = outputs[i].stride;
      char* target = (char*)outputs[i].memory + first * stride * bytes;
      together = 1;
      if (to[i] == (void*)target) continue;
      together = targets_in_a_row(of_outputs + i, outputs + i, code->outputs - i);
      if (together > 1)
        transpose_elements((const char*)to[i], bytes_of_column(block, bytes), target, stride * bytes, bytes, together,
                           lanes);
      else copy_lanes((const char*)to[i], 1, target, stride, bytes, lanes);
    }
  }
}

// ---- rows ----

// Lanes `begin` to before `end` of a row, next to each other in memory. A last vector that is not whole is computed on
// copies. `from`, `to`: for pointers to each input, and to all that outputs are. `rest`: kBytesOfVector for each input
// and output.
static inline void run_row(const LaneCode* code, int64_t begin, int64_t end, const void* const* inputs,
                           void* const* outputs, const void** from, void** to, char* rest, uint8_t* fault) {
  const int64_t whole = begin + (end - begin) / code->vector * code->vector, lanes = end - whole;
  // Lanes that know their numbers have the same ones in the copy.
  const int64_t first = code->numbered ? whole : 0;
  const LaneElement* const of_outputs = code->elements + code->inputs;
  char* next = rest;
  int64_t i;
  if (whole > begin) code->function(begin, whole, inputs, outputs, fault);
  if (lanes == 0) return;
  for (i = 0; i < code->inputs; ++i) {
    const int64_t bytes = code->elements[i].apart;
    from[i] = inputs[i];
    if (bytes == 0) continue;
    copy_lanes((const char*)inputs[i] + whole * bytes, 1, next, 1, bytes, lanes);
    copy_lanes(next + (lanes - 1) * bytes, 0, next + lanes * bytes, 1, bytes, code->vector - lanes);
    from[i] = (const void*)((uintptr_t)next - (uintptr_t)(first * bytes));
    next += kBytesOfVector;
  }
  for (i = 0; i < code->outputs + code->kept + code->loops; ++i) to[i] = outputs[i];
  for (i = 0; i < code->outputs; ++i, next += kBytesOfVector) {
    const int64_t bytes = of_outputs[i].bytes;
    if (of_outputs[i].added) copy_lanes((const char*)outputs[i] + whole * bytes, 1, next, 1, bytes, lanes);
    to[i] = (void*)((uintptr_t)next - (uintptr_t)(first * bytes));
  }
  code->function(first, first + code->vector, from, to, fault);
  for (i = 0; i < code->outputs; ++i) {
    const int64_t bytes = of_outputs[i].bytes;
    copy_lanes((const char*)to[i] + first * bytes, 1, (char*)outputs[i] + whole * bytes, 1, bytes, lanes);
  }
}

// Rows of lanes: how many by dimensions, and how far apart these are, in bytes, for each input and each output.
typedef struct LaneRows {
  int64_t dims, lanes;
  const int64_t *sizes, *strides;
} LaneRows;

// What is needed besides: pointers to each input and to all that outputs are, twice; a number for each dimension; and
// what run_row needs. A kernel that walks rows gets one pointer more, behind those to its inputs.
typedef struct RoomOfRows {
  const void **inputs, **from;
  void **outputs, **to;
  int64_t* place;
  char* rest;
} RoomOfRows;

// Rows `begin` to before `end`. The pointers to inputs and outputs in `room` are those of the very first row, and
// behind the outputs' those to what is kept and of loops.
static inline void run_rows(const LaneCode* code, const LaneRows* rows, int64_t begin, int64_t end,
                            const RoomOfRows* room, uint8_t* fault) {
  const int64_t dims = rows->dims;
  const int64_t* const of_outputs = rows->strides + code->inputs * dims;
  const int64_t last = dims - 1;
  int64_t d, i, row, count = 1, left = begin;
  if (code->walked) {
    int64_t* const apart = (int64_t*)(void*)room->rest;
    for (i = 0; i < code->inputs + code->outputs; ++i) apart[i] = rows->strides[i * dims + last];
    room->inputs[code->inputs] = apart;
  }
  for (d = dims; d-- > 0; left /= rows->sizes[d]) room->place[d] = left % rows->sizes[d];
  for (d = 0; d < dims; ++d) {
    for (i = 0; i < code->inputs; ++i)
      room->inputs[i] = (const char*)room->inputs[i] + room->place[d] * rows->strides[i * dims + d];
    for (i = 0; i < code->outputs; ++i)
      room->outputs[i] = (char*)room->outputs[i] + room->place[d] * of_outputs[i * dims + d];
  }
  for (row = begin; row < end; row += count) {
    if (code->walked) {
      count = rows->sizes[last] - room->place[last];
      if (count > end - row) count = end - row;
      code->function(0, count, room->inputs, room->outputs, fault);
    } else if (code->whole_rows) {
      code->function(0, rows->lanes, room->inputs, room->outputs, fault);
    } else {
      run_row(code, 0, rows->lanes, room->inputs, room->outputs, room->from, room->to, room->rest, fault);
    }
    // The next row is so many further along the last dimension, or, behind its end, back over all of it.
    for (d = dims; d-- > 0;) {
      const int64_t further = d == last ? count : 1;
      const int64_t by = (room->place[d] += further) < rows->sizes[d] ? further : further - rows->sizes[d];
      for (i = 0; i < code->inputs; ++i)
        room->inputs[i] = (const char*)room->inputs[i] + by * rows->strides[i * dims + d];
      for (i = 0; i < code->outputs; ++i) room->outputs[i] = (char*)room->outputs[i] + by * of_outputs[i * dims + d];
      if (by == further) break;
      room->place[d] = 0;
    }
  }
}

// Elements by dimensions, of which the last is copied at one go: from where they are to where they go. Strides are in
// bytes. `place`: a number for each dimension.
static inline void copy_elements(const char* from, char* to, int64_t bytes, int64_t dims, const int64_t* sizes,
                                 const int64_t* strides_from, const int64_t* strides_to, int64_t* place) {
  int64_t d;
  for (d = 0; d < dims; ++d) {
    place[d] = 0;
    if (sizes[d] <= 0) return;
  }
  for (;;) {
    if (dims == 0) {
      memcpy(to, from, (size_t)bytes);
      return;
    }
    copy_lanes(from, strides_from[dims - 1] / bytes, to, strides_to[dims - 1] / bytes, bytes, sizes[dims - 1]);
    for (d = dims - 1; d-- > 0;) {
      const int64_t by = ++place[d] < sizes[d] ? 1 : 1 - sizes[d];
      from += by * strides_from[d];
      to += by * strides_to[d];
      if (by == 1) break;
      place[d] = 0;
    }
    if (d < 0) return;
  }
}

// ---- programs ----

// fixed + each · n. Of places in the workspace n counts groups of kExamplesOfGroup examples, otherwise examples.
typedef struct Extent {
  int64_t fixed, each;
} Extent;

enum { kExamplesOfGroup = 64 };

// More than memory has addresses for: what depends on so many still is a number.
static const int64_t kMostExamples = (int64_t)1 << 40;

static inline int64_t extent_for(Extent extent, int64_t n) { return extent.fixed + extent.each * n; }
static inline int64_t groups_for(int64_t n) { return n / kExamplesOfGroup + (n % kExamplesOfGroup != 0); }

// Where the lanes of an input or output are: in the memory of this number (less than 0: in none), by bytes; and how
// many elements apart. Of rows and copies, dimensions say how far apart they are, and this is nothing.
typedef struct ProgramPlace {
  int64_t memory;
  Extent offset, stride;
} ProgramPlace;

// The same of a step of pointers.
typedef struct ProgramPointer {
  int32_t memory, offset;
} ProgramPointer;

enum {
  kStepOfLanes,
  kStepOfPointers,  // to whole vectors of lanes, next to each other and in the same places for any number of examples
  kStepInPlaces,    // of a kernel that knows where its lanes are: the list of memories is all that it needs
  kStepOfRows,
  kStepOfProducts,
  kStepOfCopies,  // of elements
  kStepOfZeros    // bytes
};

typedef struct ProgramStep {
  int64_t kind;
  const LaneCode* code;  // null: none is called
  int64_t bytes;         // of an element that is copied
  Extent lanes;
  const ProgramPlace* places;      // of inputs, and behind them of all that outputs are
  const ProgramPointer* pointers;  // of one lane
  int64_t dims;
  const Extent* sizes;    // of the dimensions
  const Extent* strides;  // in bytes, of each dimension for each input and output
} ProgramStep;

typedef struct ProgramTables {
  int64_t arguments, results, constants, steps;  // how many
  const void* const* constant;
  const Extent* made;  // where what is made on the way is in the workspace
  const ProgramStep* step;
  int64_t most_inputs, most_outputs;  // of a step; outputs with all that is behind them
  int64_t most_loops;                 // of a step, that keep their states in memory
  int64_t most_numbers;               // of a step: sizes, strides, and places in its dimensions
  int64_t memories;                   // all of them
  int64_t column_bytes;               // for lanes that are copied; at least a vector of any step
  int64_t loop_bytes;                 // that each loop's memory has
  Extent work;                        // bytes of the workspace
  int64_t fewest, any_number;         // of examples: so many or more, or, where the other is 0, n is 1
} ProgramTables;

// In the workspace, in this order: lists of all memories, and of a step's sources, targets, pointers, loops and
// numbers; columns; memory of loops; and what is made on the way.
enum { kAlignment = 64 };

static inline int64_t bytes_for_lists(const ProgramTables* tables) {
  const int64_t bytes = tables->memories * (int64_t)sizeof(char*) +
                        tables->most_inputs * (int64_t)(sizeof(LaneSource) + 2 * sizeof(void*)) +
                        tables->most_outputs * (int64_t)(sizeof(LaneTarget) + 2 * sizeof(void*)) +
                        tables->most_loops * (int64_t)sizeof(LoopMemory) +
                        tables->most_numbers * (int64_t)sizeof(int64_t);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

static inline int64_t work_bytes_for(const ProgramTables* tables, int64_t n) {
  return extent_for(tables->work, groups_for(n < 0 ? 0 : n < kMostExamples ? n : kMostExamples));
}

// The lists of a call.
typedef struct ProgramRoom {
  char** memory;
  LaneSource* sources;
  LaneTarget* targets;
  const void **from, **inputs;
  void **to, **outputs;
  LoopMemory* loops;
  int64_t* numbers;
  char* columns;
} ProgramRoom;

static inline int64_t no_more_memory(LoopMemory* of, int64_t bytes) {
  (void)bytes;
  of->failed = 1;
  return 0;
}

static inline int64_t block_of(const ProgramTables* tables, const LaneCode* code) {
  return tables->column_bytes / ((code->inputs + code->outputs) * kBytesOfColumn) / code->vector * code->vector;
}

// The places of a step's lanes.
static inline void find_lanes(const ProgramStep* step, int64_t n, const ProgramRoom* room) {
  const LaneCode* const code = step->code;
  const ProgramPlace* place = step->places;
  int64_t k;
  for (k = 0; k < code->inputs; ++k, ++place) {
    room->sources[k].memory = room->memory[place->memory] + extent_for(place->offset, n);
    room->sources[k].stride = extent_for(place->stride, n);
  }
  for (k = 0; k < code->outputs; ++k, ++place) {
    room->targets[k].memory = room->memory[place->memory] + extent_for(place->offset, n);
    room->targets[k].stride = extent_for(place->stride, n);
  }
}

// Sizes and strides of a step for n examples: how many rows or elements these are.
static inline int64_t find_rows(const ProgramStep* step, int64_t operands, int64_t n, const ProgramRoom* room) {
  int64_t d, count = 1;
  for (d = 0; d < step->dims; ++d) {
    room->numbers[d] = extent_for(step->sizes[d], n);
    count *= room->numbers[d];
  }
  for (d = 0; d < operands * step->dims; ++d) room->numbers[step->dims + d] = extent_for(step->strides[d], n);
  return count;
}

static inline void run_step_of_rows(const ProgramStep* step, int64_t lanes, int64_t n, const ProgramRoom* room,
                                    uint8_t* fault) {
  const LaneCode* const code = step->code;
  const int64_t operands = code->inputs + code->outputs, count = find_rows(step, operands, n, room);
  const LaneRows rows = {step->dims, lanes, room->numbers, room->numbers + step->dims};
  const RoomOfRows of_rows = {
      room->inputs, room->from, room->outputs, room->to, room->numbers + step->dims * (1 + operands), room->columns};
  const ProgramPlace* place = step->places;
  int64_t k;
  for (k = 0; k < code->inputs; ++k, ++place)
    room->inputs[k] = room->memory[place->memory] + extent_for(place->offset, n);
  for (k = 0; k < code->outputs + code->kept; ++k, ++place)
    room->outputs[k] = room->memory[place->memory] + extent_for(place->offset, n);
  run_rows(code, &rows, 0, count, &of_rows, fault);
}

static inline void run_step_of_copies(const ProgramStep* step, int64_t n, const ProgramRoom* room) {
  const ProgramPlace* const place = step->places;
  int64_t* const strides = room->numbers + step->dims;
  find_rows(step, 2, n, room);
  copy_elements(room->memory[place[0].memory] + extent_for(place[0].offset, n),
                room->memory[place[1].memory] + extent_for(place[1].offset, n), step->bytes, step->dims, room->numbers,
                strides, strides + step->dims, strides + 2 * step->dims);
}

static inline void run_step_of_products(const ProgramStep* step, int64_t n, const ProgramRoom* room, uint8_t* fault) {
  const void* operands[4];
  int64_t k;
  find_rows(step, 4, n, room);
  for (k = 0; k < 4; ++k) {
    const ProgramPlace* const place = &step->places[k];
    operands[k] = place->memory < 0 ? 0 : room->memory[place->memory] + extent_for(place->offset, n);
  }
  run_products(step->code, step->dims, room->numbers, room->numbers + step->dims, operands,
               (void*)(uintptr_t)operands[3], room->numbers + 5 * step->dims, fault);
}

static inline uint8_t run_step(const ProgramTables* tables, const ProgramStep* step, int64_t n,
                               const ProgramRoom* room) {
  const LaneCode* const code = step->code;
  const int64_t lanes = extent_for(step->lanes, n);
  uint8_t fault = 0;
  int64_t k;
  if (lanes <= 0) return 0;
  if (code)
    for (k = 0; k < code->loops; ++k)
      room->to[code->outputs + code->kept + k] = room->outputs[code->outputs + code->kept + k] = &room->loops[k];
  switch (step->kind) {
    case kStepOfPointers: {
      const ProgramPointer* pointer = step->pointers;
      for (k = 0; k < code->inputs; ++k, ++pointer) room->from[k] = room->memory[pointer->memory] + pointer->offset;
      for (k = 0; k < code->outputs; ++k, ++pointer) room->to[k] = room->memory[pointer->memory] + pointer->offset;
      code->function(0, lanes, room->from, room->to, &fault);
      break;
    }
    case kStepInPlaces:
      code->function(0, 1, (const void* const*)room->memory, (void* const*)room->memory, &fault);
      break;
    case kStepOfLanes:
      find_lanes(step, n, room);
      run_lanes(code, 0, lanes, block_of(tables, code), room->sources, room->targets, room->from, room->to,
                room->columns, &fault);
      break;
    case kStepOfRows:
      run_step_of_rows(step, lanes, n, room, &fault);
      break;
    case kStepOfProducts:
      run_step_of_products(step, n, room, &fault);
      break;
    case kStepOfCopies:
      run_step_of_copies(step, n, room);
      break;
    default:
      memset(room->memory[step->places->memory] + extent_for(step->places->offset, n), 0, (size_t)lanes);
  }
  for (k = 0; code && k < code->loops; ++k) {
    if (room->loops[k].failed) fault |= kNoMemoryLeft;
    room->loops[k].failed = 0;
  }
  return fault;
}

// Gives the faults of the first step that has any (kernels/emit.h), or −1 for a number of examples that there cannot
// be. `work`: of work_bytes_for(tables, n) bytes, anywhere. `loops`: null, or memory of most_loops loops that grows.
static inline int run_program(const ProgramTables* tables, int64_t n, const void* const* x, void* const* y, void* work,
                              LoopMemory* loops) {
  const int64_t groups = groups_for(n);
  const int64_t made = tables->memories - tables->arguments - tables->results - tables->constants;
  char* const start = (char*)work + (kAlignment - (intptr_t)((uintptr_t)work % kAlignment)) % kAlignment;
  char* of_loops;
  ProgramRoom room;
  int64_t s, k, next = 0;
  if (n < tables->fewest || n > kMostExamples || (!tables->any_number && n != 1)) return -1;
  room.memory = (char**)(void*)start;
  room.sources = (LaneSource*)(void*)(room.memory + tables->memories);
  room.targets = (LaneTarget*)(void*)(room.sources + tables->most_inputs);
  room.from = (const void**)(void*)(room.targets + tables->most_outputs);
  room.inputs = room.from + tables->most_inputs;
  room.to = (void**)(void*)(room.inputs + tables->most_inputs);
  room.outputs = room.to + tables->most_outputs;
  room.loops = (LoopMemory*)(void*)(room.outputs + tables->most_outputs);
  room.numbers = (int64_t*)(void*)(room.loops + tables->most_loops);
  room.columns = start + bytes_for_lists(tables);
  of_loops = room.columns + tables->column_bytes;
  if (loops) room.loops = loops;
  else
    for (k = 0; k < tables->most_loops; ++k, of_loops += tables->loop_bytes) {
      room.loops[k].memory = of_loops;
      room.loops[k].bytes = tables->loop_bytes;
      room.loops[k].grow = no_more_memory;
      room.loops[k].failed = 0;
    }
  for (k = 0; k < tables->arguments; ++k) room.memory[next++] = (char*)(uintptr_t)x[k];
  for (k = 0; k < tables->results; ++k) room.memory[next++] = (char*)y[k];
  for (k = 0; k < tables->constants; ++k) room.memory[next++] = (char*)(uintptr_t)tables->constant[k];
  for (k = 0; k < made; ++k) room.memory[next++] = start + extent_for(tables->made[k], groups);
  for (s = 0; s < tables->steps; ++s) {
    const uint8_t fault = run_step(tables, &tables->step[s], n, &room);
    if (fault) return fault;
  }
  return 0;
}

#ifdef __cplusplus
}  // namespace tower::compiler
#endif

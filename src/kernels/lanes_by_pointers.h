// Lanes that pointers name, and rows of them, around the machine code of one kernel; and copies of elements. For C and
// C++ alike: NOTE [One text for the process and for C] in kernels/by_pointers.h.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/lane_code.h"

#ifdef __cplusplus
namespace tower::compiler {
#endif

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
// is the kernel's as it is. `columns`: kBytesOfColumn for each lane of a block, of each input and output; the copy of
// a vector that is not whole lies in it as one of a block does, also where those before it were one block.
static inline void run_lanes(const LaneCode* code, int64_t begin, int64_t end, int64_t block, const LaneSource* inputs,
                             const LaneTarget* outputs, const void** from, void** to, char* columns, uint8_t* fault) {
  const int64_t vector = code->vector, whole = (end - begin) / vector * vector, most_copied = block;
  const LaneElement* const of_outputs = code->elements + code->inputs;
  int64_t first, i, k, together;
  if (whole > block && lie_as_lanes(code, inputs, outputs)) block = whole;
  for (first = begin; first < end; first += block) {
    const int64_t lanes = end - first < block ? end - first : block;
    const int64_t padded = (lanes + vector - 1) / vector * vector;
    char* next = columns;
    for (i = 0; i < code->inputs; i += together) {
      const int64_t bytes = code->elements[i].apart, stride = inputs[i].stride,
                    column = bytes_of_column(most_copied, bytes);
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
      next += bytes_of_column(most_copied, bytes);
    }
    code->function(0, padded, from, to, fault);
    for (i = 0; i < code->outputs; i += together) {
      const int64_t bytes = of_outputs[i].apart, stride = outputs[i].stride;
      char* target = (char*)outputs[i].memory + first * stride * bytes;
      together = 1;
      if (to[i] == (void*)target) continue;
      together = targets_in_a_row(of_outputs + i, outputs + i, code->outputs - i);
      if (together > 1)
        transpose_elements((const char*)to[i], bytes_of_column(most_copied, bytes), target, stride * bytes, bytes,
                           together, lanes);
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

#ifdef __cplusplus
}  // namespace tower::compiler
#endif

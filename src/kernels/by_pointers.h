// What runs kernels on memory that pointers name: of one kernel its lanes, wherever they lie, and of a program its
// kernels in order.
//
// NOTE [One text for the process and for C]
// This file is C99 and C++ alike. The process includes it, and a C library that compile/export_c.cpp writes has its
// text: what both do to memory around the same machine code is the same. So nothing here allocates, throws, locks, or
// knows more than the standard library of C.
//
// A program is tables. Memory is numbered: first the arguments, then the results, the constants, and what is made on
// the way, which has places in a workspace that the caller gives. How many examples there are is known when the program
// runs: what depends on it is an Extent.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
namespace tower::compiler {
#endif

// A kernel's function: kernels/emit.h says what it does with these.
typedef void LaneFunction(int64_t begin, int64_t end, const void* const* inputs, void* const* outputs, uint8_t* fault);

typedef struct LaneCode {
  LaneFunction* function;
  int64_t vector;           // lanes that it takes at a time
  int64_t inputs, outputs;  // how many
  const uint8_t* bytes;     // of an element of each input, and of each output behind these; 0: all lanes share it
} LaneCode;

// Where an input's or output's lanes are: the first one, and how many elements apart.
typedef struct LaneSource {
  const void* memory;
  int64_t stride;
} LaneSource;
typedef struct LaneTarget {
  void* memory;
  int64_t stride;
} LaneTarget;

enum { kBytesOfColumn = 8 };  // of an element, where lanes are copied

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

// Lanes `begin` to before `end`, `block` of them at a time, which is a multiple of a vector. Lanes next to each other
// are used where they are, unless the last vector is not whole; others are copied, and what is missing in the last
// vector repeats the last lane. `from` and `to`: for pointers to each input and output; what stands behind the outputs
// is the kernel's as it is. `columns`: kBytesOfColumn for each lane of a block, of each input and output.
static inline void run_lanes(const LaneCode* code, int64_t begin, int64_t end, int64_t block, const LaneSource* inputs,
                             const LaneTarget* outputs, const void** from, void** to, char* columns, uint8_t* fault) {
  const int64_t vector = code->vector, column = block * kBytesOfColumn;
  int64_t first, i;
  for (first = begin; first < end; first += block) {
    const int64_t lanes = end - first < block ? end - first : block;
    const int64_t padded = (lanes + vector - 1) / vector * vector;
    char* next = columns;
    for (i = 0; i < code->inputs; ++i) {
      const int64_t bytes = code->bytes[i], stride = inputs[i].stride;
      const char* source = (const char*)inputs[i].memory + first * stride * bytes;
      from[i] = source;
      if (bytes == 0 || (padded == lanes && (stride == 1 || lanes == 1))) continue;
      copy_lanes(source, stride, next, 1, bytes, lanes);
      copy_lanes(next + (lanes - 1) * bytes, 0, next + lanes * bytes, 1, bytes, padded - lanes);
      from[i] = next;
      next += column;
    }
    for (i = 0; i < code->outputs; ++i) {
      const int64_t bytes = code->bytes[code->inputs + i], stride = outputs[i].stride;
      to[i] = (char*)outputs[i].memory + first * stride * bytes;
      if (bytes == 0 || (padded == lanes && (stride == 1 || lanes == 1))) continue;
      to[i] = next;
      next += column;
    }
    code->function(0, padded, from, to, fault);
    for (i = 0; i < code->outputs; ++i) {
      const int64_t bytes = code->bytes[code->inputs + i], stride = outputs[i].stride;
      char* target = (char*)outputs[i].memory + first * stride * bytes;
      if (to[i] != (void*)target) copy_lanes((const char*)to[i], 1, target, stride, bytes, lanes);
    }
  }
}

// ---- programs ----

// fixed + each · n. Of places in the workspace n counts groups of kExamplesOfGroup examples, otherwise examples.
typedef struct Extent {
  int64_t fixed, each;
} Extent;

enum { kExamplesOfGroup = 64 };

static inline int64_t extent_for(Extent extent, int64_t n) { return extent.fixed + extent.each * n; }
static inline int64_t groups_for(int64_t n) { return (n + kExamplesOfGroup - 1) / kExamplesOfGroup; }

// Where the lanes of an input or output are: in the memory of this number, by bytes; and how many elements apart.
typedef struct ProgramPlace {
  int64_t memory;
  Extent offset, stride;
} ProgramPlace;

typedef struct ProgramStep {
  const LaneCode* code;  // null: lanes of an input are copied to an output
  int64_t bytes;         // of an element of these
  Extent lanes;
  const ProgramPlace* places;  // of inputs, and behind them of outputs
} ProgramStep;

typedef struct ProgramTables {
  int64_t arguments, results, constants, steps;  // how many
  const void* const* constant;
  const Extent* made;  // where what is made on the way is in the workspace
  const ProgramStep* step;
  int64_t most_inputs, most_outputs;  // of a step
  int64_t memories;                   // all of them
  int64_t column_bytes;               // for lanes that are copied; at least a vector of any step
  Extent work;                        // bytes of the workspace
  int64_t fewest, any_number;         // of examples: so many or more, or, where the other is 0, n is 1
} ProgramTables;

// In the workspace, in this order: lists of all memories, and of a step's sources, targets and pointers; columns; and
// what is made on the way.
enum { kAlignment = 64 };

static inline int64_t bytes_for_lists(const ProgramTables* tables) {
  const int64_t bytes = tables->memories * (int64_t)sizeof(char*) +
                        tables->most_inputs * (int64_t)(sizeof(LaneSource) + sizeof(void*)) +
                        tables->most_outputs * (int64_t)(sizeof(LaneTarget) + sizeof(void*));
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

static inline int64_t work_bytes_for(const ProgramTables* tables, int64_t n) {
  return extent_for(tables->work, groups_for(n > 0 ? n : 0));
}

// Gives the faults of the first step that has any (kernels/emit.h), or −1 for a number of examples that there cannot
// be. `work`: of work_bytes_for(tables, n) bytes, anywhere.
static inline int run_tables(const ProgramTables* tables, int64_t n, const void* const* x, void* const* y, void* work) {
  const int64_t groups = groups_for(n);
  const int64_t made = tables->memories - tables->arguments - tables->results - tables->constants;
  char* const start = (char*)work + (kAlignment - (intptr_t)((uintptr_t)work % kAlignment)) % kAlignment;
  char** const memory = (char**)(void*)start;
  LaneSource* const sources = (LaneSource*)(void*)(memory + tables->memories);
  LaneTarget* const targets = (LaneTarget*)(void*)(sources + tables->most_inputs);
  const void** const from = (const void**)(void*)(targets + tables->most_outputs);
  void** const to = (void**)(void*)(from + tables->most_inputs);
  char* const columns = start + bytes_for_lists(tables);
  int64_t s, k, next = 0;
  if (n < tables->fewest || (!tables->any_number && n != 1)) return -1;
  for (k = 0; k < tables->arguments; ++k) memory[next++] = (char*)(uintptr_t)x[k];
  for (k = 0; k < tables->results; ++k) memory[next++] = (char*)y[k];
  for (k = 0; k < tables->constants; ++k) memory[next++] = (char*)(uintptr_t)tables->constant[k];
  for (k = 0; k < made; ++k) memory[next++] = start + extent_for(tables->made[k], groups);
  for (s = 0; s < tables->steps; ++s) {
    const ProgramStep* const step = &tables->step[s];
    const LaneCode* const code = step->code;
    const ProgramPlace* place = step->places;
    const int64_t lanes = extent_for(step->lanes, n);
    const int64_t inputs = code ? code->inputs : 1, outputs = code ? code->outputs : 1;
    int64_t block;
    uint8_t fault = 0;
    if (lanes <= 0) continue;
    for (k = 0; k < inputs; ++k, ++place) {
      sources[k].memory = memory[place->memory] + extent_for(place->offset, n);
      sources[k].stride = extent_for(place->stride, n);
    }
    for (k = 0; k < outputs; ++k, ++place) {
      targets[k].memory = memory[place->memory] + extent_for(place->offset, n);
      targets[k].stride = extent_for(place->stride, n);
    }
    if (!code) {
      copy_lanes((const char*)sources[0].memory, sources[0].stride, (char*)targets[0].memory, targets[0].stride,
                 step->bytes, lanes);
      continue;
    }
    block = tables->column_bytes / ((inputs + outputs) * kBytesOfColumn) / code->vector * code->vector;
    run_lanes(code, 0, lanes, block, sources, targets, from, to, columns, &fault);
    if (fault) return fault;
  }
  return 0;
}

#ifdef __cplusplus
}  // namespace tower::compiler
#endif

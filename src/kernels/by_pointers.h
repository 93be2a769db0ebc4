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

#include "kernels/lanes_by_pointers.h"
#include "kernels/products_by_pointers.h"
#include "kernels/systems_by_pointers.h"

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
  kStepOfZeros,   // bytes
  kStepOfSystems  // of equations: kernels/systems_by_pointers.h
};

typedef struct ProgramStep {
  int64_t kind;
  const LaneCode* code;  // null: none is called
  int64_t bytes;         // of an element that is copied
  Extent lanes;
  const ProgramPlace* places;      // of inputs, and behind them of all that outputs are
  const ProgramPointer* pointers;  // of one lane
  int64_t dims;
  const Extent* sizes;     // of the dimensions
  const Extent* strides;   // in bytes, of each dimension for each input and output
  int64_t tasks, systems;  // of systems: what is done, and how many of the dimensions count matrices
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

static inline uint8_t run_step_of_systems(const ProgramStep* step, int64_t n, const ProgramRoom* room) {
  char* memory[kSystemOperands];
  const SystemsStep systems = {
      step->code, step->tasks, step->systems, step->dims, room->numbers, room->numbers + step->dims, memory};
  int64_t k;
  find_rows(step, kSystemOperands, n, room);
  for (k = 0; k < kSystemOperands; ++k) {
    const ProgramPlace* const place = &step->places[k];
    memory[k] = place->memory < 0 ? 0 : room->memory[place->memory] + extent_for(place->offset, n);
  }
  return run_systems(&systems, room->numbers + step->dims * (1 + kSystemOperands));
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
    case kStepOfSystems:
      fault |= run_step_of_systems(step, n, room);
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

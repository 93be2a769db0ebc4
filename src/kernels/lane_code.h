// How a kernel is called, for C and C++ alike: NOTE [One text for the process and for C] in kernels/by_pointers.h.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
namespace tower::compiler {
#endif

// A kernel's function: kernels/emit.h says what it does with these.
typedef void LaneFunction(int64_t begin, int64_t end, const void* const* inputs, void* const* outputs, uint8_t* fault);

// An input or output: bytes of an element; the same, or 0 where all lanes share one; and whether an output is added to
// what is in memory.
typedef struct LaneElement {
  uint8_t bytes, apart, added;
} LaneElement;

typedef struct LaneCode {
  LaneFunction* function;
  int64_t vector;                // lanes that it takes at a time
  int64_t inputs, outputs;       // how many
  const LaneElement* elements;   // of each input, and of each output behind these
  int64_t whole_rows, numbered;  // whether a call is for a whole row; whether lanes know their numbers
  int64_t kept, loops;           // further outputs: memory for each lane of a row, and behind it memory of loops
  int64_t walked;                // lanes of rows that it goes over by itself; 0: it does not
} LaneCode;

#ifdef __cplusplus
}  // namespace tower::compiler
#endif

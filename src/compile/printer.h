// What prints a kernel (compile/emit.h): pointers, loops over lanes, loads and stores. compile/print_loops.cpp has the
// loops that are inside of a lane.
#pragma once

#include <map>

#include "compile/lines.h"

namespace tower::compiler {

class Printer : private Lines {
 public:
  Printer(const Region& region, int64_t lanes, Math math);
  KernelText print(const std::string& name);

 private:
  std::string value(Id id, int part) const;
  void print_pointer(const std::string& prefix, const std::string& array, size_t i);
  void print_pointers();
  void print_loop(int number, int together, std::string& begin);
  std::string address(const std::string& pointer, Type type, const std::string& begin, int part);
  void print_node(Id id, const std::string& begin, int part);
  void print_store(size_t output, const std::string& begin, int part);

  // Systems of numbers.
  void print_memory();
  std::string vector_at(Id system, int64_t i);
  void print_solve(Id id);
  void print_part(Id id);

  // Loops of numbers.
  void place_nodes();
  std::set<Id> of_condition(int number) const;
  void begin_block(const std::string& name);
  void print_loop_of_numbers(int number, const std::string& begin);

  const Region& region_;
  std::vector<bool> live_;
  std::string loop_;                            // over lanes: the one that is printed
  std::vector<std::vector<Id>> inside_;         // the live nodes in no loop of numbers, and in each
  std::vector<int> depth_;                      // of none, and of each
  std::string block_;                           // the one that is printed
  std::set<std::string> printed_;               // loops of numbers
  std::map<std::string, std::string> solvers_;  // by name
};

}  // namespace tower::compiler

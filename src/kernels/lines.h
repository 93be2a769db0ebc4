// One operation of a kernel after the other as LLVM's IR: a line, or a few, on vectors of lanes. What is around them,
// loops and memory, is kernels/printer.h's affair.
#pragma once

#include <set>
#include <string>

#include "kernels/emit.h"
#include "kernels/template.h"

namespace tower::compiler {

/// The same in every lane.
std::string splat(const std::string& element, int64_t lanes);
/// A constant, as "float 0x…".
std::string literal(const Node& n);

class Lines {
 public:
  /// `prefix`: what names of values begin with that are nobody else's in what is printed.
  Lines(const Expressions& graph, int64_t lanes, Math math, std::string prefix = {});

 protected:
  std::string type(Type t) const { return vector_of(t, lanes_); }
  std::string type(Id id) const { return type(graph_[id].type); }
  std::string fresh() { return "%" + prefix_ + "t" + std::to_string(temporaries_++); }

  /// A line whose result is `result`, or a new name.
  std::string line(const std::string& what, std::string result = {});
  /// A template's lines, about vectors of `of`.
  void print(Type of, std::string_view text, const Holes& holes);
  /// The same, with a result: the hole {result}, a new name if none is given.
  std::string print_value(Type of, std::string_view text, Holes holes, std::string result = {});
  /// One number in every lane.
  std::string in_all_lanes(Type of, const std::string& one, const std::string& result = {});
  void declare(const std::string& result, const std::string& name, const std::string& parameters);
  /// An intrinsic's name for vectors of a type.
  std::string intrinsic(const std::string& name, Type operand) const {
    return "llvm." + name + ".v" + std::to_string(lanes_) + mangled(operand);
  }
  /// A call of an intrinsic, or a function, of vectors of one type.
  void print_intrinsic(const std::string& name, Type operand, const std::string* v, int arity,
                       const std::string& result);
  void print_call(const std::string& name, const std::string& type, const std::string* v, int arity,
                  const std::string& result);
  /// What a node is made of its operands `v`.
  void print_operation(const Node& n, const std::string* v, const std::string& result);

  /// Whether the mask holds for any lane.
  std::string any(const std::string& mask);
  void report(const std::string& any, Fault fault);

  const Expressions& graph_;
  const int64_t lanes_;
  const std::string prefix_;
  std::string body_;
  std::string mask_;  // the lanes that count; empty: all
  std::set<std::string> declared_;
  struct Function {
    Op op;
    Type type;
    int arity;
    auto operator<=>(const Function&) const = default;
  };
  std::set<Function> functions_;       // called that are to be defined: kernels/print_functions.h
  bool writes_functions_out_ = false;  // NOTE [Functions that are written out]

 private:
  void print_cast(Type from, Type to, const std::string& v, const std::string& result);
  void print_from_half(Type from, const std::string& v, const std::string& result);
  void print_to_half(Type to, const std::string& v, const std::string& result);
  void print_division(const Node& n, const std::string* v, const std::string& result);
  void print_function(const Node& n, const std::string* v, const std::string& result);

  const std::string permits_;  // of arithmetic on floats
  int temporaries_ = 0;
};

}  // namespace tower::compiler

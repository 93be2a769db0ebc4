// The text of a kernel with one input and one output, 16 lanes:
//
//   define void @k(i64 %begin, i64 %end, ptr %inputs, ptr %outputs, ptr %fault) #0 {
//   start:                                            ; pointers, and inputs that all lanes share
//     %pi0 = load ptr, ptr %inputs
//     %po0 = load ptr, ptr %outputs
//     br label %enter0
//   enter0:                                           ; is there a vector to do?
//     …
//   loop0:
//     %b0 = phi i64 [ %begin, %enter0 ], [ %next0, %loop0 ]
//     %x0_0 = load <16 x float>, ptr …                ; node 0 of the graph, in the first of the vectors taken together
//     %x1_0 = fmul <16 x float> %x0_0, %x0_0
//     store <16 x float> %x1_0, ptr …
//     …
//
// Where functions are called, a first loop takes four vectors at a time, operation by operation, which hides how long
// the calls take one after the other; the second loop takes what is left.
//
// NOTE [Loops in a kernel]
// A loop of numbers (compile/expression.h) is a loop of basic blocks within that: `head` computes the condition, and
// while it holds for a lane, `body` computes the next carries, which the lanes that it holds for take. Those that have
// ended go along, and keep theirs.
#include "compile/emit.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <set>

#include "compile/system.h"

namespace tower::compiler {
namespace {

constexpr int kTogether = 4;        // vectors in a turn of the first loop
constexpr int kMostTogether = 100;  // instructions for which that is worth its registers

const char* scalar(Type type) {
  constexpr const char* names[] = {"double", "float", "i64", "i32", "i1"};
  return names[static_cast<size_t>(type)];
}
const char* in_memory(Type type) { return type == Type::b1 ? "i8" : scalar(type); }
// As the names of LLVM's intrinsics have it.
const char* mangled(Type type) {
  constexpr const char* names[] = {"f64", "f32", "i64", "i32", "i1"};
  return names[static_cast<size_t>(type)];
}

std::string vector_of(const char* element, int64_t lanes) {
  return "<" + std::to_string(lanes) + " x " + element + ">";
}
std::string vector_of(Type type, int64_t lanes) { return vector_of(scalar(type), lanes); }

// The same in every lane.
std::string splat(const std::string& element, int64_t lanes) {
  std::string text = "<";
  for (int64_t i = 0; i < lanes; ++i) text += (i ? ", " : "") + element;
  return text + ">";
}

// An integer in every lane of a vector.
std::string integers(Type type, const char* value, int64_t lanes) {
  return splat(std::string(scalar(type)) + " " + value, lanes);
}

std::string literal(const Node& n) {
  char text[32];
  if (n.type == Type::b1) return n.bits ? "i1 true" : "i1 false";
  if (is_float(n.type)) {
    uint64_t bits = n.bits;
    if (n.type == Type::f32) {
      float narrow;
      std::memcpy(&narrow, &n.bits, sizeof narrow);
      const double wide = narrow;
      std::memcpy(&bits, &wide, sizeof bits);
    }
    std::snprintf(text, sizeof text, " 0x%016llX", static_cast<unsigned long long>(bits));
  } else if (n.type == Type::i64) {
    std::snprintf(text, sizeof text, " %lld", static_cast<long long>(n.bits));
  } else {
    std::snprintf(text, sizeof text, " %d", static_cast<int32_t>(static_cast<uint32_t>(n.bits)));
  }
  return scalar(n.type) + std::string(text);
}

// ---- functions ----

struct External {
  std::string name;
  int64_t lanes;  // 1: for single numbers
};

// LibTorch has Sleef inside, and exports it; what a CPU's width is not served with comes from the C library, lane by
// lane.
External find_function(Op op, Type type, int64_t lanes) {
  const std::string plain = name(op);
  const bool narrow = type == Type::f32;
  const char* accuracy = op == Op::erfc ? "u15" : op == Op::hypot ? "u05" : op == Op::fmod ? "" : "u10";
  const int64_t bytes = lanes * size_of(type) > 32 ? 64 : 32;
  const int64_t width = bytes / size_of(type);
  const std::string sleef = "Sleef_" + plain + (narrow ? "f" : "d") + std::to_string(width) + "_" + accuracy +
                            (bytes == 64 ? "avx512f" : "avx2");
  if (dlsym(RTLD_DEFAULT, sleef.c_str())) return {sleef, width};
  return {plain + (narrow ? "f" : ""), 1};
}

class Printer {
 public:
  Printer(const Region& region, int64_t lanes, Math math)
      : region_(region), graph_(region.graph), lanes_(lanes), permits_(math == Math::fast ? " contract arcp" : "") {
    live_ = graph_.needed(region.outputs);
    place_nodes();
  }

  KernelText print(const std::string& name) {
    int operations = 0;
    bool calls = false;
    for (Id id = 0; id < graph_.size(); ++id) {
      if (!live_[static_cast<size_t>(id)]) continue;
      operations += graph_[id].op != Op::constant;
      calls = calls || is_function(graph_[id].op);
    }
    operations += static_cast<int>(region_.outputs.size());

    body_ = "define void @" + name + "(i64 %begin, i64 %end, ptr %inputs, ptr %outputs, ptr %fault) #0 {\nstart:\n";
    print_pointers();
    print_memory();
    body_ += "  br label %enter0\n";
    std::string begin = "%begin";
    int loops = 0;
    if (calls && operations <= kMostTogether && inside_.size() == 1 && solvers_.empty())
      print_loop(loops++, kTogether, begin);
    print_loop(loops++, 1, begin);
    body_ += "enter" + std::to_string(loops) + ":\n  ret void\n}\n";

    std::string text;
    for (const std::string& signature : declared_) text += "declare " + signature + "\n";
    for (const auto& [solver, definition] : solvers_) text += definition;
    text += body_;
    // All of a wide vector in one register, so that it is passed in one.
    text += "attributes #0 = { nounwind \"prefer-vector-width\"=\"512\" \"min-legal-vector-width\"=\"512\" }\n";
    return {{std::move(text), name}, lanes_, operations};
  }

 private:
  std::string type(Type t) const { return vector_of(t, lanes_); }
  std::string type(Id id) const { return type(graph_[id].type); }

  std::string fresh() { return "%t" + std::to_string(temporaries_++); }

  // Names of values are the loop's own.
  std::string value(Id id, int part) const {
    const Node& n = graph_[id];
    if (n.op == Op::constant) return splat(literal(n), lanes_);
    if (n.op == Op::leave) return value(n.args[0], part);
    if (n.op == Op::input && region_.inputs[n.bits].repeated) return "%shared" + std::to_string(id);
    return "%x" + std::to_string(id) + "_" + std::to_string(part) + "_" + loop_;
  }

  // A line whose result is `result`, or a new name.
  std::string line(const std::string& what, std::string result = {}) {
    if (result.empty()) result = fresh();
    body_ += "  " + result + " = " + what + "\n";
    return result;
  }

  void declare(const std::string& result, const std::string& name, const std::string& parameters) {
    declared_.insert(result + " @" + name + "(" + parameters + ")");
  }

  void print_pointers() {
    for (size_t i = 0; i < region_.inputs.size(); ++i) print_pointer("%pi", "%inputs", i);
    for (size_t i = 0; i < region_.outputs.size(); ++i) print_pointer("%po", "%outputs", i);
    for (Id id = 0; id < graph_.size(); ++id) {
      const Node& n = graph_[id];
      if (!live_[static_cast<size_t>(id)] || n.op != Op::input || !region_.inputs[n.bits].repeated) continue;
      const std::string memory = in_memory(n.type);
      std::string one = line("load " + memory + ", ptr %pi" + std::to_string(n.bits));
      if (n.type == Type::b1) one = line("icmp ne i8 " + one + ", 0");
      const std::string first =
          line("insertelement " + type(id) + " poison, " + scalar(n.type) + " " + one + ", i32 0");
      line("shufflevector " + type(id) + " " + first + ", " + type(id) + " poison, " + vector_of("i32", lanes_) +
               " zeroinitializer",
           "%shared" + std::to_string(id));
    }
  }
  // The memory of systems, which is used again by each vector of lanes.
  void print_memory() {
    for (Id id = 0; id < graph_.size(); ++id) {
      const Node& n = graph_[id];
      if (n.op != Op::solve || !live_[static_cast<size_t>(id)]) continue;
      const auto& [size, columns, operands] = graph_.system(n);
      line("alloca [" + std::to_string(vectors_of_system(size, columns)) + " x " + type(id) + "], align 64",
           "%system" + std::to_string(id));
      const std::string name = "solve_" + std::to_string(size) + "_" + std::to_string(columns) + mangled(n.type);
      solvers_.emplace(name, print_solver(name, n.type, lanes_, size, columns));
      declare(type(id), "llvm.fabs.v" + std::to_string(lanes_) + mangled(n.type), type(id));
      declare(type(id), "llvm.fma.v" + std::to_string(lanes_) + mangled(n.type),
              type(id) + ", " + type(id) + ", " + type(id));
    }
  }
  std::string vector_at(Id system, int64_t i) {
    return line("getelementptr " + type(system) + ", ptr %system" + std::to_string(system) + ", i64 " +
                std::to_string(i));
  }
  void print_solve(Id id) {
    const Node& n = graph_[id];
    const auto& [size, columns, operands] = graph_.system(n);
    for (int64_t i = 0; i < size; ++i)
      for (int64_t j = 0; j < size + columns; ++j) {
        const Id operand =
            operands[static_cast<size_t>(j < size ? i * size + j : size * size + i * columns + j - size)];
        const std::string place = vector_at(id, i * (size + columns) + j);
        body_ += "  store " + type(id) + " " + value(operand, 0) + ", ptr " + place + ", align 8\n";
      }
    body_ += "  call void @solve_" + std::to_string(size) + "_" + std::to_string(columns) + mangled(n.type) +
             "(ptr %system" + std::to_string(id) + ")\n";
  }
  void print_part(Id id) {
    const Node& n = graph_[id];
    const auto& [size, columns, operands] = graph_.system(graph_[n.args[0]]);
    const auto k = static_cast<int64_t>(n.bits);
    const int64_t at =
        k == size * columns ? size * (size + columns) : k / columns * (size + columns) + size + k % columns;
    line("load " + type(id) + ", ptr " + vector_at(n.args[0], at) + ", align 8", value(id, 0));
  }

  void print_pointer(const std::string& prefix, const std::string& array, size_t i) {
    const std::string place = line("getelementptr ptr, ptr " + array + ", i64 " + std::to_string(i));
    line("load ptr, ptr " + place, prefix + std::to_string(i));
  }

  // A loop over `together` vectors a turn, from lane `begin` (which it sets to where it ends) for as long as it goes.
  void print_loop(int number, int together, std::string& begin) {
    const std::string n = std::to_string(number), next_enter = "enter" + std::to_string(number + 1);
    const std::string step = std::to_string(lanes_ * together);
    const std::string b = "%b" + n, next = "%next" + n;
    loop_ = n;
    // A turn ends in the block that it begins in, unless there are others within it.
    const std::string last_block = (inside_.size() == 1 ? "loop" : "done") + n;
    // Where the previous loop ended, or did not begin.
    body_ += "enter" + n + ":\n";
    if (number > 0) {
      const std::string p = std::to_string(number - 1);
      begin = line("phi i64 [ " + begin + ", %enter" + p + " ], [ %next" + p + ", %loop" + p + " ]", "%begin" + n);
    }
    const std::string last = line("sub i64 %end, " + step);
    const std::string some = line("icmp sle i64 " + begin + ", " + last);
    body_ += "  br i1 " + some + ", label %loop" + n + ", label %" + next_enter + "\nloop" + n + ":\n";
    line("phi i64 [ " + begin + ", %enter" + n + " ], [ " + next + ", %" + last_block + " ]", b);
    block_ = "loop" + n;
    for (const Id id : inside_[0])
      for (int part = 0; part < together; ++part) print_node(id, b, part);
    for (size_t i = 0; i < region_.outputs.size(); ++i)
      for (int part = 0; part < together; ++part) print_store(i, b, part);
    if (inside_.size() > 1) begin_block(last_block);
    line("add i64 " + b + ", " + step, next);
    const std::string more = line("icmp sle i64 " + next + ", " + last);
    body_ += "  br i1 " + more + ", label %loop" + n + ", label %" + next_enter + "\n";
  }

  // ---- loops of numbers ----

  // Which loop each node is in (0: none, else one more than its number), and the nodes of each, in order.
  void place_nodes() {
    inside_.resize(static_cast<size_t>(graph_.loops()) + 1);
    depth_.assign(inside_.size(), 0);
    std::vector<size_t> loop_of(static_cast<size_t>(graph_.size()), 0);
    for (int l = 0; l < graph_.loops(); ++l)
      depth_[static_cast<size_t>(l) + 1] = depth_[static_cast<size_t>(graph_.loop(l).parent + 1)] + 1;
    for (Id id = 0; id < graph_.size(); ++id) {
      if (!live_[static_cast<size_t>(id)]) continue;
      const Node& n = graph_[id];
      size_t& in = loop_of[static_cast<size_t>(id)];
      if (n.op == Op::carry) {
        in = static_cast<size_t>(Expressions::loop_of(n)) + 1;
      } else if (n.op == Op::leave) {
        in = static_cast<size_t>(graph_.loop(Expressions::loop_of(n)).parent + 1);
      } else {
        const auto needs = [&](Id a) {
          if (a != kNone && depth_[loop_of[static_cast<size_t>(a)]] > depth_[in]) in = loop_of[static_cast<size_t>(a)];
        };
        std::for_each(n.args.begin(), n.args.end(), needs);
        if (n.op == Op::solve) std::for_each(graph_.system(n).operands.begin(), graph_.system(n).operands.end(), needs);
      }
      inside_[in].push_back(id);
    }
  }

  void begin_block(const std::string& name) {
    body_ += "  br label %" + name + "\n" + name + ":\n";
    block_ = name;
  }

  // Whether it holds for a lane.
  std::string any(const std::string& mask) {
    const std::string integer = "i" + std::to_string(lanes_);
    const std::string bits = line("bitcast " + type(Type::b1) + " " + mask + " to " + integer);
    return line("icmp ne " + integer + " " + bits + ", 0");
  }

  void report(const std::string& any, Fault fault) {
    const std::string before = line("load i8, ptr %fault");
    const std::string now = line("select i1 " + any + ", i8 " + std::to_string(fault) + ", i8 0");
    body_ += "  store i8 " + line("or i8 " + before + ", " + now) + ", ptr %fault\n";
  }

  // Where it is left for the first time; what it leaves are its carries.
  void print_loop_of_numbers(int number, const std::string& begin) {
    const LoopOfNumbers& loop = graph_.loop(number);
    const std::string l = loop_ + "_" + std::to_string(number);
    if (!printed_.insert(l).second) return;
    const std::vector<Id>& nodes = inside_[static_cast<size_t>(number) + 1];
    // What the condition needs comes first.
    std::set<Id> of_condition{loop.condition};
    for (size_t k = nodes.size(); k-- > 0;) {
      if (of_condition.count(nodes[k]) == 0) continue;
      const Node& n = graph_[nodes[k]];
      if (n.op == Op::carry) continue;
      for (const Id a : n.args) of_condition.insert(a);
      if (n.op == Op::solve)
        for (const Id a : graph_.system(n).operands) of_condition.insert(a);
      if (n.op == Op::leave)  // a loop inside, and all that goes into it
        for (const Id id : nodes)
          if (id < nodes[k]) of_condition.insert(id);
    }
    const std::string before = block_;
    body_ += "  br label %head" + l + "\nhead" + l + ":\n";
    for (size_t k = 0; k < loop.carries.size(); ++k) {
      const Id id = loop.carries[k];
      if (id == kNone || !live_[static_cast<size_t>(id)]) continue;
      line("phi " + type(id) + " [ " + value(graph_[id].args[0], 0) + ", %" + before + " ], [ %after" +
               std::to_string(id) + "_" + l + ", %done" + l + " ]",
           value(id, 0));
    }
    if (loop.max_steps) line("phi i64 [ 0, %" + before + " ], [ %stepped" + l + ", %done" + l + " ]", "%steps" + l);
    block_ = "head" + l;
    const std::string outer = mask_;
    for (const Id id : nodes)
      if (of_condition.count(id)) print_node(id, begin, 0);
    const bool always = graph_.value(loop.condition) == 1;
    std::string holds = value(loop.condition, 0), go = "true", some;
    if (!always) {
      if (!outer.empty()) holds = line("and " + type(Type::b1) + " " + outer + ", " + holds);
      go = some = any(holds);
      mask_ = holds;
    }
    if (loop.max_steps) {
      const std::string left = line("icmp slt i64 %steps" + l + ", " + std::to_string(*loop.max_steps));
      go = always ? left : line("and i1 " + go + ", " + left);
    }
    body_ += "  br i1 " + go + ", label %body" + l + ", label %left" + l + "\nbody" + l + ":\n";
    block_ = "body" + l;
    for (const Id id : nodes)
      if (!of_condition.count(id)) print_node(id, begin, 0);
    begin_block("done" + l);
    for (size_t k = 0; k < loop.carries.size(); ++k) {
      const Id id = loop.carries[k];
      if (id == kNone || !live_[static_cast<size_t>(id)]) continue;
      const std::string t = type(id), next = value(loop.next[k], 0);
      const std::string condition = mask_.empty() ? splat("i1 true", lanes_) : mask_;
      line("select " + type(Type::b1) + " " + condition + ", " + t + " " + next + ", " + t + " " + value(id, 0),
           "%after" + std::to_string(id) + "_" + l);
    }
    if (loop.max_steps) line("add i64 %steps" + l + ", 1", "%stepped" + l);
    body_ += "  br label %head" + l + "\nleft" + l + ":\n";
    block_ = "left" + l;
    mask_ = outer;
    if (loop.max_steps && loop.must_end && !always) report(some, kNotEnded);
  }

  std::string address(const std::string& pointer, Type type, const std::string& begin, int part) {
    const std::string lane = part == 0 ? begin : line("add i64 " + begin + ", " + std::to_string(part * lanes_));
    return line(std::string("getelementptr ") + in_memory(type) + ", ptr " + pointer + ", i64 " + lane);
  }

  void print_store(size_t output, const std::string& begin, int part) {
    const Id id = region_.outputs[output];
    const Type t = graph_[id].type;
    std::string stored = value(id, part);
    if (t == Type::b1) stored = line("zext " + type(t) + " " + stored + " to " + vector_of("i8", lanes_));
    const std::string place = address("%po" + std::to_string(output), t, begin, part);
    if (region_.is_added(output)) {
      const std::string before = line("load " + type(t) + ", ptr " + place + ", align " + std::to_string(size_of(t)));
      stored = line("fadd " + type(t) + " " + before + ", " + stored);
    }
    body_ += "  store " + vector_of(in_memory(t), lanes_) + " " + stored + ", ptr " + place + ", align " +
             std::to_string(size_of(t)) + "\n";
  }

  void print_node(Id id, const std::string& begin, int part) {
    const Node& n = graph_[id];
    if (n.op == Op::constant || n.op == Op::carry || (n.op == Op::input && region_.inputs[n.bits].repeated)) return;
    if (n.op == Op::leave) return print_loop_of_numbers(Expressions::loop_of(n), begin);
    if (n.op == Op::solve) return print_solve(id);
    if (n.op == Op::part) return print_part(id);
    const std::string result = value(id, part);
    if (n.op == Op::input) {
      const std::string place = address("%pi" + std::to_string(n.bits), n.type, begin, part);
      const std::string memory = vector_of(in_memory(n.type), lanes_);
      const std::string load = "load " + memory + ", ptr " + place + ", align " + std::to_string(size_of(n.type));
      if (n.type != Type::b1) line(load, result);
      else line("icmp ne " + memory + " " + line(load) + ", zeroinitializer", result);
      return;
    }
    std::string v[3];
    for (size_t k = 0; k < 3; ++k)
      if (n.args[k] != kNone) v[k] = value(n.args[k], part);
    print_operation(n, v, result);
  }

  void print_operation(const Node& n, const std::string* v, const std::string& result) {
    const Type from = graph_[n.op == Op::select ? n.args[1] : n.args[0]].type;
    const std::string t = type(from);
    const bool floating = is_float(from);
    const auto binary = [&](const char* of_floats, const char* of_integers) {
      line((floating ? of_floats + permits_ : of_integers) + (" " + t) + " " + v[0] + ", " + v[1], result);
    };
    const auto compare = [&](const char* of_floats, const char* of_integers, const char* of_booleans) {
      const char* how = floating ? of_floats : from == Type::b1 ? of_booleans : of_integers;
      line((floating ? "fcmp " : "icmp ") + std::string(how) + " " + t + " " + v[0] + ", " + v[1], result);
    };
    switch (n.op) {
      case Op::add:
        return binary("fadd", "add");
      case Op::sub:
        return binary("fsub", "sub");
      case Op::mul:
        return binary("fmul", "mul");
      case Op::div:
        return binary("fdiv", nullptr);
      case Op::quotient:
      case Op::rest:
        return print_division(n, v, result);
      case Op::neg:
        line(floating ? "fneg " + t + " " + v[0] : "sub " + t + " zeroinitializer, " + v[0], result);
        return;
      case Op::abs:
        if (floating) return print_intrinsic("fabs", from, v, 1, result);
        declare(t, "llvm.abs.v" + std::to_string(lanes_) + mangled(from), t + ", i1");
        line("call " + t + " @llvm.abs.v" + std::to_string(lanes_) + mangled(from) + "(" + t + " " + v[0] +
                 ", i1 false)",
             result);
        return;
      case Op::sqrt:
        return print_intrinsic("sqrt", from, v, 1, result);
      case Op::floor:
        return print_intrinsic("floor", from, v, 1, result);
      case Op::ceil:
        return print_intrinsic("ceil", from, v, 1, result);
      case Op::trunc:
        return print_intrinsic("trunc", from, v, 1, result);
      case Op::round:
        return print_intrinsic("nearbyint", from, v, 1, result);
      case Op::copysign:
        return print_intrinsic("copysign", from, v, 2, result);
      case Op::fma:
        return print_intrinsic("fma", from, v, 3, result);
      case Op::bit_and:
        return binary(nullptr, "and");
      case Op::bit_or:
        return binary(nullptr, "or");
      case Op::bit_xor:
        return binary(nullptr, "xor");
      case Op::shift_left:
        return binary(nullptr, "shl");
      case Op::shift_right:
        return binary(nullptr, "ashr");
      case Op::eq:
        return compare("oeq", "eq", "eq");
      case Op::ne:
        return compare("une", "ne", "ne");
      case Op::lt:
        return compare("olt", "slt", "ult");
      case Op::le:
        return compare("ole", "sle", "ule");
      case Op::select:
        line("select " + type(Type::b1) + " " + v[0] + ", " + t + " " + v[1] + ", " + t + " " + v[2], result);
        return;
      case Op::cast:
        return print_cast(from, n.type, v[0], result);
      case Op::bits:
        line("bitcast " + t + " " + v[0] + " to " + type(n.type), result);
        return;
      default:
        return print_function(n, v, result);
    }
  }

  void print_intrinsic(const std::string& name, Type operand, const std::string* v, int arity,
                       const std::string& result) {
    const std::string t = type(operand), full = "llvm." + name + ".v" + std::to_string(lanes_) + mangled(operand);
    print_call(full, t, v, arity, result);
  }

  void print_call(const std::string& name, const std::string& t, const std::string* v, int arity,
                  const std::string& result) {
    std::string parameters, values;
    for (int k = 0; k < arity; ++k) {
      parameters += (k ? ", " : "") + t;
      values += (k ? ", " : "") + t + " " + v[k];
    }
    declare(t, name, parameters);
    line("call " + t + " @" + name + "(" + values + ")", result);
  }

  void print_cast(Type from, Type to, const std::string& v, const std::string& result) {
    const std::string operand = type(from) + " " + v;
    if (to == Type::b1) {
      line((is_float(from) ? "fcmp une " : "icmp ne ") + operand + ", zeroinitializer", result);
      return;
    }
    const bool widens = size_of(to) > size_of(from);
    const char* how = is_float(from)     ? (is_float(to) ? (widens ? "fpext" : "fptrunc") : "fptosi")
                      : from == Type::b1 ? (is_float(to) ? "uitofp" : "zext")
                      : is_float(to)     ? "sitofp"
                      : widens           ? "sext"
                                         : "trunc";
    line(std::string(how) + " " + operand + " to " + type(to), result);
  }

  // By zero: reported, and divided by one. The smallest number by −1 wraps around, where the CPU would stop.
  void print_division(const Node& n, const std::string* v, const std::string& result) {
    const std::string t = type(n.type), one = integers(n.type, "1", lanes_), b1 = type(Type::b1);
    const bool quotient = n.op == Op::quotient;
    const std::string how = quotient ? "sdiv " : "srem ";
    if (const auto divisor = graph_.value(n.args[1]); divisor && *divisor != 0 && *divisor != -1) {
      line(how + t + " " + v[0] + ", " + v[1], result);
      return;
    }
    const std::string by_zero = line("icmp eq " + t + " " + v[1] + ", zeroinitializer");
    const std::string by_minus = line("icmp eq " + t + " " + v[1] + ", " + integers(n.type, "-1", lanes_));
    const std::string special = line("or " + b1 + " " + by_zero + ", " + by_minus);
    const std::string safe = line("select " + b1 + " " + special + ", " + t + " " + one + ", " + t + " " + v[1]);
    const std::string divided = line(how + t + " " + v[0] + ", " + safe, quotient ? "" : result);
    if (quotient) {
      const std::string negated = line("sub " + t + " zeroinitializer, " + v[0]);
      line("select " + b1 + " " + by_minus + ", " + t + " " + negated + ", " + t + " " + divided, result);
    }
    // Not of lanes that a loop goes on without.
    report(any(mask_.empty() ? by_zero : line("and " + b1 + " " + by_zero + ", " + mask_)), kDividedByZero);
  }

  void print_function(const Node& n, const std::string* v, const std::string& result) {
    const int arity = n.args[1] == kNone ? 1 : 2;
    const External f = find_function(n.op, n.type, lanes_);
    if (f.lanes == lanes_) return print_call(f.name, type(n.type), v, arity, result);
    if (f.lanes == 1) return print_lane_by_lane(f, n.type, v, arity, result);
    // A vector of fewer lanes than the function takes, twice over.
    std::string wide[2];
    for (int k = 0; k < arity; ++k) wide[k] = print_shuffle(n.type, v[k], lanes_, f.lanes);
    const std::string called = fresh();
    print_call(f.name, vector_of(n.type, f.lanes), wide, arity, called);
    print_shuffle(n.type, called, f.lanes, lanes_, result);
  }

  std::string print_shuffle(Type t, const std::string& v, int64_t from, int64_t to, const std::string& result = {}) {
    std::string order = "<";
    for (int64_t i = 0; i < to; ++i) order += (i ? ", i32 " : "i32 ") + std::to_string(i % from);
    const std::string operand = vector_of(t, from);
    return line(
        "shufflevector " + operand + " " + v + ", " + operand + " poison, " + vector_of("i32", to) + " " + order + ">",
        result);
  }

  void print_lane_by_lane(const External& f, Type t, const std::string* v, int arity, const std::string& result) {
    std::string whole = "poison";
    for (int64_t i = 0; i < lanes_; ++i) {
      const std::string at = ", i32 " + std::to_string(i);
      std::string one[2];
      for (int k = 0; k < arity; ++k) one[k] = line("extractelement " + type(t) + " " + v[k] + at);
      const std::string called = fresh();
      print_call(f.name, scalar(t), one, arity, called);
      whole = line("insertelement " + type(t) + " " + whole + ", " + scalar(t) + " " + called + at,
                   i + 1 == lanes_ ? result : "");
    }
  }

  const Region& region_;
  const Expressions& graph_;
  const int64_t lanes_;
  const std::string permits_;  // of arithmetic on floats
  std::vector<bool> live_;
  std::string body_, loop_;
  int temporaries_ = 0;
  std::vector<std::vector<Id>> inside_;  // the live nodes in no loop of numbers, and in each
  std::vector<int> depth_;               // of none, and of each
  std::string block_;                    // the one that is printed
  std::string mask_;                     // the lanes that make a step; empty: all
  std::set<std::string> printed_;        // loops of numbers
  std::set<std::string> declared_;
  std::map<std::string, std::string> solvers_;  // by name
};

}  // namespace

KernelText print_kernel(const Region& region, const std::string& name, int64_t vector_bytes, Math math) {
  // As many lanes as fill a vector of the widest numbers.
  int64_t widest = 1;
  const std::vector<bool> live = region.graph.needed(region.outputs);
  for (Id id = 0; id < region.graph.size(); ++id)
    if (live[static_cast<size_t>(id)]) widest = std::max(widest, size_of(region.graph[id].type));
  return Printer(region, region.single ? 1 : vector_bytes / widest, math).print(name);
}

}  // namespace tower::compiler

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
//     %b0 = phi i64 [ %begin, %enter0 ], [ %next0, %done0 ]
//     %x0_0_0 = load <16 x float>, ptr …              ; node 0, in the first vector of a turn, in loop 0
//     %x1_0_0 = fmul <16 x float> %x0_0_0, %x0_0_0
//     store <16 x float> %x1_0_0, ptr …
//     …
#include "kernels/emit.h"

#include <algorithm>
#include <numeric>

#include "kernels/print_functions.h"
#include "kernels/print_systems.h"
#include "kernels/printer.h"
#include "numbers/thresholds.h"

namespace tower::compiler {
ById<Id, bool> Region::needed() const {
  std::vector<Id> roots = outputs;
  ById<Id, bool> live = graph.needed(roots);
  // What a row comes to is made after its parts.
  for (const Id id : graph.ids_backwards()) {
    const OfRow* of_row = of_row_at(graph[id]);
    if (!live[id] || !of_row || of_row->folded == kNone) continue;
    roots.push_back(of_row->folded);
    live = graph.needed(roots);
  }
  return live;
}

bool Region::can_be_placed() const {
  const auto any = [](const std::vector<bool>& of) { return std::find(of.begin(), of.end(), true) != of.end(); };
  if (has_rows() || !of_row.empty() || walked > 0 || any(added) || any(summed)) return false;
  for (const Id id : graph.ids())
    if (graph[id].op == Op::in_step || graph[id].op == Op::element) return false;
  return true;
}

namespace {

// In a kernel without rows that is left to LLVM, but for what is read; so it is where steps of loops would read it.
ById<Id, bool> same_for_all_lanes(const Region& region) {
  ById<Id, bool> same(region.graph.size());
  const bool knows = region.has_rows() || (region.walked > 0 && region.graph.loops().size() == 0);
  for (const Id id : region.graph.ids()) {
    const Node& n = region.graph[id];
    const Region::OfRow* of_row = region.of_row_at(n);
    const bool computed = knows && n.op != Op::input;
    same[id] = region.is_repeated(n) || (of_row && of_row->folded != kNone) ||
               (computed && std::all_of(n.args.begin(), n.args.end(), [&](Id a) { return a == kNone || same[a]; }));
  }
  return same;
}

}  // namespace

Printer::Printer(const Region& region, int64_t lanes, Math math) : Lines(region.graph, lanes, math), region_(region) {
  live_ = region.needed();
  once_ = same_for_all_lanes(region);
  plan_stacks();
  place_nodes();
  plan_kept();
  writes_functions_out_ = has_few_functions();
  if (region.has_rows()) plan_rows();
  many_ = region.inputs.size() + region.outputs.size() + kept_.size() > static_cast<size_t>(thresholds().few_accesses);
  reads_late_ = region.placed && many_ && inside_.size() == 1;
  if (!region.has_rows()) plan_stretches();
}

// NOTE [Functions that are written out]
bool Printer::has_few_functions() const {
  std::map<std::pair<Op, Type>, int64_t> known;
  int64_t operations = 0;
  for (const Id id : graph_.ids()) {
    const Node& n = graph_[id];
    if (!live_[id] || !is_function(n.op)) continue;
    const auto [found, is_new] = known.try_emplace({n.op, n.type}, 0);
    if (is_new) found->second = operations_of_function(n.op, n.type).value_or(0);
    operations += found->second;
    if (operations > thresholds().most_of_formulas) return false;
  }
  return true;
}

KernelText Printer::kernel(const std::string& name) {
  int operations = 0;
  for (const Id id : graph_.ids()) operations += live_[id] && graph_[id].op != Op::constant;
  operations += static_cast<int>(region_.outputs.size() - in_steps_.size());

  print(Type::b1, R"(
define void @{name}(i64 %begin, i64 %end, ptr %inputs, ptr %outputs, ptr %fault) #0 {
start:
)",
        {{"name", name}});
  print_memory();
  print_memory_of_loops();
  if (region_.walked > 0) {
    print_walk();
  } else {
    print_pointers();
    if (region_.has_rows()) print_rows();
    else if (region_.placed) print_loop_in_places();
    else print_loop();
  }

  Definitions definitions = solvers_;
  for (const auto& [op, type, arity] : functions_) define_function(op, type, arity, lanes_, definitions, declared_);
  std::string text;
  for (const std::string& signature : declared_) text += "declare " + signature + "\n";
  for (const auto& [function, definition] : definitions) text += definition;
  text += body_;
  // All of a wide vector in one register, so that it is passed in one.
  text += "attributes #0 = { nounwind \"prefer-vector-width\"=\"512\" \"min-legal-vector-width\"=\"512\" }\n";
  std::vector<Type> kept;
  for (const Id id : kept_) kept.push_back(graph_[id].type);
  std::vector<LoopRoom> rooms;
  for (const auto& [loop, states] : keeps_) rooms.push_back({states.bytes, graph_.loop(loop).max_steps});
  return {{std::move(text), name}, lanes_, operations, work(), std::move(kept), std::move(rooms)};
}

// Names of values are the loop's own.
std::string Printer::value(Id id, int part) const {
  const Node& n = graph_[id];
  if (n.op == Op::constant) return splat(literal(n), lanes_);
  if (n.op == Op::leave || n.op == Op::after) return value(n.args[0], part);
  if (const auto holds = known(id)) return splat(*holds ? "i1 true" : "i1 false", lanes_);
  if (region_.is_looked_up(n) && known(n.args[1]) == false) return "zeroinitializer";
  if (once_[id]) return "%shared" + to_string(id);
  return "%x" + to_string(id) + "_" + std::to_string(part) + "_" + loop_;
}

std::set<uint64_t> Printer::inputs_read() const {
  std::set<uint64_t> read;
  for (const Id id : graph_.ids())
    if (const Node& n = graph_[id]; n.op == Op::input && live_[id] && n.bits < Region::kOfRow) read.insert(n.bits);
  return read;
}

void Printer::print_pointers() {
  if (region_.placed) print_memories();
  for (const uint64_t i : inputs_read()) {
    keep_block_short();
    if (!many_ || region_.inputs[i].repeated) print_pointer("%pi", "%inputs", i);
  }
  for (size_t i = 0; i < region_.outputs.size() + kept_.size(); ++i)
    if (!many_) print_pointer("%po", "%outputs", i);
  for (const Id id : graph_.ids()) {
    const Node& n = graph_[id];
    if (!live_[id] || !region_.is_repeated(n) || reads_late_) continue;
    keep_block_short();
    load_for_all(n.type, "%pi" + std::to_string(n.bits), "%shared" + to_string(id));
  }
}

// One element, for all lanes.
void Printer::load_for_all(Type t, const std::string& pointer, const std::string& result) {
  std::string one = line(std::string("load ") + in_memory(t) + ", ptr " + pointer);
  if (t == Type::b1) one = line("icmp ne i8 " + one + ", 0");
  in_all_lanes(t, one, result);
}

// The memory of systems, which is used again by each vector of lanes.
void Printer::print_memory() {
  for (const Id id : graph_.ids()) {
    const Node& n = graph_[id];
    if (n.op != Op::solve || !live_[id]) continue;
    const auto& [size, columns, operands] = graph_.system(n);
    const std::string name = solver_of(n), t = type(id);
    print(n.type, "  %system{id} = alloca [{vectors} x {V}], align 64\n",
          {{"id", to_string(id)}, {"vectors", std::to_string(vectors_of_system(size, columns))}});
    solvers_.emplace(name, print_solver(name, n.type, lanes_, size, columns));
    declare(t, intrinsic("fabs", n.type), t);
    declare(t, intrinsic("fma", n.type), t + ", " + t + ", " + t);
  }
}

std::string Printer::solver_of(const Node& n) const {
  const auto& [size, columns, operands] = graph_.system(n);
  return "solve_" + std::to_string(size) + "_" + std::to_string(columns) + mangled(n.type);
}

std::string Printer::vector_at(Id system, int64_t i) {
  return print_value(graph_[system].type, "  {result} = getelementptr {V}, ptr %system{id}, i64 {i}\n",
                     {{"id", to_string(system)}, {"i", std::to_string(i)}});
}

void Printer::print_solve(Id id) {
  const Node& n = graph_[id];
  const auto& [size, columns, operands] = graph_.system(n);
  for (int64_t i = 0; i < size; ++i)
    for (int64_t j = 0; j < size + columns; ++j) {
      const Id operand = operands[static_cast<size_t>(j < size ? i * size + j : size * size + i * columns + j - size)];
      print(n.type, "  store {V} {v}, ptr {place}, align 8\n",
            {{"v", value(operand, 0)}, {"place", vector_at(id, i * (size + columns) + j)}});
    }
  print(n.type, "  call void @{solver}(ptr %system{id})\n", {{"solver", solver_of(n)}, {"id", to_string(id)}});
}

void Printer::print_part(Id id) {
  const Node& n = graph_[id];
  const auto& [size, columns, operands] = graph_.system(graph_[n.args[0]]);
  const auto k = static_cast<int64_t>(n.bits);
  const int64_t at =
      k == size * columns ? size * (size + columns) : k / columns * (size + columns) + size + k % columns;
  line("load " + type(id) + ", ptr " + vector_at(n.args[0], at) + ", align 8", value(id, 0));
}

void Printer::print_pointer(const std::string& prefix, const std::string& array, size_t i) {
  if (region_.placed) {
    line(in_place(array, i), prefix + std::to_string(i));
    return;
  }
  print(Type::b1, R"(
  %place~ = getelementptr ptr, ptr {array}, i64 {i}
  {prefix}{i} = load ptr, ptr %place~
)",
        {{"array", array}, {"prefix", prefix}, {"i", std::to_string(i)}});
}

// A vector a turn.
void Printer::print_loop() {
  std::vector<size_t> all;
  for (size_t i = 0; i < region_.outputs.size(); ++i)
    if (!in_steps_.count(i)) all.push_back(i);
  if (!stretches_.empty()) return print_loops_of_stretches(all);
  loop_ = "0";
  const Holes holes = {
      {"step", std::to_string(lanes_)}, {"begin", region_.walked > 0 ? "0" : "%begin"}, {"end", end()}};
  print(Type::b1, R"(
  br label %enter0
enter0:
  %last0 = sub i64 {end}, {step}
  %some0 = icmp sle i64 {begin}, %last0
  br i1 %some0, label %loop0, label %enter1
loop0:
  %b0 = phi i64 [ {begin}, %enter0 ], [ %next0, %done0 ]
)",
        holes);
  block_ = "loop0";
  block_at_ = body_.size();
  std::vector<Id> nodes = inside_[0];
  std::erase_if(nodes, [&](Id id) { return once_[id]; });
  print_turn(nodes, all, "%b0", 1);
  begin_block("done0");
  print(Type::b1, R"(
  %next0 = add i64 %b0, {step}
  %more0 = icmp sle i64 %next0, %last0
  br i1 %more0, label %loop0, label %enter1
enter1:
)",
        holes);
  if (region_.walked == 0) body_ += "  ret void\n}\n";
}

std::string Printer::pointer_of(const std::string& array, const std::string& prefix, size_t i) {
  if (!many_ || region_.walked > 0) return prefix + std::to_string(i);
  if (region_.placed) return line(in_place(array, i));
  return line("load ptr, ptr " + line("getelementptr ptr, ptr " + array + ", i64 " + std::to_string(i)));
}

// NOTE [Many loads and stores]
// To LLVM any store may be to what any load reads. Its scheduler compares each with all before it, and what is computed
// early and stored at the end goes to the stack meanwhile: a kernel that keeps 3,000 values for the way back took 7 s.
// So where there are many, a value is stored where it is made (results are nobody's memory before), pointers are read
// where they are used, and fences of one thread, which are no instruction, tell LLVM that what is before them stays
// there.
void Printer::print_turn(const std::vector<Id>& nodes, const std::vector<size_t>& written, const std::string& begin,
                         int together) {
  std::map<Id, std::vector<size_t>> stored_with;
  std::vector<size_t> stored_last;
  for (const size_t i : written) {
    const bool early = many_ && !region_.is_added(i) && !region_.is_summed(i);
    (early ? stored_with[region_.outputs[i]] : stored_last).push_back(i);
  }
  // Behind the outputs comes what the row's other passes read.
  std::set<Id> here(nodes.begin(), nodes.end());
  for (size_t k = 0; k < kept_.size(); ++k) {
    if (here.count(kept_[k]) == 0 || in_memory_.count(kept_[k])) continue;
    (many_ ? stored_with[kept_[k]] : stored_last).push_back(region_.outputs.size() + k);
  }
  size_t accesses = 0;
  const auto count = [&](size_t more) {
    accesses += more;
    if (!many_ || accesses < static_cast<size_t>(thresholds().few_accesses)) return;
    body_ += "  fence syncscope(\"singlethread\") seq_cst\n";
    accesses = 0;
  };
  const auto print_stores = [&](const std::vector<size_t>& outputs) {
    for (const size_t i : outputs)
      for (int part = 0; part < together; ++part) {
        keep_block_short();
        if (i < region_.outputs.size()) {
          print_store(i, begin, part);
          continue;
        }
        const size_t k = i - region_.outputs.size();
        store(graph_[kept_[k]].type, value(kept_[k], part), pointer_of_kept(k), begin, part);
      }
    count(outputs.size());
  };
  for (const Id id : nodes) {
    for (int part = 0; part < together; ++part) print_node(id, begin, part);
    if (graph_[id].op == Op::input || in_memory_.count(id)) count(1);
    if (const auto stored = stored_with.extract(id)) print_stores(stored.mapped());
  }
  for (const auto& [id, outputs] : stored_with) print_stores(outputs);
  print_stores(stored_last);
}

std::string Printer::address(const std::string& pointer, Type type, const std::string& begin, int part) {
  const std::string lane = part == 0 ? begin : line("add i64 " + begin + ", " + std::to_string(part * lanes_));
  return line(std::string("getelementptr ") + in_memory(type) + ", ptr " + pointer + ", i64 " + lane);
}

Holes Printer::holes_of_access(const char* what, Type t, const std::string& pointer, const std::string& begin,
                               int part) {
  const std::string lanes = std::to_string(lanes_) + (t == Type::b1 ? in_memory(t) : mangled(t));
  return {{"place", address(pointer, t, begin, part)},
          {"align", std::to_string(size_of(t))},
          {"masked", std::string("llvm.masked.") + what + ".v" + lanes + ".p0"},
          {"mask", mask_}};
}

void Printer::load(Type t, const std::string& pointer, const std::string& begin, int part, const std::string& result) {
  const std::string memory = vector_of(in_memory(t), lanes_), read = t == Type::b1 ? fresh() : result;
  Holes holes = holes_of_access("load", t, pointer, begin, part);
  if (masked_) declare(memory, filled("{masked}", holes), "ptr, i32, " + type(Type::b1) + ", " + memory);
  holes.emplace_back("read", read);
  print(t,
        masked_ ? "  {read} = call {memory} @{masked}(ptr {place}, i32 {align}, {B} {mask}, {memory} zeroinitializer)\n"
                : "  {read} = load {memory}, ptr {place}, align {align}\n",
        holes);
  if (t == Type::b1) line("icmp ne " + memory + " " + read + ", zeroinitializer", result);
}

void Printer::store(Type t, std::string v, const std::string& pointer, const std::string& begin, int part) {
  const std::string memory = vector_of(in_memory(t), lanes_);
  if (t == Type::b1) v = line("zext " + type(t) + " " + v + " to " + memory);
  Holes holes = holes_of_access("store", t, pointer, begin, part);
  if (masked_) declare("void", filled("{masked}", holes), memory + ", ptr, i32, " + type(Type::b1));
  holes.emplace_back("v", v);
  print(t,
        masked_ ? "  call void @{masked}({memory} {v}, ptr {place}, i32 {align}, {B} {mask})\n"
                : "  store {memory} {v}, ptr {place}, align {align}\n",
        holes);
}

void Printer::print_store(size_t output, const std::string& begin, int part) {
  const Type t = graph_[region_.outputs[output]].type;
  const std::string pointer = pointer_of("%outputs", "%po", output);
  std::string stored = value(region_.outputs[output], part);
  if (region_.is_summed(output)) return print_sum(t, stored, pointer);
  if (region_.is_added(output)) {
    const std::string before = fresh();
    load(t, pointer, begin, part, before);
    stored = line("fadd " + type(t) + " " + before + ", " + stored);
  }
  if (region_.placed) return store_in_place(t, stored, pointer, begin, place_of("%outputs", output));
  store(t, stored, pointer, begin, part);
}

// Adds a vector to the one that is in memory, in double precision.
void Printer::print_sum(Type t, std::string v, const std::string& pointer) {
  if (t != Type::f64) v = line("fpext " + type(t) + " " + v + " to " + type(Type::f64));
  const std::string before = fresh();
  load(Type::f64, pointer, "0", 0, before);
  store(Type::f64, line("fadd " + type(Type::f64) + " " + before + ", " + v), pointer, "0", 0);
}

// Whether it is made of what is the same for all lanes.
bool Printer::is_for_all(Id id) const {
  const Node& n = graph_[id];
  if (n.op == Op::constant || region_.is_repeated(n)) return true;
  return n.op != Op::input && n.op < Op::carry &&
         std::all_of(n.args.begin(), n.args.end(), [&](Id a) { return a == kNone || is_for_all(a); });
}

// Whether it is the lane's number.
bool Printer::is_place(Id id) const {
  const Node& n = graph_[id];
  if (n.op == Op::cast) return n.type == Type::i64 && graph_[n.args[0]].type == Type::i32 && is_place(n.args[0]);
  const Region::OfRow* of_row = region_.of_row_at(n);
  return of_row && of_row->how == Region::OfRow::place;
}

// Places that follow each other, one for each lane.
std::optional<Printer::Straight> Printer::straight(Id place) const {
  if (is_place(place)) return Straight{kNone, false};
  const Node& n = graph_[place];
  if (n.op == Op::add)
    for (const size_t k : {0, 1})
      if (is_place(n.args[k]) && is_for_all(n.args[1 - k])) return Straight{n.args[1 - k], false};
  if (n.op == Op::sub && is_place(n.args[1]) && is_for_all(n.args[0])) return Straight{n.args[0], true};
  return std::nullopt;
}

// They are read as they lie, in lanes where the look-up holds; backwards from the last lane's on, and turned round.
// Where it holds for none, the table's beginning is not read: masked loads of what is in no memory take the CPU
// microseconds.
void Printer::print_straight(Id id, Straight from, const std::string& begin, int part) {
  const Node& n = graph_[id];
  std::string first = "0";
  if (from.first != kNone) {
    const Type t = graph_[from.first].type;
    first = line("extractelement " + type(t) + " " + value(from.first, part) + ", i32 0");
    if (t == Type::i32) first = line("sext i32 " + first + " to i64");
  }
  masked_ = !known(n.args[1]);
  if (masked_) mask_ = value(n.args[1], part);
  const std::string lane =
      line("add i64 " + begin + ", " + std::to_string(from.backwards ? (part + 1) * lanes_ - 1 : part * lanes_));
  const std::string place = line((from.backwards ? "sub i64 " : "add i64 ") + first + ", " + lane);
  const std::string there = masked_ ? line("select i1 " + any(mask_) + ", i64 " + place + ", i64 0") : place,
                    pointer = "%pi" + std::to_string(n.bits);
  if (!from.backwards) {
    load(n.type, address(pointer, n.type, there, 0), "0", 0, value(id, part));
  } else {
    std::string turned;
    for (int64_t i = lanes_; i-- > 0;) turned += "i32 " + std::to_string(i) + (i ? ", " : "");
    const auto turn = [&](Type t, const std::string& v, const std::string& result = {}) {
      return print_value(t, "  {result} = shufflevector {V} {v}, {V} poison, {S} <{turned}>\n",
                         {{"v", v}, {"turned", turned}}, result);
    };
    if (masked_) mask_ = turn(Type::b1, mask_);
    const std::string read = fresh();
    load(n.type, address(pointer, n.type, there, 0), "0", 0, read);
    turn(n.type, read, value(id, part));
  }
  mask_.clear();
  masked_ = false;
}

// What is not in the table is not read.
void Printer::print_look_up(Id id, const std::string& begin, int part) {
  const Node& n = graph_[id];
  if (known(n.args[1]) == false) return;
  if (!masked_)
    if (const auto from = straight(n.args[0])) return print_straight(id, *from, begin, part);
  const std::string lanes = std::to_string(lanes_), places = type(n.args[0]), holds = value(n.args[1], part),
                    pointers = "<" + lanes + " x ptr>";
  const std::string at = line(std::string("getelementptr ") + in_memory(n.type) + ", ptr %pi" + std::to_string(n.bits) +
                              ", " + places + " " + value(n.args[0], part));
  const std::string gather = "llvm.masked.gather.v" + lanes + mangled(n.type) + ".v" + lanes + "p0";
  declare(type(id), gather, pointers + ", i32, " + type(Type::b1) + ", " + type(id));
  line("call " + type(id) + " @" + gather + "(" + pointers + " " + at + ", i32 " + std::to_string(size_of(n.type)) +
           ", " + type(Type::b1) + " " + holds + ", " + type(id) + " zeroinitializer)",
       value(id, part));
}

void Printer::print_node(Id id, const std::string& begin, int part) {
  keep_block_short();
  const Node& n = graph_[id];
  if (reads_late_ && region_.is_repeated(n))
    return load_for_all(n.type, pointer_of("%inputs", "%pi", n.bits), value(id, part));
  if (n.op == Op::constant || n.op == Op::carry || n.op == Op::in_step || n.op == Op::after || region_.is_repeated(n) ||
      known(id))
    return;
  if (n.op == Op::leave) return print_loop_of_numbers(Expressions::loop_of(n), begin);
  if (n.op == Op::solve) return print_solve(id);
  if (n.op == Op::part) return print_part(id);
  if (n.op == Op::kept) return print_kept(id);
  if (n.op == Op::element) return print_element(id, begin);
  if (in_memory_.count(id)) {
    const auto k = static_cast<size_t>(std::find(kept_.begin(), kept_.end(), id) - kept_.begin());
    return load(n.type, pointer_of_kept(k), begin, part, value(id, part));
  }
  if (const Region::OfRow* of_row = region_.of_row_at(n)) {
    if (of_row->how == Region::OfRow::place) print_place(id, begin, part);
    return;
  }
  if (region_.is_looked_up(n)) return print_look_up(id, begin, part);
  if (n.op == Op::input) {
    const std::string pointer = pointer_of("%inputs", "%pi", n.bits);
    if (region_.placed) return load_in_place(n.type, pointer, begin, place_of("%inputs", n.bits), value(id, part));
    return load(n.type, pointer, begin, part, value(id, part));
  }
  std::string v[3];
  for (size_t k = 0; k < 3; ++k)
    if (n.args[k] != kNone) v[k] = value(n.args[k], part);
  print_operation(n, v, value(id, part));
}

bool walks_rows_of(int64_t lanes) {
  constexpr int64_t kFewLanes = 4;
  return lanes % kFewLanes == 0 && lanes <= thresholds().longest_walked_row;
}

KernelText print_kernel(const Region& region, const std::string& name, int64_t vector_bytes, Math math) {
  // As many lanes as fill a vector of the widest numbers; of rows that are walked, whole vectors.
  int64_t widest = 1;
  const ById<Id, bool> live = region.needed(), same = same_for_all_lanes(region);
  const bool knows = region.has_rows() || region.walked > 0;
  for (const Id id : region.graph.ids())
    if (live[id] && !(knows && same[id])) widest = std::max(widest, size_of(region.graph[id].type));
  const int64_t lanes = vector_bytes / widest;
  return Printer(region,
                 region.single       ? 1
                 : region.walked > 0 ? std::gcd(lanes, region.walked)
                                     : lanes,
                 math)
      .kernel(name);
}

}  // namespace tower::compiler

// NOTE [Rows in a kernel]
// Where what all lanes of a row add up to is needed in a lane again (the greatest element, say, before the sum of
// exponentials), the kernel makes several passes over the row, from its first lane on, whatever their number:
//
//   loopm0:     four vectors a turn, each with accumulators of its own
//   looprest0:  what is left, a vector a turn: its lanes beyond the row are neither read nor written
//   done0:      accumulators into one, and the lanes of that; then what is computed once for the row
//   loopm1: …
//
// A pass computes what it needs anew from memory, but for functions: their values are kept for the passes that follow.
//
// Sums of floats go through blocks: every 16 turns, accumulators are added to those of the next level, 16 of which go
// to the next, for as many levels as the row is long. So the error grows with the logarithm of the row's length, as it
// does in LibTorch's sums.
#include <algorithm>

#include "kernels/printer.h"
#include "numbers/thresholds.h"

namespace tower::compiler {
namespace {

std::string identity(Region::OfRow::How how, Type type) {
  const bool floating = is_float(type);
  const auto of = [&](const char* float_text, const char* i64, const char* i32, const char* b1) {
    return std::string(scalar(type)) + " " +
           (floating            ? float_text
            : type == Type::i64 ? i64
            : type == Type::i32 ? i32
                                : b1);
  };
  switch (how) {
    case Region::OfRow::sum:
      return of("0.0", "0", "0", "false");
    case Region::OfRow::product:
      return of("1.0", "1", "1", "true");
    case Region::OfRow::greatest:
      return of("0xFFF0000000000000", "-9223372036854775808", "-2147483648", "false");
    default:
      return of("0x7FF0000000000000", "9223372036854775807", "2147483647", "true");
  }
}

// An accumulator of a pass: sum, as a turn finds it; added, with the turn's lanes; kept, as the next turn finds it,
// which is none where a block ends; all, behind the turns; rest and next, the same of the lanes that are left.
std::string accumulator(const std::string& pass, const char* set, Id fold, int part = 0) {
  return std::string("%") + set + pass + "_" + to_string(fold) + "_" + std::to_string(part);
}

}  // namespace

// ---- what is computed when ----

void Printer::plan_rows() {
  ById<Id, size_t> stage(graph_.size(), 0);
  for (const Id id : graph_.ids()) {
    const Node& n = graph_[id];
    if (!live_[id]) continue;
    const Region::OfRow* of_row = region_.of_row_at(n);
    if (of_row && of_row->folded != kNone) stage[id] = stage[of_row->folded] + 1;
    for (const Id a : n.args)
      if (a != kNone) stage[id] = std::max(stage[id], stage[a]);
  }
  const size_t last = *std::max_element(stage.begin(), stage.end());
  passes_.resize(last + 1);
  ById<Id, bool> computed(graph_.size());
  for (size_t s = 0; s <= last; ++s) {
    Pass& pass = passes_[s];
    ById<Id, bool> wanted(graph_.size());
    const auto want = [&](Id id) { wanted[id] = true; };
    for (const Id id : graph_.ids()) {
      const Region::OfRow* of_row = region_.of_row_at(graph_[id]);
      if (!live_[id]) continue;
      if (of_row && of_row->folded != kNone && stage[id] == s + 1) {
        pass.folds.push_back(id);
        want(of_row->folded);
      }
      if (once_[id] && stage[id] == s && graph_[id].op != Op::input && graph_[id].op != Op::constant)
        pass.of_row.push_back(id);
    }
    for (size_t k = 0; k < region_.outputs.size(); ++k) {
      if (region_.is_once(k) || stage[region_.outputs[k]] != s) continue;
      pass.outputs.push_back(k);
      want(region_.outputs[k]);
    }
    for (const Id id : graph_.ids_backwards()) {
      if (!wanted[id] || once_[id]) continue;
      pass.nodes.push_back(id);
      if (is_function(graph_[id].op) && computed[id]) {
        if (std::find(kept_.begin(), kept_.end(), id) == kept_.end()) kept_.push_back(id);
        continue;
      }
      computed[id] = true;
      for (const Id a : graph_[id].args)
        if (a != kNone) want(a);
    }
    std::reverse(pass.nodes.begin(), pass.nodes.end());
  }
}

// ---- accumulators ----

std::string Printer::both(Region::OfRow::How how, Type of, const std::string& a, const std::string& b,
                          const std::string& result) {
  const std::string t = type(of), operands = " " + t + " " + a + ", " + b;
  const bool floating = is_float(of);
  if (how == Region::OfRow::sum) return line((floating ? "fadd" : "add") + operands, result);
  if (how == Region::OfRow::product) return line((floating ? "fmul" : "mul") + operands, result);
  const bool greatest = how == Region::OfRow::greatest;
  if (of == Type::b1) return line((greatest ? "or" : "and") + operands, result);
  const std::string with = t + " " + b + ", ";
  std::string better = line((floating ? "fcmp o" : "icmp s") + std::string(greatest ? "gt " : "lt ") + with + a);
  // NaN is the greatest and the least.
  if (floating) better = line("or " + type(Type::b1) + " " + better + ", " + line("fcmp uno " + with + b));
  return line("select " + type(Type::b1) + " " + better + ", " + with + t + " " + a, result);
}

// Folds the lanes of a vector into one number, which every lane of the result is.
void Printer::across(Region::OfRow::How how, Type of, std::string v, const std::string& result) {
  for (int64_t apart = lanes_ / 2; apart > 0; apart /= 2) {
    std::string order;
    for (int64_t i = 0; i < lanes_; ++i) order += (i ? ", i32 " : "i32 ") + std::to_string(i ^ apart);
    const std::string other = print_value(of, "  {result} = shufflevector {V} {v}, {V} poison, {S} <{order}>\n",
                                          {{"v", v}, {"order", order}});
    v = both(how, of, v, other, apart == 1 ? result : "");
  }
}

std::string Printer::none(Id fold) const { return splat(identity(how(fold), graph_[fold].type), lanes_); }

std::string Printer::level(Id fold, int number) { return "%blocks" + to_string(fold) + "_" + std::to_string(number); }
std::string Printer::load_level(Id fold, int number) {
  return line("load " + type(fold) + ", ptr " + level(fold, number) + ", align 64");
}
void Printer::store_level(Id fold, int number, const std::string& v) {
  print(graph_[fold].type, "  store {V} {v}, ptr {level}, align 64\n", {{"v", v}, {"level", level(fold, number)}});
}

// ---- printing ----

void Printer::print_rows() {
  for (const Id id : graph_.ids()) {
    if (!is_in_blocks(id)) continue;
    for (int l = 0; l < region_.levels; ++l) {
      line("alloca " + type(id) + ", align 64", level(id, l));
      store_level(id, l, "zeroinitializer");
    }
  }
  block_ = region_.walked > 0 ? "rows" : "start";
  for (size_t number = 0; number < passes_.size(); ++number) {
    Pass& pass = passes_[number];
    pass.number = std::to_string(number);
    for (const Id id : pass.of_row) print_node(id, "", 0);
    if (!pass.folds.empty() || !pass.outputs.empty()) print_pass(pass);
  }
  for (size_t k = 0; k < region_.outputs.size(); ++k) {
    if (!region_.is_once(k)) continue;
    const Type t = graph_[region_.outputs[k]].type;
    std::string one = line("extractelement " + type(t) + " " + value(region_.outputs[k], 0) + ", i32 0");
    if (t == Type::b1) one = line("zext i1 " + one + " to i8");
    const std::string pointer = pointer_of("%outputs", "%po", k);
    body_ += std::string("  store ") + in_memory(t) + " " + one + ", ptr " + pointer + "\n";
  }
  if (region_.walked == 0) body_ += "  ret void\n}\n";
}

bool Printer::is_in_blocks(Id id) const {
  const Region::OfRow* of_row = region_.of_row_at(graph_[id]);
  return of_row && live_[id] && of_row->how == Region::OfRow::sum && is_float(graph_[id].type);
}

Holes Printer::holes(const Pass& pass, const Holes& more) const {
  Holes all = {
      {"n", pass.number}, {"before", pass.before}, {"step", std::to_string(lanes_ * pass.together)}, {"end", end()}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

void Printer::label(const Pass& pass, const std::string& name) {
  block_ = name + pass.number;
  print(Type::b1, "{block}:\n", {{"block", block_}});
}

void Printer::print_pass(Pass& pass) {
  const Thresholds& limits = thresholds();
  const bool few = static_cast<int64_t>(pass.nodes.size()) <= limits.most_together;
  pass.together = few ? static_cast<int>(limits.together) : 1;
  // Rows that are walked are whole turns, if that can be: the vectors of a rest cost more.
  while (pass.together > 1 && region_.walked % (lanes_ * pass.together) != 0) pass.together /= 2;
  pass.before = block_;
  pass.has_blocks =
      region_.levels > 0 && std::any_of(pass.folds.begin(), pass.folds.end(), [&](Id id) { return is_in_blocks(id); });
  print_turns(pass);
  std::map<Id, std::string> whole;
  for (const Id id : pass.folds) whole[id] = one_of(pass, "all", id);
  print_rest(pass, whole);
  print_ends(pass, whole);
  for (const Id id : pass.nodes)
    if (std::find(kept_.begin(), kept_.end(), id) != kept_.end()) in_memory_.insert(id);
}

// The whole turns, each of `together` vectors.
void Printer::print_turns(const Pass& pass) {
  const std::string& n = pass.number;
  print(Type::b1, R"(
  %last{n} = sub i64 {end}, {step}
  %some{n} = icmp sge i64 %last{n}, 0
  br i1 %some{n}, label %loop{n}, label %after{n}
)",
        holes(pass));
  const auto carry = [&](const char* set) {
    for (const Id id : pass.folds)
      for (int part = 0; part < pass.together; ++part)
        print(graph_[id].type, "  {here} = phi {V} [ {none}, %{before} ], [ {kept}, %turned{n} ]\n",
              holes(pass, {{"here", accumulator(n, set, id, part)},
                           {"none", none(id)},
                           {"kept", accumulator(n, "kept", id, part)}}));
  };
  label(pass, "loop");
  print(Type::b1, "  %b{n} = phi i64 [ 0, %{before} ], [ %next{n}, %turned{n} ]\n", holes(pass));
  carry("sum");
  loop_ = "m" + n;
  print_turn(pass.nodes, pass.outputs, "%b" + n, pass.together);
  for (const Id id : pass.folds)
    for (int part = 0; part < pass.together; ++part)
      both(how(id), graph_[id].type, accumulator(n, "sum", id, part), value(folded(id), part),
           accumulator(n, "added", id, part));
  print(Type::b1, "  %next{n} = add i64 %b{n}, {step}\n", holes(pass));
  if (pass.has_blocks) print_blocks(pass);
  else print(Type::b1, "  br label %turned{n}\n", holes(pass));

  label(pass, "turned");
  for (const Id id : pass.folds)
    for (int part = 0; part < pass.together; ++part) {
      const std::string added = accumulator(n, "added", id, part);
      std::string from = "[ " + added + ", %loop" + n + " ]";
      for (int l = 0; pass.has_blocks && l < region_.levels; ++l)
        from += ", [ " + (is_in_blocks(id) ? none(id) : added) + ", %level" + std::to_string(l) + "_" + n + " ]";
      line("phi " + type(id) + " " + from, accumulator(n, "kept", id, part));
    }
  print(Type::b1, R"(
  %more{n} = icmp sle i64 %next{n}, %last{n}
  br i1 %more{n}, label %loop{n}, label %after{n}
)",
        holes(pass));

  label(pass, "after");
  print(Type::b1, "  %left{n} = phi i64 [ 0, %{before} ], [ %next{n}, %turned{n} ]\n", holes(pass));
  carry("all");
}

// What a turn's vectors come to, added up as a tree.
std::string Printer::one_of(const Pass& pass, const char* set, Id fold) {
  std::vector<std::string> parts;
  for (int part = 0; part < pass.together; ++part) parts.push_back(accumulator(pass.number, set, fold, part));
  for (; parts.size() > 1; parts.resize(parts.size() / 2))
    for (size_t p = 0; p < parts.size() / 2; ++p)
      parts[p] = both(how(fold), graph_[fold].type, parts[p], parts[p + parts.size() / 2]);
  return parts[0];
}

// Where a block of turns ends, its sums go to the first level; where a block of that ends, too, these to the next.
void Printer::print_blocks(const Pass& pass) {
  int64_t lanes = lanes_ * pass.together;
  for (int l = 0; l < region_.levels; ++l) {
    lanes *= Region::kBlock;
    print(Type::b1, R"(
  %in{l}_{n} = and i64 %next{n}, {mask}
  %ends{l}_{n} = icmp eq i64 %in{l}_{n}, 0
  br i1 %ends{l}_{n}, label %level{l}_{n}, label %turned{n}
)",
          holes(pass, {{"l", std::to_string(l)}, {"mask", std::to_string(lanes - 1)}}));
    label(pass, "level" + std::to_string(l) + "_");
    for (const Id id : pass.folds) {
      if (!is_in_blocks(id)) continue;
      const std::string sum = l == 0 ? one_of(pass, "added", id) : load_level(id, l - 1);
      store_level(id, l, both(how(id), graph_[id].type, load_level(id, l), sum));
      if (l > 0) store_level(id, l - 1, "zeroinitializer");
    }
  }
  print(Type::b1, "  br label %turned{n}\n", holes(pass));
}

// What is left of the row behind the turns, which have come to `whole`: a vector a turn, of which the last has lanes
// that do not count.
void Printer::print_rest(const Pass& pass, const std::map<Id, std::string>& whole) {
  const std::string& n = pass.number;
  print(Type::b1, R"(
  %somerest{n} = icmp slt i64 %left{n}, {end}
  br i1 %somerest{n}, label %rest{n}, label %done{n}
)",
        holes(pass));
  label(pass, "rest");
  print(Type::b1, "  %r{n} = phi i64 [ %left{n}, %after{n} ], [ %nextr{n}, %rest{n} ]\n", holes(pass));
  for (const Id id : pass.folds)
    print(graph_[id].type, "  {rest} = phi {V} [ {whole}, %after{n} ], [ {next}, %rest{n} ]\n",
          holes(pass,
                {{"rest", accumulator(n, "rest", id)}, {"whole", whole.at(id)}, {"next", accumulator(n, "next", id)}}));
  loop_ = "r" + n;
  const std::string left = in_all_lanes(Type::i64, line("sub i64 " + end() + ", %r" + n));
  mask_ = print_value(Type::i64, "  {result} = icmp slt {I} {numbers}, {left}\n",
                      {{"numbers", counted("i64")}, {"left", left}});
  masked_ = true;
  print_turn(pass.nodes, pass.outputs, "%r" + n, 1);
  for (const Id id : pass.folds) {
    const std::string counts = print_value(graph_[id].type, "  {result} = select {B} {mask}, {V} {v}, {V} {none}\n",
                                           {{"mask", mask_}, {"v", value(folded(id), 0)}, {"none", none(id)}});
    both(how(id), graph_[id].type, accumulator(n, "rest", id), counts, accumulator(n, "next", id));
  }
  mask_.clear();
  masked_ = false;
  print(Type::b1, R"(
  %nextr{n} = add i64 %r{n}, {L}
  %morerest{n} = icmp slt i64 %nextr{n}, {end}
  br i1 %morerest{n}, label %rest{n}, label %done{n}
)",
        holes(pass));
}

// Each accumulator comes to one number.
void Printer::print_ends(const Pass& pass, const std::map<Id, std::string>& whole) {
  const std::string& n = pass.number;
  label(pass, "done");
  for (const Id id : pass.folds)
    print(
        graph_[id].type, "  {ended} = phi {V} [ {whole}, %after{n} ], [ {next}, %rest{n} ]\n",
        holes(pass,
              {{"ended", accumulator(n, "ended", id)}, {"whole", whole.at(id)}, {"next", accumulator(n, "next", id)}}));
  for (const Id id : pass.folds) {
    std::string sum = accumulator(n, "ended", id);
    for (int l = 0; is_in_blocks(id) && l < region_.levels; ++l)
      sum = both(how(id), graph_[id].type, sum, load_level(id, l));
    across(how(id), graph_[id].type, sum, value(id, 0));
  }
}

// <i64 0, i64 1, …>
std::string Printer::counted(const char* integer) const {
  std::string text = "<";
  for (int64_t i = 0; i < lanes_; ++i) text += (i ? ", " : "") + std::string(integer) + " " + std::to_string(i);
  return text + ">";
}

// The number of each lane.
void Printer::print_place(Id id, const std::string& begin, int part) {
  const std::string first = in_all_lanes(Type::i32, line("trunc i64 " + begin + " to i32"));
  print_value(
      Type::i32, R"(
  %here~ = add {V} {first}, {numbers}
  {result} = add {V} %here~, {part}
)",
      {{"first", first}, {"numbers", counted("i32")}, {"part", splat("i32 " + std::to_string(part * lanes_), lanes_)}},
      value(id, part));
}

}  // namespace tower::compiler
